"""Runs without a fault: those that false alarms are counted on, and the twins of trials."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from .guarded import Sensor, attach, folder_in, learned
from .plan import Clean, Plan
from .rows import Rows, clean_rows, layer_rows
from .trace import Trace, read_trace
from .training import Training, build


@dataclass(frozen=True)
class Window:
    """A snapshot of a twin, and what came after it.

    Attributes:
        state: of the training after step `snapshot`, in memory of its own.
        sensor: what the guard's statistics had learned by then.
        hashes: of each tensor of the state after each of the steps that follow.
        trace: what the guard recorded of them.
        modules: names of those whose forward a step calls.
    """

    snapshot: int
    state: dict[str, Any]
    sensor: Sensor
    hashes: Mapping[int, Mapping[str, str]]
    trace: Trace
    modules: tuple[str, ...]


def run_clean(run: Clean, root: Path) -> Rows:
    """Train without a fault and without digests; the rows of it."""
    with folder_in(root) as folder:
        training = build(run.model, run.seed)
        with attach(training, folder, first_step=1, digests=False) as guard:
            for _ in range(run.steps):
                training.step(guard)
        trace = read_trace(folder, 1, run.steps)
    return {**clean_rows(run, trace, {}), "layers": layer_rows(run.model, trace)}


def run_twin(run: Clean, plan: Plan, root: Path) -> Rows:
    """Train a twin, leave its windows in `root`, and give the rows of it."""
    with folder_in(root) as folder:
        training = build(run.model, run.seed)
        twin = _Twin(training, plan)
        with attach(training, folder, first_step=1, digests=True) as guard:
            for step in range(1, run.steps + 1):
                training.step(guard)
                twin.after(step)
                if step in plan.snapshots:
                    twin.keep(step, learned(guard))
        trace = read_trace(folder, 1, run.steps, digests_from=min(plan.snapshots))
    for window in twin.windows(trace, training.modules_called()):
        path = window_path(root, run.model, run.seed, window.snapshot)
        path.write_bytes(pickle.dumps(window, protocol=pickle.HIGHEST_PROTOCOL))
    return {**clean_rows(run, trace, twin.states), "layers": layer_rows(run.model, trace)}


def window_path(root: Path, model: str, seed: int, snapshot: int) -> Path:
    """Where `run_twin` leaves a window, for the other processes of the same campaign."""
    return root / f"{model}-{seed}-{snapshot}.twin"


def read_window(root: Path, model: str, seed: int, snapshot: int) -> Window:
    """The window that `run_twin` left there; only ever read from a campaign's own folder."""
    content = window_path(root, model, seed, snapshot).read_bytes()
    window: Window = pickle.loads(content)
    return window


class _Twin:
    """Keeps what windows are made of while their twin trains."""

    def __init__(self, training: Training, plan: Plan) -> None:
        self.states: dict[int, str] = {}
        self._training, self._plan = training, plan
        self._hashes: dict[int, dict[str, str]] = {}
        self._kept: dict[int, tuple[dict[str, Any], Sensor]] = {}

    def after(self, step: int) -> None:
        hashes = self._training.hashes()
        self.states[step] = xxhash.xxh3_128_hexdigest(repr(sorted(hashes.items())).encode())
        if any(snapshot < step <= snapshot + self._plan.after for snapshot in self._plan.snapshots):
            self._hashes[step] = hashes

    def keep(self, step: int, sensor: Sensor) -> None:
        self._kept[step] = copy.deepcopy(self._training.state()), sensor

    def windows(self, trace: Trace, modules: tuple[str, ...]) -> list[Window]:
        found = []
        for snapshot, (state, sensor) in self._kept.items():
            first, last = snapshot + 1, snapshot + self._plan.after
            hashes = {step: self._hashes[step] for step in range(first, last + 1)}
            rows = trace.between(first, last)
            found.append(Window(snapshot, state, sensor, hashes, rows, modules))
        return found
