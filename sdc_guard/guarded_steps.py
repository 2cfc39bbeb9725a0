"""The steps of a guard: what it does from the beginning of each to its end.

The hooks on optimizers, the gradients' capture and the checks call it. What goes wrong here is
counted, and the training goes on.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import torch

from .attempt import Place, with_layers_of
from .checks.check import Checks
from .collector import Collector
from .consequences import Consequences
from .detect.alert import Alert
from .forks import generation
from .guard_archive import GuardArchive
from .pending import PendingEvidence
from .recorder import Recorder
from .safely import Safely
from .signals.capture import CaptureRequest
from .signals.limits import AT_THE_STEP, CAPTURING, PIPELINE, capturing
from .signals.pipeline import stage_numbers
from .signals.scaling import LossScale
from .signals.shadow import ShadowPass, ShadowResult
from .stepping import StepHooks, evaluates_first
from .store.writer import Health, Writer
from .watching import Watching

_log = logging.getLogger("sdc_guard")

_RECORDING = "recording a step"


class GuardedSteps:
    """What a guard does at each step; `Guard` makes its parts, and is what scripts call.

    Attributes:
        run: the run's folder, absolute.
        health: where troubles are counted.
    """

    run: Path
    health: Health
    _model: torch.nn.Module
    _optimizers: list[torch.optim.Optimizer]
    _place: Place  # of this process; another one when layers were added
    _archive: GuardArchive
    _checks: Checks
    _collector: Collector
    _consequences: Consequences
    _hooks: StepHooks
    _pending: PendingEvidence
    _recorder: Recorder
    _scale: LossScale
    _shadow: ShadowPass | None
    _shadow_every: int  # steps
    _request: CaptureRequest | None
    _watching: Watching
    _writer: Writer
    _step: int  # number of the step that runs now, or of the next one
    _stepped: bool  # whether any step was seen
    _emitted: bool  # whether there is evidence of the step that is open
    _closed: bool
    _too_early: bool  # whether gradients are not final when the backward ends
    _found: list[Alert]  # by checks, before the step that is open is applied
    _told: set[str]  # lines of what cannot be seen

    # what StepHooks tells

    def step_begins(self, optimizer: torch.optim.Optimizer, *, has_closure: bool) -> None:
        """A step begins; called by the hooks on the optimizers."""
        if not self._mine():
            return
        later = has_closure or self._hooks.in_backward
        self._consequences.decision_is_due(due=not later)
        try:
            self._look_again_if_changed()
            self._scale.look_around(optimizer)
            self._settle_skipped()
            self._emitted = False
            if not self._stepped:
                self._look_for_a_pipeline()
            # forward and backward of a closure are still to come, and to be watched
            if not (has_closure and evaluates_first(self._optimizers)):
                self._collector.find_state(self._step)
            if self._request:
                self._keep("before")
            if not later:
                self._collector.forward_ended()
                self._checks.step_begins(self._step)
                self._emit()
                self._checks.judged(self._step)
        except Exception as error:  # noqa: BLE001 - because the training goes on
            self.health.trouble(_RECORDING, error)
        if self._consequences.blocking:
            self._consequences.decide(self._abandon)

    def step_goes_on(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer steps inside of a backward; called by the hooks on the optimizers."""
        if not self._mine():
            return
        with self._safely(_RECORDING):
            self._watching.capture.wait_for_end()
            self._watching.capture.measure_now(
                {id(p) for g in optimizer.param_groups for p in g["params"]}
            )

    def closure_returned(self, loss: Any) -> None:
        """An optimizer's closure ran; called by the hooks on the optimizers."""
        if not self._mine():
            return
        self._consequences.decision_is_due(due=not self._emitted)
        with self._safely(_RECORDING):
            if not self._emitted:  # a line search calls it again, at other points
                self._collector.observe_closure(loss)
                self._emit()
        self._consequences.decide(self._abandon)

    def closure_raised(self) -> None:
        """An exception leaves an optimizer's closure; called by the hooks on the optimizers."""
        if not self._mine():
            return
        with self._safely(_RECORDING):
            if not self._emitted:  # at its first evaluation: no parameter has moved
                self._pending.append(self._collector.before(self._step, applied=False))
                self._emitted = True

    def step_ends(self) -> None:
        """A step ends; called by the hooks on the optimizers."""
        if not self._mine():
            return
        self._consequences.step_ended()
        # whatever goes wrong on this rank, the others wait for it in a sharded model's pass
        shadow = self._shadow_result()
        try:
            if not self._emitted:
                self._emit(stepped=True)
            self._watching.capture.reset()
            if self._request:
                self._keep("after")
            self._pending.append(self._collector.after(self._step, shadow))
            for note in self._collector.notes():
                self._recorder.event(self._step, "invariants", note)
            self._archive.step_ended()
            self._drain()
        except Exception as error:  # noqa: BLE001 - because the training goes on
            self.health.trouble(_RECORDING, error)
            with self._safely(_RECORDING):
                self._drain(wait=True)
            self._recorder.forget_state()  # the next step has nothing true to be compared with
        self._checks.step_ended(self._step)
        self._emitted, self._found = False, []
        self._step += 1
        self._stepped = True

    # what checks are told, and what they tell

    def _notice(self, alert: Alert) -> None:
        self._consequences.notice(alert)
        self._checks.alerted(alert)

    def report(self, alerts: list[Alert]) -> None:
        """Take what a check found; called by the guard's own checks."""
        with self._safely("reporting"):
            self._drain(wait=True)  # alerts are in the order of their steps
            self._found += alerts if self._hooks.open else []
            for step in sorted({alert.step for alert in alerts}):
                self._recorder.report(step, [alert for alert in alerts if alert.step == step])

    def event(self, step: int, kind: str, detail: str) -> None:
        """Record an event; called by the guard's own checks."""
        self._recorder.event(step, kind, detail)

    # what GradientCapture tells

    def _backward_begins(self) -> None:
        if not self._mine():
            return
        with self._safely(_RECORDING):
            self._settle()
            self._collector.backward_begins()

    def _backward_ended(self) -> None:
        if not self._mine():
            return
        with self._safely(_RECORDING):
            self._scale.backward_ended()
            if self._look_again_if_changed():
                self._watching.capture.measure_now()
            if not self._too_early:
                self._collector.backward_ended()
            if self._request:
                place = (self.run, self._place.rank, self._step, "before")
                self._request.keep(*place, self._collector.gradients())
            self._checks.backward_ended(self._step)
            self._hooks.backward_ended()

    def _mine(self) -> bool:
        """Whether this is the process that made the guard, and it still records.

        A forked process inherits the hooks and must not write into this run. Into a CUDA graph
        that is being captured nothing of the guard's may come.
        """
        if self._closed or self._place.generation != generation():
            return False
        if capturing():
            self._tell(CAPTURING)
            return False
        return True

    def _settle(self) -> None:
        """End a step that is over although not every hook told so."""
        if self._hooks.open or self._scale.may_skip:
            self._hooks.settle()
            self._settle_skipped()

    def _settle_skipped(self) -> None:
        """Record the step that a gradient scaler left out: it never called the optimizer."""
        if not self._scale.may_skip or self._hooks.open:
            return
        if not self._watching.capture.backwards or not self._scale.updated_since():
            return
        self._pending.append(self._collector.before(self._step, skipped=True, stepped=True))
        self._emitted = True
        self.step_ends()

    def _look_again_if_changed(self) -> bool:
        unfrozen = self._watching.capture.hook_new()
        if not self._watching.changed:
            return unfrozen
        self._look_again()
        return True

    def _look_again(self) -> None:
        """See parameters that were added, replaced or unfrozen."""
        self._drain(wait=True)  # what waits is in the order of the layers until now
        before = self._place.layer_names
        self._place = with_layers_of(self._place, self._model)
        self._watching.attach_again(self._place)
        now = self._place.layer_names
        if now != before:
            added = [now[number] for number in sorted(now.keys() - before.keys())]
            gone = [before[number] for number in sorted(before.keys() - now.keys())]
            detail = json.dumps({"added": added, "gone": gone})
            self._recorder.event(self._step, "layers changed", detail)
        self._checks.layers_changed()

    def _look_for_a_pipeline(self) -> None:
        """See a pipeline whose stage was made after the guard, before its first step."""
        if not self._too_early and stage_numbers(self._model):
            self._too_early = True
            self._tell(PIPELINE)

    def _emit(self, *, stepped: bool = False) -> None:
        """Make evidence of what was measured so far, and judge it as soon as it is there."""
        if self._too_early and not stepped:
            self._watching.capture.measure_again(reduced=self._watching.reduces)
        elif (
            not self._watching.capture.backwards
            and not stepped
            and self._watching.capture.measure_now()
        ):
            self._tell(AT_THE_STEP)
        self._emitted = True
        self._pending.append(self._collector.before(self._step, stepped=stepped))
        if self._consequences.blocking or self._collector.urgent or self._collector.digests_all:
            self._drain()

    def _leave_out(self, alerts: list[Alert], broken: bool) -> bool:
        """Whether these alerts, broken gradients or another rank leave the open step out."""
        alerts = [*self._found, *alerts]
        if not self._hooks.open or not self._consequences.leave_out(alerts, broken=broken):
            return False
        if broken and not alerts:
            self._recorder.event(self._step, "skip", "gradients are still not finite")
        if self._consequences.other_rank is not None:
            alerting = f"rank {self._consequences.other_rank} has an alert"
            self._recorder.event(self._step, "skip", alerting)
        return True

    def _abandon(self) -> None:
        self._hooks.abandon()
        self.step_ends()  # it has its number, and its row is marked as skipped
        self._writer.flush(5.0)

    def _shadow_result(self) -> ShadowResult | None:
        if self._shadow is None or self._step % self._shadow_every:
            return None
        with self._safely("the shadow pass"):
            return self._shadow(self._model)
        return None

    def _drain(self, *, wait: bool = False) -> None:
        """Record the evidence whose copies have arrived, in order; all of it when waiting."""
        self._pending.judge(wait=wait or self._consequences.blocking)

    def _keep(self, phase: str) -> None:
        if self._request:
            place = (self.run, self._place.rank, self._step, phase)
            self._request.keep(*place, self._collector.state.tensors())

    def _tell(self, line: str) -> None:
        """Say once what cannot be seen, in the log and in the run."""
        if line in self._told:
            return
        self._told.add(line)
        _log.warning("SDC Guard: %s", line)
        self._recorder.event(self._step, "capture", line)

    def _safely(self, where: str) -> Safely:
        return Safely(self.health, where)
