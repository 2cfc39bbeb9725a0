"""How far back one has to go, by policy of keeping checkpoints: simulated runs.

Each policy is applied at every save of a run, and can only keep what is still there. Something
goes wrong at a moment of the run, and is noticed after a latency that is log-uniform from 0.05 to
100 days: the run goes back to the newest checkpoint from before. The excess is what it trained
rightly in between; where no checkpoint is left the run begins anew, which counts as its excess.
Detections lie after the 100th day, so that no latency is longer than the run. All policies meet
the same saves, moments and latencies.

The policies are told the horizon, 100 days, and the interval; not the latencies. A second column
has latencies that are uniform from 0 to 100 days, which the default policy is not made for.
"""

from __future__ import annotations

import argparse

import numpy as np
from machine import line, machine

from sdc_guard.archive.retention.classic import grandfathers, others
from sdc_guard.archive.retention.latency import Floats, LogUniform, least_excess
from sdc_guard.archive.retention.moments import Moments
from sdc_guard.archive.retention.policies import POLICIES, Policy

INTERVAL, LENGTH = 0.25, 160.0  # days
LATENCY = LogUniform(0.05, 100.0)


def usual_split(moments: Moments) -> tuple[int, ...]:
    """Of 12: seven days, four weeks, one month, as backups are often kept."""
    return others(moments, grandfathers(moments, max(1, moments.count // 12), moments.count // 3))


def histories(policy: Policy, count: int) -> list[Floats]:
    """What is there after each save of a run, in days since its begin."""
    at: Floats = np.empty(0)
    kept = []
    for number in range(round(LENGTH / INTERVAL)):
        at = np.append(at, number * INTERVAL)
        at = np.delete(at, policy(Moments(at, count, INTERVAL)))
        kept.append(at)
    return kept


def going_back(kept: list[Floats], found: Floats, latency: Floats) -> tuple[Floats, Floats]:
    """The excess in days of each incident, and whether no checkpoint was left."""
    excess, without = np.empty(len(found)), np.zeros(len(found))
    for number, (at, late) in enumerate(zip(found, latency, strict=True)):
        there = kept[int(at / INTERVAL)]
        wrong = at - late
        place = int(np.searchsorted(there, wrong, side="right")) - 1
        excess[number] = wrong - (there[place] if place >= 0 else 0.0)
        without[number] = place < 0
    return excess, without


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng = np.random.default_rng(asked.seed)
    found = rng.uniform(LATENCY.high + INTERVAL, LENGTH, asked.runs)
    log_uniform = np.exp(rng.uniform(np.log(LATENCY.low), np.log(LATENCY.high), asked.runs))
    uniform = rng.uniform(0, LATENCY.high, asked.runs)
    policies: dict[str, Policy] = {**POLICIES, "  the usual 7-4-1 split": usual_split}
    print(f"{line(machine())}; seed {asked.seed}, {asked.runs:,} runs of {LENGTH:.0f} days")
    for count in (12, 24):
        print(
            f"\n{count} kept{'':<24}mean excess   95 %   no good copy   if uniform   no good copy"
        )
        for name, policy in policies.items():
            kept = histories(policy, count)
            excess, without = going_back(kept, found, log_uniform)
            other, other_without = going_back(kept, found, uniform)
            print(
                f"{name:<28}{excess.mean():>9.2f} d{np.quantile(excess, 0.95):>8.1f} d"
                f"{without.mean():>12.2%}{other.mean():>13.2f} d{other_without.mean():>12.2%}"
            )
        print(f"{'bound, (∫√f)²/2K':<28}{least_excess(count, LATENCY):>9.2f} d")


if __name__ == "__main__":
    main()
