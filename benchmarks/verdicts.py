"""Which verdict injected faults get: a confusion matrix from seeded trainings.

Each trial trains a small network with its guard auditing every step, and puts one fault into it:

intermittent   one bit of one activation, in one forward
persistent     the same bit of the same activation in every forward on this device from a step on;
               copies of the model are the other devices, and compute rightly
data           a batch of garbage, or with wrong values, at one step
software       state that no replay puts back, weights and gradients that the script writes to,
               batches changed, settings changed
beyond         software that a replay cannot tell from a fault that did not repeat: a line that the
               script runs outside of audit(model, batch) at one step, hidden state that acts rarely

Scored are faults that changed a gradient, as a twin without a guard shows. Blamed is a device that
a verdict of persistence names although it is sound, or that the ledger of all trials puts out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import line, machine
from torch import nn

from sdc_guard import Guard, RunReader
from sdc_guard.checks.audit.elsewhere import Places
from sdc_guard.checks.audit.step_audit import StepAudit
from sdc_guard.detect.strikes import standings
from sdc_guard.ledger import read_ledger

STEPS, WIDTH = 14, 12
EARLIEST = 6  # step of a fault: by then the training was shown to repeat
VERDICTS = (
    "intermittent", "persistent on a device", "data or software", "undetermined", "not comparable",
    "sound",
)  # fmt: skip


class Net(nn.Module):
    """Dropout, a norm with buffers, two activations to spoil."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Linear(WIDTH, 24), nn.BatchNorm1d(24)
        self.inner, self.drop = nn.Linear(24, 24), nn.Dropout(0.1)
        self.head = nn.Linear(24, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.body(x)).relu()
        return self.head(self.drop(self.inner(x)).relu())


Batch = list[torch.Tensor]


