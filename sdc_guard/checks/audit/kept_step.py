"""What a step needs to be run again, taken while it runs."""

from __future__ import annotations

import weakref
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from ...digest import digest_rows
from ...signals.arithmetic import settings
from ...signals.batch import batch_digest
from ...signals.reading import read
from ...signals.restoration import Kept
from .generators import Generators
from .local_gradients import LocalGradients
from .outside import Outside
from .subject import Subject
from .surroundings import Autocast

FROZEN: Final = "the script froze or unfroze parameters during the step"


@dataclass
class MicroBatch:
    """One forward and backward of a step.

    Attributes:
        generators: as they were when the loss function began.
        at_forward, autocast: as they were when the model was called.
        inputs: digests of what the model was given at each call; None for one of no tensor.
        batch: as it was given to observe(), by reference; `digest` is of its content then.
        loss: float64 of the exact value, or None.
    """

    generators: Generators
    at_forward: Generators
    autocast: Autocast
    inputs: list[torch.Tensor | None] = field(default_factory=list)
    batch: Any = None
    digest: torch.Tensor | None = None
    loss: torch.Tensor | None = None

    @property
    def unchanged(self) -> bool:
        """Whether the batch is still what was observed."""
        now = batch_digest(self.batch)
        return now is not None and self.digest is not None and torch.equal(now, self.digest)


@dataclass
class KeptStep:
    """A step that may be run again; made when its first forward begins.

    Attributes:
        subject: what is run.
        by_value: names of parameters that the forward itself writes to.
        before: the model, its attributes, buffers and the generators.
        outside: state that functions keep outside of the model.
        weights: digests of all parameters, int64 (parameters, 3); None where it has to be cheap:
            then only what torch itself counts as a write to them is noticed.
        settings: torch's.
        trained: which parameters require a gradient.
        micro_batches: observed so far.
        gradients: what the backwards gave, by their digests.
        scale: of the loss.
        why_not: why it cannot be compared, "" if it can as far as is known.
    """

    subject: Subject
    before: Kept
    outside: Outside
    weights: torch.Tensor | None
    settings: dict[str, Any]
    trained: list[bool]
    gradients: OriginalGradients
    by_value: Collection[str] = ()
    micro_batches: list[MicroBatch] = field(default_factory=list)
    scale: torch.Tensor | None = None
    why_not: str = ""
    _open: MicroBatch | None = None

    @classmethod
    def begin(
        cls,
        subject: Subject,
        by_value: Collection[str],
        outside: Outside,
        *,
        reduced: bool,
        cheap: bool,
    ) -> KeptStep:
        """Keep what is now, before anything of the step was computed.

        Args:
            by_value: names of parameters that the forward itself writes to.
            outside: state outside of the model, before the loss function began.
            reduced: whether other ranks' gradients are added in backward.
            cheap: whether parameters are not digested.
        """
        return cls(
            subject,
            Kept(subject.model, by_value),
            outside,
            None if cheap else digest_rows(subject.state),
            read(settings()),
            subject.trained,
            OriginalGradients(subject, reduced=reduced),
            tuple(by_value),
        )

    def forward_begins(
        self, early: Generators | None, drawn: Collection[str], given: torch.Tensor | None
    ) -> None:
        """The model is called; the first time since the last batch, a micro-batch begins.

        Args:
            early: the generators after the micro-batch before, if it is known.
            drawn: names of those from which the loss function draws before it calls the model.
            given: digests of what the model is given.
        """
        if self._open is None:
            devices = self.subject.devices
            now = Generators.now(devices)
            start = now if early is None else now.with_those_of(early, drawn)
            self._open = MicroBatch(start, now, Autocast.now(devices))
            if self.subject.trained != self.trained:
                self.refuse(FROZEN)
            self.gradients.forward_begins()
        self._open.inputs.append(given)

    def observed(self, loss: Any, batch: Any) -> None:
        """The script gave the loss and the batch of the micro-batch that was open."""
        micro, self._open = self._open, None
        if micro is None:
            self.refuse("guard.observe(loss, batch) was called without a forward before it")
            return
        micro.batch, micro.digest = batch, batch_digest(batch)
        if isinstance(loss, torch.Tensor):
            micro.loss = loss.detach().to(torch.float64, copy=True).reshape(())
        if micro.digest is None:
            self.refuse("guard.observe(loss, batch) was not given a batch with tensors")
        self.micro_batches.append(micro)

    def backward_ended(self, scale: torch.Tensor | None) -> None:
        """A backward ended; its gradients are not yet clipped."""
        self.scale = scale
        why_not = self.gradients.backward_ended()
        if why_not:
            self.refuse(why_not)

    def refuse(self, why_not: str) -> None:
        """It cannot be compared; the first reason counts."""
        self.why_not = self.why_not or why_not

    def complete(self) -> str:
        """Why the step that is about to be applied cannot be compared; "" if it can."""
        if not self.micro_batches and not self.why_not:
            self.refuse("the script did not call guard.observe(loss, batch) before the step")
        if self._open is not None:
            self.refuse("the model was called once more, after the last guard.observe()")
        if len(self.micro_batches) != self.gradients.backwards:
            self.refuse(
                f"{len(self.micro_batches)} batches were observed and {self.gradients.backwards} "
                "backwards seen: give guard.observe(loss, batch) each micro-batch"
            )
        if not all(micro.unchanged for micro in self.micro_batches):
            self.refuse("the script changed a batch after guard.observe()")
        return self.why_not

    def close(self) -> None:
        """Let go of hooks."""
        self.gradients.close()


