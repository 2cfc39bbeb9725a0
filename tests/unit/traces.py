"""Traces written by hand, a row at a time, through the real writer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sdc_guard.store.run_file import Attempt, Layer, RunFile
from sdc_guard.store.writer import Health, Writer

LAYERS = 4


def make_run(folder: Path, *attempts: Attempt, names: Iterable[str] = ()) -> Path:
    """A run's folder with four layers of one element."""
    folder.mkdir(parents=True, exist_ok=True)
    called = list(names) or [f"layer.{number}" for number in range(LAYERS)]
    layers = tuple(Layer(n, name, (), (1,), "float32", 1) for n, name in enumerate(called))
    RunFile(folder.name, 1, layers, attempts or (Attempt(1, 0, 0.0),)).write(folder)
    return folder


def write(run: Path, rows: Iterable[tuple[str, Mapping[str, Any]]], *, rank: int = 0) -> None:
    """Rows as (table, columns); the attempt is 1 unless told."""
    health = Health()
    writer = Writer(run, rank, health)
    for table, columns in rows:
        writer.append(table, **{"attempt": 1, **columns})
    writer.close()
    assert (health.dropped, health.errors) == (0, 0), health.last_error


def step(number: int, **columns: Any) -> tuple[str, dict[str, Any]]:
    return "steps", {"step": number, "loss": 1.0 / (number + 1), "skipped": False, **columns}


def digest(number: int, phase: str, layer: int, value: int, **columns: Any) -> Any:
    return "digests", {
        "step": number, "phase": phase, "kind": "param", "layer": layer,
        "h": value, "s1": value, "s2": value, **columns,
    }  # fmt: skip


def gradient(number: int, layer: int, norm: float, **columns: Any) -> Any:
    measured = {"norm": norm, "max_abs": norm, "mean_abs": norm, "nonfinite": 0, "zeros": 0}
    return "layers", {"step": number, "layer": layer, "scope": "local", **measured, **columns}


def whole_steps(first: int, last: int, **columns: Any) -> list[Any]:
    """Steps that digest all four parameters: step s finds 10·s and leaves 10·(s + 1)."""
    return [
        row
        for number in range(first, last + 1)
        for row in (
            step(number, **columns),
            *(digest(number, "before", n, 10 * number + n, **columns) for n in range(LAYERS)),
            *(digest(number, "after", n, 10 * number + 10 + n, **columns) for n in range(LAYERS)),
        )
    ]


def turning_steps(first: int, last: int, whole: Iterable[int] = (), **columns: Any) -> list[Any]:
    """The same with a budget for one tensor a step: layer s mod 4 after step s, and before s + 1.

    After the steps in `whole` all four are digested.
    """
    rows = []
    for number in range(first, last + 1):
        rows.append(step(number, **columns))
        if number > first:
            n = (number - 1) % LAYERS
            rows.append(digest(number, "before", n, 10 * number + n, **columns))
        after = range(LAYERS) if number in set(whole) else [number % LAYERS]
        rows += [digest(number, "after", n, 10 * number + 10 + n, **columns) for n in after]
    return rows
