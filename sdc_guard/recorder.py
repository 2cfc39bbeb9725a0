"""From evidence to rows, alerts and incidents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from .archive.compare import solve_change
from .detect.alert import Alert
from .detect.carried import DigestTable, Key, carried_alert, changed
from .detect.incidents import IncidentBook
from .detect.sensor import StepSensor
from .digest import Digest
from .digest.reference import MASK64
from .evidence import AfterStep, BeforeStep
from .signals.batch import fold
from .store.run_file import Layer
from .store.writer import Writer


class Recorder:
    """Writes evidence to the store and judges it.

    Args:
        writer: takes the rows.
        attempt: number of this start of the training.
        layers: in the order of the model; their numbers are those of the run's tables.
        on_alert: called with each alert, after it is queued for the store.
    """

    def __init__(
        self,
        writer: Writer,
        attempt: int,
        layers: list[Layer],
        on_alert: Callable[[Alert], None],
    ) -> None:
        self._writer = writer
        self._attempt = attempt
        self._names = {layer.id: layer.name for layer in layers}
        self._column = {layer.id: place for place, layer in enumerate(layers)}
        self._sensor = StepSensor([layer.name for layer in layers])
        self._order = [layer.id for layer in layers]
        self._on_alert = on_alert
        self._left_behind: DigestTable | None = None
        self.incidents = IncidentBook()

    def recorded(self) -> dict[Key, Digest]:
        """Digests of the state that the newest step left behind."""
        if self._left_behind is None:
            return {}
        rows = self._left_behind.rows.tolist()
        return {key: _digest(row) for key, row in zip(self._left_behind.keys, rows, strict=True)}

    def forget_state(self) -> None:
        """The state was changed on purpose: the next step starts a new chain of digests."""
        self._left_behind = None

    def before_step(self, evidence: BeforeStep, live: Mapping[Key, torch.Tensor]) -> None:
        """Record what was found before a step and raise its alerts.

        Args:
            evidence: its copies are read; they should be ready.
            live: the tensors that were digested, to read a changed element from.
        """
        step = evidence.step
        table = DigestTable(evidence.digests.keys, evidence.digest_rows.get().numpy())
        norms, nonfinite = self._write_layers(evidence)
        loss = None if evidence.losses is None else float(evidence.losses.get().mean())
        self._write_digests(step, "before", table)
        self._write_step(evidence, loss, norms)
        alerts = [
            *self._carried_alerts(step, table, live),
            *self._sensor_alerts(step, norms, nonfinite, loss),
        ]
        self.report(step, alerts)

    def after_step(self, evidence: AfterStep) -> None:
        """Record what a step left behind."""
        table = DigestTable(evidence.digests.keys, evidence.digest_rows.get().numpy())
        self._write_digests(evidence.step, "after", table)
        self._left_behind = table
        if evidence.shadow is not None and evidence.shadow_losses is not None:
            first, second = evidence.shadow_losses.get().tolist()
            self._append(
                "shadow",
                evidence.step,
                loss=first,
                repeat_loss=second,
                batch_hash=evidence.shadow.batch_hash,
                seconds=evidence.shadow.seconds,
            )

    def report(self, step: int, alerts: list[Alert]) -> None:
        """Store alerts, group them into incidents, and hand them on."""
        for alert in alerts:
            self._append(
                "alerts",
                step,
                layer=alert.layer,
                detector=alert.detector,
                score=alert.score,
                threshold=alert.threshold,
                severity=alert.severity,
                detail=alert.detail_json(),
            )
        for incident in self.incidents.update(step, alerts):
            self._append(
                "incidents",
                step,
                incident=incident.number,
                opened=incident.opened,
                closed=incident.closed,
                verdict=incident.verdict,
                evidence=incident.evidence_json(),
            )
        if alerts:
            self._writer.nudge()
        for alert in alerts:
            self._on_alert(alert)

    def event(self, step: int, kind: str, detail: str) -> None:
        """Record an event."""
        self._append("events", step, kind=kind, detail=detail)

    def checkpoint(self, step: int, **columns: Any) -> None:
        """Record a checkpoint."""
        self._append("checkpoints", step, **columns)

    def _append(self, table: str, step: int, **columns: Any) -> None:
        self._writer.append(table, attempt=self._attempt, step=step, **columns)

    def _carried_alerts(
        self, step: int, found: DigestTable, live: Mapping[Key, torch.Tensor]
    ) -> list[Alert]:
        if self._left_behind is None:
            return []
        alerts = []
        for key, old, new in changed(self._left_behind, found):
            expected, actual = _digest(self._left_behind.rows[old]), _digest(found.rows[new])
            single = solve_change(live[key], expected, actual)
            location: dict[str, Any] = {}
            if single is not None:
                location = {
                    "index": single.index,
                    "bits": single.bits,
                    "before": f"0x{single.before:x}",
                    "after": f"0x{single.after:x}",
                }
            alerts.append(carried_alert(step, key, self._names[key[1]], location))
        return alerts

    def _sensor_alerts(
        self, step: int, norms: np.ndarray[Any, Any], nonfinite: np.ndarray[Any, Any], loss: Any
    ) -> list[Alert]:
        alerts = self._sensor.judge(step, norms, nonfinite, loss)
        return [
            alert
            if alert.layer is None
            else Alert(**{**vars(alert), "layer": self._order[alert.layer]})
            for alert in alerts
        ]

    def _write_layers(
        self, evidence: BeforeStep
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Write the layers' rows; norms and non-finite counts in the order of the model."""
        norms = np.full(len(self._order), np.nan)
        nonfinite = np.zeros(len(self._order), dtype=np.int64)
        if evidence.measures is None:
            return norms, nonfinite
        columns = evidence.measures.get().numpy().T
        places = [self._column[layer] for layer in evidence.layers]
        norms[places], nonfinite[places] = columns[0], columns[3].astype(np.int64)
        self._append(
            "layers",
            evidence.step,
            layer=np.asarray(evidence.layers, dtype=np.int32),
            norm=columns[0],
            max_abs=columns[1],
            mean_abs=columns[2],
            nonfinite=columns[3].astype(np.int64),
            zeros=columns[4].astype(np.int64),
            scope="local",
        )
        return norms, nonfinite

    def _write_digests(self, step: int, phase: str, table: DigestTable) -> None:
        self._append(
            "digests",
            step,
            phase=phase,
            kind=[kind for kind, _ in table.keys],
            layer=np.array([layer for _, layer in table.keys], dtype=np.int32),
            h=table.rows[:, 0],
            s1=table.rows[:, 1],
            s2=table.rows[:, 2],
        )

    def _write_step(
        self, evidence: BeforeStep, loss: float | None, norms: np.ndarray[Any, Any]
    ) -> None:
        present = norms[~np.isnan(norms)] if evidence.measures is not None else norms[:0]
        hashes = [fold(batch.get()) for batch in evidence.batches]
        self._append(
            "steps",
            evidence.step,
            time=evidence.time,
            loss=loss,
            lr=evidence.lr,
            grad_norm=float(np.sqrt(np.square(present).sum())) if present.size else None,
            skipped=False,
            accumulation=evidence.accumulation,
            batch_hash=_one(hashes),
            step_seconds=evidence.step_seconds,
            tokens=evidence.tokens,
        )


def _one(hashes: list[int]) -> int | None:
    """One hash for the micro-batches of a step, in their order."""
    if len(hashes) > 1:
        return fold(torch.tensor(hashes))
    return hashes[0] if hashes else None


def _digest(row: Any) -> Digest:
    return Digest(*(int(value) & MASK64 for value in row))
