"""Which steps are run again, and what has to be taken of them while they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from ...detect.alert import Alert
from ...detect.audit_plan import AlertBudget, is_chosen
from ...signals.shadow import LossFunction
from ..check import Check
from .elsewhere import Places
from .forward_hook import ForwardHook
from .kept_step import KeptStep
from .limits import why_never
from .report import DETECTOR, AuditReport
from .run import UNSEEN, AuditRun, GiveUp
from .subject import Subject

# about other things than what a step computed
_NO_CAUSE: Final = {
    DETECTOR,
    "inherited",
    "loss_scale",
    "peer_steps",
    "shadow_jump",
    "shadow_nonfinite",
    "shadow_repeat",
    "shadow_rise",
}
_TRIES: Final = 3  # steps that could not be looked at
_NO_BEGIN: Final = "steps with a closure, and those inside of backward, are not run again"


class StepAudit(Check):
    """Runs forward and backward of some steps again, before they are applied.

    Args:
        model, optimizers: as the guard was given them.
        loss_fn: see Guard's argument audit.
        rate: probability with which a step is audited.
        report: tells what is found.
        places: makes the other places where steps are run.
        attempt, first_step: of the run.
        reduced: whether other ranks' gradients may be added in backward.
        always: whether each step is prepared, since an alert may come before it is applied.
        scale: of the loss in the newest backward, or None.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: list[torch.optim.Optimizer],
        loss_fn: LossFunction,
        rate: float,
        report: AuditReport,
        *,
        places: Callable[[Subject], Places],
        attempt: int,
        first_step: int,
        reduced: bool,
        always: bool,
        scale: Callable[[], torch.Tensor | None],
    ) -> None:
        self._model, self._optimizers, self._loss_fn = model, optimizers, loss_fn
        self._rate, self._attempt, self._first = rate, attempt, first_step
        self._reduced, self._always, self._scale = reduced, always, scale
        self._report = report
        self._subject = Subject.of(model, optimizers, loss_fn)
        self._places = places(self._subject)
        self._run = AuditRun(self._subject, self._places, report)
        self._budget = AlertBudget()
        self._next = first_step
        self._kept: KeptStep | None = None
        self._unbegun = self._looks = 0
        self._forced, self._alerts = False, 0
        self._trouble: Exception | None = None
        self._off = False
        self._hook = ForwardHook(self._subject.model, self._forward_begins)
        never = why_never(model, self._subject)
        if never:
            self._give_up(first_step, never)

    def observed(self, step: int, loss: Any, batch: Any) -> None:
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            raise trouble
        if self._kept is not None:
            self._kept.observed(loss, batch)
            self._run.prelude.take(outside=False)
        elif not self._off and self._is_chosen(step):
            self._report.not_comparable(step, UNSEEN)

    def backward_ended(self, step: int) -> None:
        if self._kept is not None:
            self._kept.backward_ended(self._scale())

    def step_begins(self, step: int) -> None:
        self._unbegun = -1
        kept = self._kept
        if self._off:
            return
        if kept is not None and self._run.written is None:
            self._look_at(kept, step)
            return
        chosen = self._is_chosen(step)
        if chosen or (self._forced and kept is not None):
            self._forced = False
            self._audit(step, scheduled=chosen, alerted=False)

    def alerted(self, alert: Alert) -> None:
        if alert.severity != "suspect" or alert.detector in _NO_CAUSE or self._off:
            return
        if alert.step == self._next and self._kept is not None:
            self._alerts += 1
        elif not self._forced:  # that step is gone: the next one tells whether it goes on
            self._forced = self._budget.spend(self._next)

    def judged(self, step: int) -> None:
        if not self._alerts or self._off or self._run.written is None:
            return
        if not self._run.suspected(step) and self._kept is not None and self._budget.spend(step):
            self._audit(step, scheduled=False, alerted=True)

    def step_ended(self, step: int) -> None:
        kept, self._kept = self._kept, None
        self._next, self._alerts = step + 1, 0
        self._run.forget()
        if self._wanted(step + 1):
            self._run.prelude.take(outside=True)
        else:
            self._run.prelude.forget()
        if kept is not None:
            kept.close()
            self._unbegun += 1
            if self._unbegun >= _TRIES and self._scale() is None:  # a scaler may skip many
                self._give_up(step, _NO_BEGIN)

    def layers_changed(self) -> None:
        if not self._off:
            self._subject = Subject.of(self._model, self._optimizers, self._loss_fn)
            self._run.with_subject(self._subject)
            if self._kept is not None:
                self._kept.refuse("layers were added or replaced during the step")

    def close(self) -> None:
        self._hook.remove()
        if self._kept is not None:
            self._kept.close()
            self._kept = None
        self._places.close()
        self._report.close()
        self._report.raise_lost()

    def _forward_begins(self, given: Any) -> None:
        """Called by the hook on the model, with what the model is given."""
        if self._off:
            return
        try:
            if self._run.busy:
                self._run.prelude.called(given)
                return
            if self._kept is None and self._wanted(self._next):
                self._kept = self._begun()
            if self._kept is not None:
                self._run.prelude.forward_begins(self._kept, given)
        except Exception as error:  # noqa: BLE001 - because it would surface in the script's forward
            self._kept, self._trouble = None, error

    def _begun(self) -> KeptStep:
        return KeptStep.begin(
            self._subject,
            self._run.written or (),
            self._run.prelude.outside(),
            reduced=self._reduced,
            cheap=not (self._forced or self._is_chosen(self._next)),
        )

    def _wanted(self, step: int) -> bool:
        if self._off:
            return False
        return self._run.written is None or self._always or self._forced or self._is_chosen(step)

    def _is_chosen(self, step: int) -> bool:
        return is_chosen(step, self._attempt, self._rate, self._first)

    def _look_at(self, kept: KeptStep, step: int) -> None:
        """At the first step: what a replay must know, and whether there may be any."""
        if kept.complete():
            self._looks += 1
            tell = self._report.not_comparable if self._looks < _TRIES else self._give_up
            tell(step, kept.why_not)
            return
        try:
            self._run.look(step, kept)
        except GiveUp as error:
            self._give_up(step, str(error))

    def _audit(self, step: int, *, scheduled: bool, alerted: bool) -> None:
        try:
            self._run(step, self._kept, scheduled=scheduled, alerted=alerted)
        except GiveUp as error:
            self._give_up(step, str(error))
        self._report.raise_lost()  # counted, and told, by the guard

    def _give_up(self, step: int, reason: str) -> None:
        self._off = True
        self._report.not_comparable(step, f"{reason}; no step is audited any more")
        if self._kept is not None:
            self._kept.close()
            self._kept = None