class OriginalGradients:
    """Digests of a step's gradients where they are whole and neither reduced nor clipped.

    Args:
        subject: whose parameters are meant.
        reduced: whether other ranks' gradients are added in backward: then they are read in hooks.
    """

    def __init__(self, subject: Subject, *, reduced: bool) -> None:
        self._parameters = subject.parameters
        self._local = LocalGradients(subject.parameters) if reduced else None
        before = [parameter.grad for parameter in self._parameters]
        self._held = [
            grad.detach().any()
            for grad in before
            if grad is not None and grad.layout is torch.strided
        ]
        self._trained = subject.trained
        self._seen = _references(before)
        self._versions: list[int] = []
        self._ended_reduced = False
        self.backwards = self.dropped = 0  # all, and those whose gradients the script dropped
        self.rows = torch.empty((0, 3), dtype=torch.int64)
        self.present: list[bool] = []
        self.in_place = [False] * len(self._parameters)

    @property
    def began_with_values(self) -> bool:
        """Whether gradients of before may be in: not all were zero when the forward began."""
        return any(self.in_place) and any(bool(held) for held in self._held)

    def forward_begins(self) -> None:
        """A micro-batch begins: where all gradients of those before were dropped, anew."""
        if self.backwards and all(parameter.grad is None for parameter in self._parameters):
            self.dropped, self._ended_reduced = self.backwards, False
            self._seen = [None] * len(self._parameters)

    def backward_ended(self) -> str:
        """Read the gradients; returns why they cannot be compared, or ""."""
        self.backwards += 1
        # a frozen parameter may keep a gradient of before, which is no result of this step
        now = [
            parameter.grad if trained else None
            for parameter, trained in zip(self._parameters, self._trained, strict=True)
        ]
        if any(grad is not None and grad.layout is not torch.strided for grad in now):
            return "gradients are sparse"
        is_first = self.backwards == self.dropped + 1
        why_not = "" if is_first else self._accumulated(now)
        if is_first:
            self.in_place = [
                grad is not None and seen is not None and seen() is grad
                for grad, seen in zip(now, self._seen, strict=True)
            ]
        self._seen = _references(now)
        self._versions = [-1 if grad is None else grad._version for grad in now]
        self.present = [grad is not None for grad in now]
        grads = [grad.detach() for grad in now if grad is not None]
        if self._local is None:
            self.rows = digest_rows(grads)
            return why_not
        self.rows = self._local.rows(self.present)
        self._ended_reduced = not torch.equal(self.rows, digest_rows(grads))
        return why_not

    def _accumulated(self, now: list[torch.Tensor | None]) -> str:
        if self._ended_reduced:
            return "gradients are reduced after each micro-batch: use no_sync() until the last one"
        kept = [
            (grad, version)
            for grad, seen, version in zip(now, self._seen, self._versions, strict=True)
            if seen is not None and seen() is grad and grad is not None
        ]
        if len(kept) < sum(seen is not None for seen in self._seen):
            return "gradients of an earlier backward of this step were dropped or replaced"
        if self._local is None and all(grad._version > version + 1 for grad, version in kept):
            return "the script wrote to the gradients between two backwards of this step"
        return ""

    def close(self) -> None:
        """Let go of hooks."""
        if self._local is not None:
            self._local.remove()


def _references(grads: list[torch.Tensor | None]) -> list[weakref.ref[torch.Tensor] | None]:
    # weak ones: a script that drops its gradients shall get their memory
    return [None if grad is None else weakref.ref(grad) for grad in grads]
