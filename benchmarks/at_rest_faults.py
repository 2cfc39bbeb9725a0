"""Which single-bit faults of the state at rest the digests find, and whether they accuse without.

    python benchmarks/at_rest_faults.py --faults 500 --clean 1000

A small GPT trains with AdamW, every tensor digested at every step. A fault flips one bit, drawn
uniformly from those of all parameters and both moments: right after the optimizer's step, in the
middle of the forward, or there once what the step left has been read. It counts as found only if
the very next step raises one alert, and that names tensor, element and bit. Then the state is put
back, the guard is told (refresh), and a sound step follows before the next fault: each is judged on
its own, many in one training.

The arms: `synchronous` is the guard as it is by default; `overlapped` has a second thread
(overlap_digests), which needs a core that torch leaves free. It may read the moments beside the
forward, and everything once more beside the backward: a fault that comes before the one or after
the other reading of its tensor is not found. `watched` is the share of the time between the ends of
two steps that lies between the two readings of a tensor, the mean over bytes and steps.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from hook_models import GPT, loss_fn, token_batch
from machine import line, machine

from sdc_guard import Alert, Guard, RunReader
from sdc_guard.inject.bits import flip_bit

MOMENTS = ("exp_avg", "exp_avg_sq")
AFTER, FORWARD, BETWEEN = "after the step", "in the forward", "between the readings"
PLACES = (AFTER, FORWARD, BETWEEN)
ARMS = ("synchronous", "overlapped")
WARM_UP = 5  # steps, of which the times are learned


@dataclass
class Outcome:
    """What became of the faults of one arm."""

    faults: int = 0
    found: int = 0
    others: int = 0  # alerts that name anything else
    missed: list[str] = field(default_factory=list)
    watched: float | None = None  # see above; None where nothing was overlapped


class Training:
    """A training with a guard, in which faults can be put.

    Args:
        run: the run's folder.
        seed: of the weights, the batches and the faults.
        options: of the guard.
    """

    def __init__(self, run: Path, seed: int, **options: Any) -> None:
        torch.manual_seed(seed)
        self.draw = random.Random(seed)
        self.model = GPT(128, 2, 4, 256, 64)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.batches = [token_batch(8, 64, 256) for _ in range(4)]
        self.alerts: list[Alert] = []
        self.guard = Guard(
            self.model,
            self.optimizer,
            run=run,
            policy="record",
            on_alert=self.alerts.append,
            digest_budget=None,
            probe_every=None,
            **options,
        )
        self.in_forward: list[Any] = []
        self.model.blocks[1].register_forward_pre_hook(self._forward)

    def _forward(self, *_: Any) -> None:
        while self.in_forward:
            self.in_forward.pop()()

    def step(self) -> None:
        """One step."""
        batch = self.batches[self.guard.step % len(self.batches)]
        loss = loss_fn(self.model, batch)
        torch.autograd.backward(loss)
        self.guard.observe(loss, batch)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict[tuple[str, str], torch.Tensor]:
        """Parameters and moments by kind and name."""
        named = dict(self.model.named_parameters())
        held: dict[tuple[str, str], torch.Tensor] = {
            ("param", name): parameter.data for name, parameter in named.items()
        }
        for moment in MOMENTS:
            held |= {(moment, name): self.optimizer.state[p][moment] for name, p in named.items()}
        return held

    def fault(self, place: str, outcome: Outcome) -> None:
        """Put in one fault, and judge what was said of it."""
        state = self.state()
        sizes = [tensor.numel() for tensor in state.values()]
        (key,) = self.draw.choices(list(state), sizes)
        index, bit = self.draw.randrange(state[key].numel()), self.draw.randrange(32)
        self.alerts.clear()
        self.step()
        saved = {name: tensor.clone() for name, tensor in state.items()}
        sound = not self.alerts
        step = self.guard.step
        if place == AFTER:
            flip_bit(state[key], index, bit)
        else:
            self.in_forward.append(lambda: flip_bit(state[key], index, bit))
        if place == BETWEEN:
            self.in_forward.append(self.guard.flush)  # before the fault
        self.step()
        said = [_said(alert) for alert in self.alerts if alert.detector == "carried_digest"]
        outcome.faults += 1
        outcome.found += sound and said == [(step, *key, index, [bit])]
        outcome.others += len([x for x in said if x[1:3] != key]) + (not sound)
        if said != [(step, *key, index, [bit])]:
            outcome.missed.append(f"step {step}: {key} element {index} bit {bit}, said {said}")
        for name, tensor in saved.items():
            state[name].copy_(tensor)
        self.guard.refresh()


def _said(alert: Alert) -> tuple[Any, ...]:
    detail = alert.detail
    return alert.step, detail["kind"], alert.layer_name, detail.get("index"), detail.get("bits")


def faults(run: Path, seed: int, count: int, place: str, **options: Any) -> Outcome:
    """Judge `count` faults in one training."""
    training, outcome = Training(run, seed, **options), Outcome()
    with training.guard:
        for _ in range(WARM_UP):
            training.step()
        for _ in range(count):
            training.fault(place, outcome)
    assert training.guard.health.errors == 0, training.guard.health.last_error
    with RunReader(run) as reader:
        rows = reader.rows("SELECT detail FROM events WHERE kind = 'overlap'")
    outcome.watched = json.loads(rows[0][0])["watched"] if rows else None
    return outcome


def clean(run: Path, seed: int, steps: int, **options: Any) -> list[Alert]:
    """The alerts of a training without a fault."""
    training = Training(run, seed, **options)
    with training.guard:
        for _ in range(steps):
            training.step()
    assert training.guard.health.errors == 0, training.guard.health.last_error
    return training.alerts


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--faults", type=int, default=500, help="of each arm and place")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("--places", nargs="+", choices=PLACES, default=PLACES)
    parser.add_argument("--clean", type=int, default=1000, help="steps without a fault")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(line({**machine(), "torch": torch.__version__, "seed": args.seed}))
    print(
        f"{'arm':<14}{'fault':<22}{'found':>12}{'others accused':>16}{'watched':>9}{'seconds':>9}"
    )
    for arm in args.arms:
        options = {"overlap_digests": arm == "overlapped"}
        for place in args.places:
            with tempfile.TemporaryDirectory(prefix="at-rest-") as folder:
                started = time.monotonic()
                done = faults(Path(folder), args.seed, args.faults, place, **options)
                seconds = time.monotonic() - started
            found = f"{done.found} of {done.faults}"
            watched = "" if done.watched is None else f"{100 * done.watched:.1f} %"
            columns = f"{found:>12}{done.others:>16}{watched:>9}{seconds:>9.1f}"
            print(f"{arm:<14}{place:<22}{columns}", flush=True)
            for missed in done.missed[:5]:
                print(f"    {missed}")
        with tempfile.TemporaryDirectory(prefix="at-rest-") as folder:
            alerts = clean(Path(folder), args.seed, args.clean, **options)
        print(f"{arm:<14}{'none':<22}{len(alerts):>5} alerts in {args.clean} steps")


if __name__ == "__main__":
    main()
