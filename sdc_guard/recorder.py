"""From evidence to rows, alerts and incidents."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from .carried_alerts import carried_alerts, digest_of
from .counter_alerts import alerts_of, digests_of, wrong_of
from .detect.alert import Alert
from .detect.carried import DigestTable, Key
from .detect.choice import SensorName, sensor_for
from .detect.foreign import ForeignState
from .detect.incidents import IncidentBook
from .detect.invariants import InvariantSensor
from .detect.loss_scale import LossScaleWatch
from .detect.sensor import FALSE_INCIDENTS
from .detect.shadow import ShadowWatch
from .detect.step_signals import StepSignals
from .digest import Digest
from .evidence import AfterStep, BeforeStep, HostCopy
from .kept_evidence import after_frame, before_frame, room
from .kept_evidence import layer_columns as columns_of_layers
from .layer_rows import Held, LayerRows, judged, layer_rows, signals_of
from .quiet_steps import (
    Evidence,
    counters_hold,
    digest_columns,
    is_plain,
    layer_columns,
    left_behind,
    losses_of,
    measured,
    step_columns,
)
from .signals.placement import Placement
from .signals.state import Live
from .store.run_file import Layer
from .store.writer import Writer


class Recorder:
    """Writes evidence to the store and judges it.

    Args:
        writer: takes the rows.
        attempt: number of this start of the training.
        on_alert: called with each alert, after it is queued for the store.
        sensor: which one judges gradients and loss.
        false_incidents: its budget a step; None for no statistical alerts.
        on_measured: called with what was measured, see `checks.check.Check.measured`.
    """

    def __init__(
        self,
        writer: Writer,
        attempt: int,
        on_alert: Callable[[Alert], None],
        sensor: SensorName = "double_centred",
        false_incidents: float | None = FALSE_INCIDENTS,
        on_measured: Callable[[Sequence[int], Any, Any, StepSignals], None] = lambda *_: None,
    ) -> None:
        self._writer = writer
        self._on_measured = on_measured
        self._attempt = attempt
        self._on_alert = on_alert
        self._chosen, self._false_incidents = sensor, false_incidents
        self._left_behind: DigestTable | None = None
        self._scale = LossScaleWatch()
        self._foreign = ForeignState()
        self._shadow = ShadowWatch(false_incidents)
        self._lr: float | None = None
        self.incidents = IncidentBook()

    def use_layers(
        self,
        named: list[Layer],
        layers: list[Layer],
        placements: list[Placement],
        replicas: int,
        *,
        reduces: bool,
        trained: Collection[int],
        buffers: Sequence[Layer] = (),
    ) -> None:
        """Set the layers whose measures come, in their order.

        Args:
            named: all layers; their numbers are those of the run's tables.
            layers: those whose gradients are measured.
            placements: of their gradients on this rank.
            replicas: ranks among which plain gradients are reduced.
            reduces: whether they are known to be, by DistributedDataParallel.
            trained: numbers of those that an optimizer may write to: the others are frozen.
            buffers: that are digested.
        """
        self._writer.make_room(room(len(named), buffers=len(buffers)))
        self._foreign.watch({layer.id for layer in named} - set(trained))
        self._names = {layer.id: layer.name for layer in (*named, *buffers)}
        self._order = np.array([layer.id for layer in layers], dtype=np.int32)
        self._numel = np.array([layer.numel for layer in layers], dtype=np.int64)
        self._held = Held(placements)
        self._replicas, self._reduces = replicas, reduces
        self._sensor = sensor_for(
            self._chosen,
            [layer.name for layer in layers],
            self._numel,
            self._false_incidents,
            [
                x.shape if y.scope != "sharded" else ()
                for x, y in zip(layers, placements, strict=True)
            ],
        )
        self._invariants = InvariantSensor(self._names)

    @property
    def layers(self) -> int:
        """How many layers are measured."""
        return len(self._order)

    def recorded(self) -> dict[Key, Digest]:
        """Digests of the state that the newest step left behind."""
        if self._left_behind is None:
            return {}
        rows = self._left_behind.rows.tolist()
        return {key: digest_of(row) for key, row in zip(self._left_behind.keys, rows, strict=True)}

    def forget_state(self) -> None:
        """The state was changed on purpose: the next step starts a new chain of digests."""
        self._left_behind = None

    def keep(self, evidence: BeforeStep | AfterStep) -> None:
        """Put evidence whose copies have arrived where it survives this process."""
        whole = self._foreign.settled  # else digests may be of what is to be passed over
        if isinstance(evidence, AfterStep):
            frame = after_frame(self._attempt, evidence, digests=whole)
        else:
            frame = before_frame(
                self._attempt,
                evidence,
                self._order,
                self._held,
                replicas=self._replicas,
                reduces=self._reduces,
                digests=whole,
            )
        evidence.kept = (frame is None or self._writer.keep(frame)) and whole

    def quiet_steps(self, evidence: Evidence) -> bool:
        """Record the evidence of several steps at once, unless there is more to say of one.

        Args:
            evidence: in its order; its copies are read.

        Returns:
            False if it has to be recorded piece by piece; nothing was done then.
        """
        layers = len(self._order)
        if not (self._foreign.settled and self._held.plain):
            return False
        steps = [piece for piece in evidence if isinstance(piece, BeforeStep)]
        if not steps or not all(is_plain(step, layers) for step in steps):
            return False
        unchanged, left = left_behind(self._left_behind, evidence)
        if not (unchanged and self._scale.quiet and counters_hold(evidence)):
            return False
        values, losses = measured(steps, self._numel), losses_of(steps)
        signals = signals_of(values)
        if not self._sensor.admit_quiet(signals, losses):
            return False
        self._on_measured([step.step for step in steps], self._order, self._numel, signals)
        self._left_behind = left
        kept = all(piece.kept for piece in evidence)
        for table, columns in (
            ("layers", layer_columns(steps, self._order, values)),
            ("digests", digest_columns(evidence)),
            ("steps", step_columns(steps, losses, values)),
        ):
            if columns:
                self._append(table, kept=kept, **columns)
        for piece in evidence:
            if isinstance(piece, AfterStep):
                self._judge_after(piece)
            else:
                self._lr = piece.lr
                self.report(piece.step, [])
        return True

    def before_step(
        self,
        evidence: BeforeStep,
        live: Live,
        skip_on_alert: Callable[[list[Alert], bool], bool] = lambda *_: False,
    ) -> None:
        """Record what was found before a step and raise its alerts.

        Args:
            evidence: its copies are read; they should be ready.
            live: gives this rank's part of a digested tensor, to read a changed element from.
            skip_on_alert: whether these alerts make the guard skip the step, or gradients that
                are not finite, which are told when they begin alone.
        """
        step, self._lr = evidence.step, evidence.lr
        table = self._carried(evidence.digests.keys, evidence.digest_rows)
        written = self._foreign.learn(self._left_behind, table)
        if written:
            names = sorted(self._names[layer] for layer in written)
            self.event(step, "not carried", json.dumps({"written by the script": names}))
            table = self._foreign.without_written(table)
        scale = None if evidence.scale is None else float(evidence.scale.get())
        found = layer_rows(
            evidence.sums(),
            1.0 if scale is None else scale,
            self._numel,
            self._held,
            replicas=self._replicas,
            reduces=self._reduces,
        )
        rewritten = wrong_of(evidence.counters)
        by_scaler = evidence.skipped or _positive(evidence.found_inf)
        loss = evidence.loss
        alerts = [
            *carried_alerts(step, self._left_behind, table, live, self._names),
            *alerts_of(step, rewritten, self._names),
            *self._sensor_alerts(step, found, loss, skipped=by_scaler),
            *self._scale.judge(step, scale, skipped=by_scaler),
        ]
        broken = not by_scaler and bool(judged(found, len(self._order)).nonfinite.any())
        left_out = skip_on_alert(alerts, broken)
        kept = evidence.kept and not left_out
        self._write_layers(step, found, kept=kept)
        self._write_digests(step, "before", table, kept=kept)
        for at, phase, counters in zip(
            (step - 1, step), ("after", "before"), digests_of(rewritten), strict=True
        ):
            self._write_digests(at, phase, counters, kept=False)
        skipped = left_out or by_scaler or not evidence.applied
        self._write_step(evidence, loss, scale, found, skipped=skipped, kept=kept)
        if by_scaler:
            self.event(step, "scaler skip", json.dumps({"loss_scale": scale}))
        self.report(step, alerts)

    def after_step(self, evidence: AfterStep) -> None:
        """Record what a step left behind."""
        self._left_behind = None  # what an earlier step left is nothing to be compared with now
        table = self._carried(evidence.digests.keys, evidence.digest_rows)
        self._write_digests(evidence.step, "after", table, kept=evidence.kept)
        self._left_behind = table
        self._judge_after(evidence)

    def _judge_after(self, evidence: AfterStep) -> None:
        alerts = alerts_of(evidence.step, wrong_of(evidence.counters), self._names)
        if evidence.shadow is not None and evidence.shadow_losses is not None:
            losses, found = evidence.shadow_losses.get().tolist(), evidence.shadow_hash
            self._append(
                "shadow",
                evidence.step,
                loss=losses[0],
                repeat_loss=losses[1],
                batch_hash=found,
                seconds=evidence.shadow.seconds,
            )
            pinned = evidence.shadow.batch_hash
            alerts += self._shadow.judge(evidence.step, pinned, found, losses, self._lr)
        alerts += [
            alert
            for audit, rows in evidence.audits
            for alert in self._invariants.judge(audit.step, audit.slices, rows.array())
        ]
        if alerts:
            self.report(evidence.step, alerts)

    def state_at_rest(self, step: int, keys: tuple[Key, ...], rows: torch.Tensor) -> None:
        """Record digests, taken later than those of `after_step`, of more that step left."""
        table = self._foreign.without_written(DigestTable(keys, rows.numpy()))
        if not keys or self._left_behind is None:
            return
        self._write_digests(step, "after", table, kept=False)
        held = self._left_behind
        self._left_behind = DigestTable(
            (*held.keys, *table.keys), np.concatenate([held.rows, table.rows])
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

    def event(self, step: int, kind: str, detail: str, *, kept: bool = False) -> None:
        """Record an event; `kept` from another thread, which must not write to the ring."""
        self._append("events", step, kept=kept, kind=kind, detail=detail)

    def checkpoint(self, step: int, *, kept: bool = False, **columns: Any) -> None:
        """Record a checkpoint; `kept` from another thread, which must not write to the ring."""
        self._append("checkpoints", step, kept=kept, **columns)

    def _append(self, table: str, step: Any, *, kept: bool = False, **columns: Any) -> None:
        self._writer.append(table, kept=kept, attempt=self._attempt, step=step, **columns)

    def _carried(self, keys: tuple[Key, ...], rows: HostCopy) -> DigestTable:
        return self._foreign.without_written(DigestTable(keys, rows.array()))

    def _sensor_alerts(
        self, step: int, found: list[LayerRows], loss: float | None, *, skipped: bool
    ) -> list[Alert]:
        if skipped:  # a scaler that finds its scale makes gradients overflow: that is no fault
            return self._sensor.judge_loss(step, loss)
        signals = judged(found, len(self._order))
        self._on_measured([step], self._order, self._numel, signals.many)
        return [
            alert if alert.layer is None else replace(alert, layer=int(self._order[alert.layer]))
            for alert in self._sensor.judge(step, signals, loss)
        ]

    def _write_layers(self, step: int, found: list[LayerRows], *, kept: bool) -> None:
        for part in found:
            self._writer.append(
                "layers", **columns_of_layers(self._attempt, step, part, self._order), kept=kept
            )

    def _write_digests(self, step: int, phase: str, table: DigestTable, *, kept: bool) -> None:
        if not table.keys:
            return
        self._append(
            "digests",
            step,
            kept=kept,
            phase=phase,
            kind=[kind for kind, _ in table.keys],
            layer=np.array([layer for _, layer in table.keys], dtype=np.int32),
            h=table.rows[:, 0],
            s1=table.rows[:, 1],
            s2=table.rows[:, 2],
        )

    def _write_step(
        self,
        evidence: BeforeStep,
        loss: float | None,
        scale: float | None,
        found: list[LayerRows],
        *,
        skipped: bool,
        kept: bool,
    ) -> None:
        self._append(
            "steps",
            evidence.step,
            kept=kept,
            time=evidence.time,
            loss=loss,
            lr=evidence.lr,
            grad_norm=found[-1].total_norm if found else None,
            loss_scale=scale,
            skipped=skipped,
            accumulation=evidence.accumulation,
            batch_hash=evidence.batch_hash,
            step_seconds=evidence.step_seconds,
            tokens=evidence.tokens,
        )


def _positive(value: HostCopy | None) -> bool:
    return value is not None and float(value.get()) > 0
