"""Steps run again before they are applied, and compared by their gradients' digests."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from ..detect.alert import Alert
from ..detect.audit_plan import AlertBudget, is_chosen
from ..detect.ladder import Elsewhere, Repeats, judge, wants_another
from ..ranks import Ranks
from ..signals.restoration import ParameterWritten
from ..signals.shadow import LossFunction
from .audit_limits import hooks_on_gradients, why_never
from .audit_report import AuditReport
from .check import Check, Telling
from .elsewhere import Places
from .forward_hook import ForwardHook
from .kept_step import KeptStep
from .package import packed
from .prelude import Prelude
from .probe import written_in
from .step_replay import (
    NotComparable,
    Result,
    original_of,
    put_back_after,
    rewind,
    run_again,
)
from .subject import Subject

# about other things than what a step computed
_NO_CAUSE: Final = {"step_audit", "inherited", "loss_scale", "shadow_repeat"}
_TRIES: Final = 3  # steps that could not be looked at
_GIVEN_UP: Final = 3  # audits that differ without one that did not: this training does not repeat


class StepAudit(Check):
    """Runs forward and backward of some steps again.

    Args:
        telling: takes what is found.
        model, optimizers: as the guard was given them.
        ranks: this process among them.
        loss_fn: see Guard's argument audit.
        rate: probability with which a step is audited.
        report: tells, and keeps the ledger.
        attempt, first_step: of the run.
        always: whether each step is prepared, since an alert may come before it is applied.
        scale: of the loss in the newest backward, or None.
        places: where else steps are run; found by itself.
    """

    def __init__(
        self,
        telling: Telling,
        model: torch.nn.Module,
        optimizers: list[torch.optim.Optimizer],
        ranks: Ranks,
        loss_fn: LossFunction,
        rate: float,
        report: AuditReport,
        *,
        run: Path,
        attempt: int,
        first_step: int,
        always: bool,
        scale: Callable[[], torch.Tensor | None],
        places: Places | None = None,
    ) -> None:
        self._telling, self._report = telling, report
        self._model, self._optimizers, self._loss_fn = model, optimizers, loss_fn
        self._rate, self._attempt, self._first = rate, attempt, first_step
        self._always, self._scale = always, scale
        self._reduced = ranks.world_size > 1
        self._subject = Subject.of(model, optimizers, loss_fn)
        self._places = places or Places.of(self._subject, ranks, run, attempt)
        self._before = Repeats(deterministic=_deterministic(self._subject))
        self._budget = AlertBudget()
        self._next = first_step
        self._kept: KeptStep | None = None
        self._by_value: set[str] | None = None  # until the first step was looked at
        self._replaying = False
        self._prelude = Prelude(self._subject)
        self._unbegun = self._looks = 0
        self._forced, self._alerts = False, 0
        self._finding: tuple[Result, list[Result], list[Elsewhere]] | None = None
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
            self._prelude.take(outside=False)
        elif not self._off and self._is_chosen(step):
            self._report.not_comparable(step, _UNSEEN)

    def backward_ended(self, step: int) -> None:
        if self._kept is not None:
            self._kept.backward_ended(self._scale())

    def step_begins(self, step: int) -> None:
        self._finding, self._unbegun = None, -1
        kept = self._kept
        if kept is not None and self._by_value is None:
            self._look_at(kept, step)
            return
        chosen = not self._off and self._is_chosen(step)
        if chosen or (self._forced and kept is not None and not self._off):
            self._forced = False
            self._audit(step, kept, scheduled=chosen, alerted=False)

    def alerted(self, alert: Alert) -> None:
        if alert.severity != "suspect" or alert.detector in _NO_CAUSE or self._off:
            return
        if alert.step == self._next and self._kept is not None:
            self._alerts += 1
        elif not self._forced:  # that step is gone: the next one tells whether it goes on
            self._forced = self._budget.spend(self._next)

    def judged(self, step: int) -> None:
        if not self._alerts or self._off or self._by_value is None:
            return
        if self._finding is not None:  # it was run again already, before it was known
            original, here, elsewhere = self._finding
            finding = judge(original, here, elsewhere, self._before, alerted=True)
            self._report.audited(step, finding, len(here), [x.place for x in elsewhere], 0.0)
            if finding.verdict == "data or software":
                self._report.found(step, finding, [])
        elif self._kept is not None and self._budget.spend(step):
            self._audit(step, self._kept, scheduled=False, alerted=True)

    def step_ended(self, step: int) -> None:
        kept, self._kept = self._kept, None
        self._next, self._alerts = step + 1, 0
        self._finding = None
        if self._wanted(step + 1):
            self._prelude.take(outside=True)
        else:
            self._prelude.forget()
        if kept is not None:
            kept.close()
            self._unbegun += 1
            if self._unbegun >= _TRIES and self._scale() is None:  # a scaler may skip many
                self._give_up(step, _NO_BEGIN)

    def layers_changed(self) -> None:
        if not self._off:
            self._subject = Subject.of(self._model, self._optimizers, self._loss_fn)
            self._places = self._places.with_subject(self._subject)
            self._prelude, self._by_value = Prelude(self._subject), None  # to be looked at anew
            if self._kept is not None:
                self._kept.refuse("layers were added or replaced during the step")

    def close(self) -> None:
        self._hook.remove()
        if self._kept is not None:
            self._kept.close()
            self._kept = None
        self._places.close()
        self._report.close()

    def _forward_begins(self) -> None:
        """Called by the hook on the model."""
        if self._off:
            return
        try:
            if self._replaying:
                self._prelude.called()
                return
            if self._kept is None and self._wanted(self._next):
                self._kept = self._begun()
            if self._kept is not None:
                self._prelude.forward_begins(self._kept)
        except Exception as error:  # noqa: BLE001 - because it would surface in the script's forward
            self._kept, self._trouble = None, error

    def _begun(self) -> KeptStep:
        return KeptStep.begin(
            self._subject,
            self._by_value or (),
            self._prelude.outside(),
            reduced=self._reduced,
            cheap=not (self._forced or self._is_chosen(self._next)),
        )

    def _wanted(self, step: int) -> bool:
        if self._off:
            return False
        return self._by_value is None or self._always or self._forced or self._is_chosen(step)

    def _is_chosen(self, step: int) -> bool:
        return is_chosen(step, self._attempt, self._rate, self._first)

    def _look_at(self, kept: KeptStep, step: int) -> None:
        """At the first step: what a replay must know, and whether there may be any."""
        if kept.complete():
            self._looks += 1
            tell = self._report.not_comparable if self._looks < _TRIES else self._give_up
            tell(step, kept.why_not)
            return
        self._replaying = True
        self._prelude.look_begins()
        try:
            self._by_value = written_in(kept)
        except NotComparable as error:
            self._give_up(step, str(error))
        except Exception as error:  # noqa: BLE001 - because the script's function may raise anything
            self._by_value = set()  # not every operation runs while it is watched
            self._report.not_comparable(step, f"the first look at it failed: {_said(error)}")
        finally:
            self._replaying = False
            self._prelude.look_ended()

    def _audit(self, step: int, kept: KeptStep | None, *, scheduled: bool, alerted: bool) -> None:
        started = time.perf_counter()
        here: list[Result] = []
        package, reason = None, _UNSEEN
        self._replaying = True
        try:
            if kept is not None and not kept.complete():
                reason = ""
                with put_back_after(self._subject, kept.by_value):
                    original = original_of(kept)
                    while wants_another(original, here, self._before):
                        here.append(run_again(kept, self._prelude))
                    rewind(kept)
                    package = packed(kept) if self._places else None
            elif kept is not None:
                reason = kept.why_not
        except ParameterWritten as error:
            self._give_up(step, f"{error}, which it had not done at the first step")
            return
        except Exception as error:  # noqa: BLE001 - because the script's function may raise anything
            reason = str(error) if isinstance(error, NotComparable) else _said(error)
        try:
            seconds = (time.perf_counter() - started) / max(len(here), 1)
            rounds = self._places.ask(
                step, package, self._by_value or (), seconds, scheduled=scheduled,
                original=None if reason or kept is None else original_of(kept),
            )  # fmt: skip
        finally:
            self._replaying = False
        if reason or kept is None:
            self._report.not_comparable(step, reason)
            return
        self._judge(step, kept, here, rounds, alerted=alerted, started=started)

    def _judge(
        self,
        step: int,
        kept: KeptStep,
        here: list[Result],
        elsewhere: list[Elsewhere],
        *,
        alerted: bool,
        started: float,
    ) -> None:
        original = original_of(kept)
        finding = judge(original, here, elsewhere, self._before, alerted=alerted)
        self._finding = original, here, elsewhere
        repeated = all(result == original for result in here)
        if not repeated and kept.gradients.began_with_values:
            self._report.not_comparable(step, "gradients were not zero when the forward began")
            return
        matched, differed = self._before.matched, self._before.differed
        shown = self._before.shown
        deterministic = _deterministic(self._subject)
        self._before = Repeats(matched + repeated, differed + (not repeated), deterministic)
        self._places.learn(original, elsewhere)
        for reason in self._places.reasons():
            self._report.not_comparable(step, reason)
        others = [r for place in elsewhere for r in place.results if isinstance(r, Result)]
        odd = next((result for result in [*here, *others] if result != original), original)
        tensors = original.differing(odd, kept.subject.names)
        self._report.audited(
            step, finding, len(here), [place.place for place in elsewhere],
            time.perf_counter() - started,
        )  # fmt: skip
        if not repeated and not shown:
            self._not_shown(step)
            return
        if finding.differs or (alerted and finding.verdict == "data or software"):
            self._report.found(step, finding, tensors)

    def _not_shown(self, step: int) -> None:
        """A step differed, and that means nothing: perhaps no step of this training repeats."""
        hooks = hooks_on_gradients(self._subject)
        why = (
            "other hooks may write to gradients" if hooks else "its kernels, or a state of its own"
        )
        reason = (
            f"this training was not shown to repeat bit for bit here ({why}): "
            "torch.use_deterministic_algorithms(True), and see docs/verdicts.md"
        )
        if self._before.matched == 0 and self._before.differed >= _GIVEN_UP:
            self._give_up(step, reason)
        else:
            self._report.not_comparable(step, reason)

    def _give_up(self, step: int, reason: str) -> None:
        self._off = True
        self._report.not_comparable(step, f"{reason}; no step is audited any more")
        if self._kept is not None:
            self._kept.close()
            self._kept = None


_UNSEEN = (
    "the step's forward was not seen: give the Guard the module that the script calls, compiled by "
    "torch.compile(model) if at all"
)
_NO_BEGIN = "steps with a closure, and those inside of backward, are not run again"


def _said(error: Exception) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return f"running it again failed: {text}"


def _deterministic(subject: Subject) -> bool:
    """Whether a difference is unlikely to be the kernels' own."""
    return subject.device.type == "cpu" or torch.are_deterministic_algorithms_enabled()
