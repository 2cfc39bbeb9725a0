"""False incidents of the shadow loss's trend on healthy series, and how soon a rise is found.

    python benchmarks/calibrate_shadow.py --seeds 600 609

Series fall as a power of the step, exponentially to a floor or to nothing, or stand still, and
waver by 1 % with normal or heavy-tailed (Student's t of 4 degrees) steps of an AR(1) process.
ALLOWANCE, JUMP and HELD were taken from seeds below 100 and from recorded losses of small models.
Use others to judge.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from machine import line, machine
from numpy.typing import NDArray

from sdc_guard.detect.proportion import wilson
from sdc_guard.detect.shadow_trend import ShadowTrend

NOISE, EVALUATIONS, RHOS = 0.01, 2000, (0.0, 0.5, 0.8)
KINDS = (
    "falling, normal",
    "falling, heavy tails",
    "standing, normal",
    "to a floor, normal",
    "to nothing, normal",
)


def base(kind: str, n: int) -> NDArray[np.float64]:
    """What a healthy loss wavers around, shape (n,)."""
    places = np.arange(n, dtype=np.float64)
    if "falling" in kind:
        return np.asarray(2 + 8 * (places / 3 + 1) ** -0.6)
    if "floor" in kind:
        return 1 + 4 * np.exp(-places / 30)
    return 4 * np.exp(-places / 60) if "nothing" in kind else np.full(n, 3.0)


def series(seed: int, kind: str, rho: float, n: int) -> NDArray[np.float64]:
    """A healthy loss, shape (n,)."""
    r = np.random.default_rng([seed, KINDS.index(kind), round(10 * rho)])
    steps = r.standard_t(4, n) * math.sqrt(0.5) if "heavy" in kind else r.normal(size=n)
    wavering = np.zeros(n)
    for i in range(1, n):
        wavering[i] = rho * wavering[i - 1] + math.sqrt(1 - rho * rho) * steps[i]
    return np.asarray(base(kind, n) * (1 + NOISE * wavering))


def alarms(losses: NDArray[np.float64]) -> list[tuple[int, str]]:
    """Evaluation and detector of each."""
    trend = ShadowTrend()
    return [(i, a.detector) for i, x in enumerate(losses) for a in trend.judge(i, float(x))]


def delay(seed: int, rho: float, slope: float) -> float:
    """Evaluations until a rise by `slope` times the noise per evaluation is told."""
    losses = series(seed, KINDS[0], rho, 600)
    losses[300:] *= 1 + slope * NOISE * np.arange(300)
    return min((i - 300 for i, _ in alarms(losses) if i >= 300), default=math.inf)


def main() -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs=2, default=(600, 609), help="first and last")
    args = parser.parse_args()
    seeds = range(args.seeds[0], args.seeds[1] + 1)
    print(line(machine()))
    print(f"{'healthy series':<24}{'ρ':>5}{'jumps':>8}{'rises':>8}  per evaluation, 95 %")
    for kind in KINDS:
        for rho in RHOS:
            found = [d for s in seeds for _, d in alarms(series(s, kind, rho, EVALUATIONS))]
            low, high = wilson(len(found), len(seeds) * EVALUATIONS)
            jumps = found.count("shadow_jump")
            print(f"{kind:<24}{rho:>5}{jumps:>8}{len(found) - jumps:>8}  {low:.1e} to {high:.1e}")
    print("\nmedian evaluations to a rise by a share of the noise per evaluation")
    for slope in (0.03, 0.1, 0.3, 1.0):
        said = (f"{np.median([delay(s, rho, slope) for s in seeds]):>8.0f}" for rho in RHOS)
        print(f"{slope:>8}" + "".join(said))


if __name__ == "__main__":
    main()
