"""Runs written by hand through the real writer, so that every number in them is known."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sdc_guard.detect.alert import Alert
from sdc_guard.store.run_file import Attempt, Layer, RunFile
from sdc_guard.store.writer import Health, Writer

NAMES = ("embed.weight", "block.0.norm_1.bias")


def make_run(
    folder: Path,
    *,
    world_size: int = 1,
    starts: Iterable[int] = (1,),
    budget: float | None = None,
) -> Path:
    """A run's folder with two layers and an attempt per first step in `starts`; no trace."""
    folder.mkdir(parents=True, exist_ok=True)
    layers = tuple(Layer(n, name, (), (4,), "float32", 4) for n, name in enumerate(NAMES))
    attempts = tuple(
        Attempt(n, first, 1e9 + n, digest_budget=budget) for n, first in enumerate(starts, 1)
    )
    RunFile(folder.name, world_size, layers, attempts).write(folder)
    return folder


class Trace:
    """Writes rows of one rank and attempt; what is written is published on leaving the block."""

    def __init__(self, run: Path, *, rank: int = 0, attempt: int = 1) -> None:
        self._health = Health()
        self._writer = Writer(run, rank, self._health)
        self._attempt = attempt

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        assert (self._health.dropped, self._health.errors) == (0, 0), self._health.last_error

    def row(self, table: str, step: int, **columns: Any) -> None:
        self._writer.append(table, attempt=self._attempt, step=step, **columns)

    def start(self, step: int, host: str, device: str = "cpu x86_64") -> None:
        """What a rank records of itself when an attempt begins."""
        detail = {"first_step": step, "host": host, "devices": [{"name": device}]}
        kind = "start" if self._attempt == 1 else "restart"
        self.row("events", step, kind=kind, detail=json.dumps(detail))

    def rows(self, table: str, steps: NDArray[np.int64], **columns: Any) -> None:
        """Many rows at once; columns are arrays, or scalars that count for every row."""
        self._writer.append(table, attempt=self._attempt, step=steps, **columns)

    def steps(self, first: int, last: int) -> None:
        """Steps with everything that a guard records of them: 2 layers, 2 digests a phase."""
        for step in range(first, last + 1):
            self.row(
                "steps",
                step,
                time=1e9 + step,
                loss=1.0 + 1.0 / step,
                lr=1e-3,
                grad_norm=0.5,
                step_seconds=0.25,
                tokens=1024,
            )
            for layer in (0, 1):
                self.row("layers", step, layer=layer, norm=0.1 * (layer + 1), nonfinite=0, zeros=0)
                for phase in ("before", "after"):
                    self.row("digests", step, phase=phase, kind="param", layer=layer, h=1)
            if step % 10 == 0:
                self.row("shadow", step, loss=2.0, repeat_loss=2.0, seconds=0.1)

    def alert(self, step: int, severity: str = "proven", **detail: Any) -> Alert:
        """An alert in layer 1, as a detector would raise it."""
        detector, score = (
            ("carried_digest", 1.0) if severity == "proven" else ("gradient_norm", 44.0)
        )
        alert = Alert(step, detector, 1, NAMES[1], score, 32.0, severity, detail)
        self.row(
            "alerts",
            step,
            layer=1,
            detector=detector,
            score=score,
            threshold=alert.threshold,
            severity=severity,
            detail=alert.detail_json(),
        )
        return alert

    def incident(
        self, step: int, number: int, opened: int, *, proven: bool, closed: int | None = None
    ) -> None:
        """A row of an incident as it was at `step`."""
        detector = "carried_digest" if proven else "gradient_norm"
        evidence = {
            "alerts": 1,
            "detectors": [detector],
            "proven": proven,
            "first": f"step {opened}: {detector} in {NAMES[1]}",
        }
        self.row(
            "incidents",
            step,
            incident=number,
            opened=opened,
            closed=closed,
            verdict="undetermined",
            evidence=json.dumps(evidence),
        )

    def checkpoint(self, step: int, status: str, reason: str = "") -> None:
        self.row(
            "checkpoints",
            step,
            path=f"archive/step={step:06d}",
            format="torch",
            bytes=10_065_775,
            status=status,
            reason=reason,
        )


def watched_run(folder: Path) -> Path:
    """Steps 1 to 41 with a digest budget for one of two tensors, a clean checkpoint at 41."""
    with Trace(make_run(folder, budget=0.2)) as trace:
        for step in range(1, 42):
            trace.row("steps", step, time=1e9 + step, loss=1.0, grad_norm=0.5)
            if step > 1:
                trace.row("digests", step, phase="before", kind="param", layer=step % 2, h=1)
            for layer in (0, 1) if step == 41 else (1 - step % 2,):
                trace.row("digests", step, phase="after", kind="param", layer=layer, h=1)
        trace.checkpoint(41, "clean")
    return folder


def clean_run(folder: Path) -> Path:
    """Steps 1 to 40, clean checkpoints at 20 and 40."""
    with Trace(make_run(folder)) as trace:
        trace.steps(1, 40)
        trace.checkpoint(20, "clean")
        trace.checkpoint(40, "clean")
    return folder


def corrupt_run(folder: Path) -> Path:
    """Steps 1 to 40, one flipped bit found at step 27, checkpoints at 20 and 40."""
    with Trace(make_run(folder)) as trace:
        trace.steps(1, 40)
        trace.alert(
            27,
            text="param changed between step 26 and step 27",
            kind="param",
            index=3,
            bits=[19, 30],
            before="0x3ba35eef",
            after="0x3bab5eef",
        )
        trace.incident(27, 1, 27, proven=True)
        trace.checkpoint(20, "clean")
        trace.checkpoint(40, "suspect", "incident open since step 27")
    return folder