def loss_fn(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Cross entropy."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


@dataclass
class Trial:
    """One training, whose parts a fault replaces."""

    seed: int
    at: int
    rng: random.Random
    step: int = -1
    copies: int = 0
    policy: Any = "record"
    model: Net = field(default_factory=Net)
    audit: Callable[[nn.Module, Batch], torch.Tensor] = loss_fn
    loss: Callable[[nn.Module, Batch], torch.Tensor] | None = None
    batch: Callable[[Batch], None] = lambda batch: None
    after_backward: Callable[[Batch], None] = lambda batch: None
    gradients: bytes = b""

    def run(self, folder: Path | None, ledger: Path | None) -> None:
        """Train; without a folder, without a guard."""
        torch.manual_seed(self.seed)
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        guard = None
        if folder is not None:
            guard = Guard(
                self.model, optimizer, run=folder, policy=self.policy, audit=self.audit,
                audit_rate=1.0, ledger=ledger, probe_every=None, invariants_every=None,
            )  # fmt: skip
            if self.copies:
                (audit,) = (x for x in guard._checks._checks if isinstance(x, StepAudit))
                places = [torch.device("cpu")] * self.copies
                audit._run._places = Places(audit._subject, places)
        for self.step in range(STEPS):
            batch = [torch.randn(16, WIDTH), torch.randint(0, 4, (16,))]
            self.batch(batch)
            loss = (self.loss or self.audit)(self.model, batch)
            loss.backward()
            if guard is not None:
                guard.observe(loss, batch)
            if self.step == self.at:
                found = [
                    p.grad.numpy().tobytes() for p in self.model.parameters() if p.grad is not None
                ]
                self.gradients = b"".join(found)
            self.after_backward(batch)
            optimizer.step()
            optimizer.zero_grad()
        if guard is not None:
            guard.close()
            assert guard.health.errors == 0, guard.health.last_error


def spoil(trial: Trial, active: Callable[[nn.Module], bool]) -> None:
    """Flip one bit of one activation while `active` says so."""
    name = trial.rng.choice(["body", "inner", "head"])
    row, column = trial.rng.randrange(16), trial.rng.randrange(4)
    bit, original = trial.rng.randrange(32), getattr(trial.model, name)

    def hook(module: nn.Module, arguments: Any, output: torch.Tensor) -> torch.Tensor | None:
        if not module.training or module is not original or not active(module):
            return None
        wrong = output.detach().clone()
        wrong.view(torch.int32)[row, column] ^= int(np.int32(np.uint32(1 << bit)))
        spoilt = output.clone()
        spoilt[row, column] = wrong[row, column]
        return spoilt

    original.register_forward_hook(hook)


def intermittent(trial: Trial) -> None:
    left = iter(range(1))  # nothing can put an iterator back

    def once(module: nn.Module) -> bool:
        return trial.step == trial.at and next(left, None) is not None

    trial.copies = trial.rng.choice([0, 1, 2])
    spoil(trial, once)


def persistent(trial: Trial, copies: int) -> None:
    trial.copies = copies
    spoil(trial, lambda module: trial.step >= trial.at)


def garbage(trial: Trial) -> None:
    trial.policy = "skip"  # which has a step with an alert run again before it is applied
    trial.copies = trial.rng.choice([0, 1, 2])
    factor = trial.rng.choice([float("nan"), float("inf"), 1e4, 0.0, -1.0])
    rows = trial.rng.choice([1, 8, 16])
    trial.batch = lambda batch: batch[0][:rows].mul_(factor) if trial.step == trial.at else None


def wrong_labels(trial: Trial) -> None:
    trial.copies = trial.rng.choice([0, 1, 2])
    trial.batch = lambda batch: batch[1].zero_() if trial.step == trial.at else None


def own_generator(trial: Trial) -> None:
    seeds = itertools.count(trial.seed)  # nothing can put an iterator back

    def audit(model: nn.Module, batch: Batch) -> torch.Tensor:
        generator = torch.Generator().manual_seed(next(seeds))
        noise = torch.randn(batch[0].shape, generator=generator)
        return loss_fn(model, [batch[0] + 0.1 * noise, batch[1]])

    trial.audit = audit


def drifting_counter(trial: Trial) -> None:
    calls, rate = itertools.count(1), trial.rng.choice([1e-2, 1e-4])

    def audit(model: nn.Module, batch: Batch) -> torch.Tensor:
        return loss_fn(model, batch) * (1 + rate * next(calls))

    trial.audit = audit


def plain_counter(trial: Trial) -> None:
    calls, at = 0, trial.at

    def audit(model: nn.Module, batch: Batch) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return loss_fn(model, batch) * (1.5 if calls == at + 1 else 1.0)

    trial.audit = audit


def written_weight(trial: Trial) -> None:
    way = trial.rng.choice(["data", "no_grad", "add"])

    def write(batch: Batch) -> None:
        weight = trial.rng.choice(list(trial.model.parameters()))
        if trial.step != trial.at:
            return
        if way == "data":
            weight.data.mul_(0.5)
        with torch.no_grad():
            weight.add_(0.01)

    trial.after_backward = write


def changed_batch(trial: Trial) -> None:
    def change(batch: Batch) -> None:
        if trial.step == trial.at:
            batch[0].mul_(2)

    trial.after_backward = change


def dropped_gradients(trial: Trial) -> None:
    def drop(model: nn.Module, batch: Batch) -> torch.Tensor:
        loss = loss_fn(model, batch)
        if trial.step == trial.at:
            loss.backward(retain_graph=True)
        return loss

    trial.loss = drop


def changed_settings(trial: Trial) -> None:
    def change(batch: Batch) -> None:
        if trial.step == trial.at:
            torch.backends.mkldnn.set_flags(_enabled=not torch.backends.mkldnn.enabled)

    trial.after_backward = change


def line_of_the_script(trial: Trial) -> None:
    trial.loss = lambda model, batch: loss_fn(model, batch) * (1.5 if trial.step == trial.at else 1)


def rare_hidden_counter(trial: Trial) -> None:
    calls, every = itertools.count(1), trial.rng.randrange(4, 9)

    def audit(model: nn.Module, batch: Batch) -> torch.Tensor:
        return loss_fn(model, batch) * (1.5 if next(calls) % every == 0 else 1.0)

    trial.audit = audit


Fault = Callable[[Trial], None]
ROWS: dict[str, tuple[str, list[Fault]]] = {
    "none": ("none", [lambda trial: None]),
    "intermittent": ("intermittent", [intermittent]),
    "persistent, one other device": ("persistent", [lambda trial: persistent(trial, 1)]),
    "persistent, two other devices": ("persistent", [lambda trial: persistent(trial, 2)]),
    "persistent, no other device": ("persistent", [lambda trial: persistent(trial, 0)]),
    "data": ("data", [garbage, wrong_labels]),
    "software": (
        "software",
        [own_generator, drifting_counter, plain_counter, written_weight, changed_batch,
         dropped_gradients, changed_settings],
    ),
    "beyond": ("beyond", [line_of_the_script, rare_hidden_counter]),
}  # fmt: skip


def trials(row: str, seed: int, count: int) -> Iterator[tuple[Callable[[], Trial], int]]:
    """Makers of the same trial, with the fault; one a trial."""
    faults = ROWS[row][1]
    for number in range(count):
        own = f"{seed}/{row}/{number}"
        fault = faults[number % len(faults)]

        def make(own: str = own, fault: Fault = fault) -> Trial:
            rng = random.Random(own)
            torch.manual_seed(rng.getrandbits(31))
            trial = Trial(rng.getrandbits(31), rng.randrange(EARLIEST, STEPS - 1), rng)
            fault(trial)
            return trial

        yield make, number


def verdict_of(folder: Path, at: int) -> tuple[str, Any]:
    """The verdict of the step, and the device that an alert of persistence names."""
    with RunReader(folder) as reader:
        events = reader.rows(f"SELECT detail FROM events WHERE kind = 'audit' AND step = {at}")
        alerts = reader.rows("SELECT detail FROM alerts WHERE detector = 'step_audit'")
    named = [json.loads(detail) for (detail,) in alerts]
    devices = [d["device"] for d in named if d["verdict"] == "persistent on a device"]
    said = [json.loads(detail)["verdict"] for (detail,) in events]
    # a reason is told once: a step of which nothing is said has one that was told before; of one
    # that was judged again after its alert, the verdict that says more
    verdict = min(said, key=VERDICTS.index, default="not comparable")
    return verdict, next((device for device in devices if device), None)


def campaign(row: str, seed: int, count: int, folder: Path) -> tuple[Counter[str], int, int]:
    """Verdicts of the faults that changed something, how many did not, and devices named."""
    found: Counter[str] = Counter()
    without, named = 0, 0
    kind = ROWS[row][0]
    for make, number in trials(row, seed, count):
        mkldnn = torch.backends.mkldnn.enabled
        trial = make()
        trial.run(folder / f"{row}-{number}".replace(" ", "_"), folder / f"{kind}.ledger")
        torch.backends.mkldnn.set_flags(_enabled=mkldnn)
        if kind in ("intermittent", "persistent"):
            with_fault, clean = make(), make()
            clean.at = with_fault.at
            with_fault.run(None, None)
            for module in clean.model.modules():
                module._forward_hooks.clear()
            clean.run(None, None)
            if with_fault.gradients == clean.gradients:
                without += 1
                continue
        verdict, device = verdict_of(folder / f"{row}-{number}".replace(" ", "_"), trial.at)
        found[verdict] += 1
        named += device is not None
    return found, without, named


def main() -> None:
    """Print the matrix."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--trials",
        type=int,
        default=40,
        help="of each row; of data and software, three times as many",
    )
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(line(machine() | {"torch": torch.__version__, "seed": arguments.seed}))
    print(f"| injected | scored | without effect | {' | '.join(VERDICTS)} | device named |")
    print("|---|" + "---|" * (len(VERDICTS) + 3))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for row in arguments.rows:
            kind = ROWS[row][0]
            count = arguments.trials * (3 if kind in ("data", "software") else 1)
            found, without, named = campaign(row, arguments.seed, count, folder)
            cells = [found.total(), without, *(found[verdict] for verdict in VERDICTS), named]
            print(f"| {row} | " + " | ".join(map(str, cells)) + " |", flush=True)
        for ledger in sorted(folder.glob("*.ledger")):
            for standing in standings(read_ledger(ledger)[0]):
                print(f"ledger of {ledger.stem}: {standing.line()}")


if __name__ == "__main__":
    main()
