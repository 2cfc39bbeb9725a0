"""Running a kept step's forward and backward again, without a trace in the training.

Gradients are computed by torch.autograd.grad: nothing is accumulated, so that parameters keep
their gradients, and no hook that listens to their accumulation runs, neither the guard's nor that
of DistributedDataParallel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ...digest import digest_rows
from ...signals.arithmetic import settings
from ...signals.batch import pinned
from ...signals.reading import read
from ...signals.restoration import Kept, ParameterWritten
from .generators import Generators
from .kept_step import FROZEN, KeptStep, MicroBatch
from .subject import Subject


class NotComparable(Exception):
    """A step cannot be run again so that a difference would mean anything.

    Args:
        reason: in words.
    """


class AuditFailed(Exception):
    """The function given as audit raised, or returned no loss.

    Args:
        what: in words.
    """


def in_words(error: Exception) -> str:
    """One line; the kind of an error only where it is not this package's own."""
    kind = "" if isinstance(error, (NotComparable, AuditFailed)) else f"{type(error).__name__}: "
    return " ".join(f"{kind}{error}".split())[:300]


@dataclass(frozen=True)
class Result:
    """What a step gave, bit for bit.

    Attributes:
        rows: digests of the gradients, bytes of int64 (parameters, 3); zeros without one.
        present: which parameters have a gradient.
        losses: of the micro-batches, float64; not compared.
    """

    rows: bytes
    present: tuple[bool, ...]
    losses: tuple[torch.Tensor, ...] = field(default=(), compare=False)

    @classmethod
    def of(
        cls, rows: torch.Tensor, present: Sequence[bool], losses: Sequence[torch.Tensor] = ()
    ) -> Result:
        """From digests of those that are present; waits for their device."""
        here = tuple(loss.cpu() for loss in losses)
        return cls(rows.cpu().numpy().tobytes(), tuple(present), here)

    def differing(self, other: Result, names: Sequence[str]) -> list[str]:
        """Names of the gradients that are not the same."""
        mine, theirs = self._by_place(), other._by_place()
        return [name for place, name in enumerate(names) if mine.get(place) != theirs.get(place)]

    def _by_place(self) -> dict[int, bytes]:
        places = [place for place, is_there in enumerate(self.present) if is_there]
        return {place: self.rows[24 * i : 24 * i + 24] for i, place in enumerate(places)}


def original_of(kept: KeptStep) -> Result:
    """What the training itself computed."""
    return Result.of(kept.gradients.rows, kept.gradients.present)


@contextlib.contextmanager
def put_back_after(subject: Subject, by_value: Collection[str]) -> Iterator[None]:
    """Within the block the model's state may be set and run; after it, it is what it was.

    Args:
        by_value: names of parameters that a forward writes to.

    Raises:
        ParameterWritten: the block wrote to others; that stays.
    """
    now, outside = Kept(subject.model, by_value), subject.outside()
    try:
        yield
    finally:
        try:
            now.put_back()
        finally:
            outside.put_back()


def rewind(kept: KeptStep) -> None:
    """Set the state before the step; within `put_back_after`, as often as it is run.

    Raises:
        NotComparable: parameters or settings are not what they were.
    """
    try:
        kept.before.put_back()
    except ParameterWritten as error:
        names = ", ".join(error.names[:3])
        raise NotComparable(f"the script wrote to {names} between forward and step") from None
    kept.outside.put_back()
    weights = kept.weights
    if weights is not None and not torch.equal(digest_rows(kept.subject.state), weights):
        raise NotComparable("parameters changed between forward and step")
    if kept.subject.trained != kept.trained:
        raise NotComparable(FROZEN)
    if read(settings()) != kept.settings:
        raise NotComparable("torch's settings changed between forward and step")


class Watching(Protocol):
    """Knows of the calls of the model."""

    def first_call(self) -> Generators | None:
        """The generators at the first call since the last time this was asked, if they count."""

    def inputs(self) -> list[torch.Tensor | None]:
        """Digests of what each call since the last time was given; None for one of no tensor."""


def run_again(kept: KeptStep, watching: Watching) -> Result:
    """One replay here; within `put_back_after`.

    Args:
        watching: the model.

    Raises:
        NotComparable: the replay did not follow the path of the step.
        Exception: whatever the loss function raises.
    """
    rewind(kept)
    steps = Steps(kept.subject, kept.gradients.in_place, kept.scale)
    for number, micro in enumerate(kept.micro_batches):
        if number == kept.gradients.dropped:
            steps.drop()
        micro.generators.put()
        watching.first_call()
        watching.inputs()
        steps.add(micro.batch, micro)
        inputs, begun = watching.inputs(), watching.first_call()
        if len(inputs) != len(micro.inputs):
            raise NotComparable(
                f"the script called the model {len(micro.inputs)} times for a batch, and "
                f"audit(model, batch) {len(inputs)} times"
            )
        if begun is not None and begun.different(micro.at_forward):
            raise NotComparable(
                "the loss function draws random numbers before it calls the model, and between "
                "two steps something else drew from the same generator"
            )
        if not all(map(_equal, inputs, micro.inputs)):
            raise NotComparable(
                "audit(model, batch) gives the model another input than the script did: it makes "
                "another one, or the batch was changed before guard.observe(loss, batch)"
            )
    return steps.result()


def _equal(one: torch.Tensor | None, two: torch.Tensor | None) -> bool:
    if one is None or two is None:
        return one is two
    return torch.equal(one, two)


def _loss_of(subject: Subject, batch: Any) -> torch.Tensor:
    """What the function given as audit returns.

    Raises:
        AuditFailed: that is no loss, or it raised.
    """
    try:
        loss: Any = subject.loss_fn(subject.model, batch)
    except Exception as error:  # because the script's function may raise anything
        raise AuditFailed(f"it raised {in_words(error)}") from error
    if not isinstance(loss, torch.Tensor):
        raise AuditFailed(f"it returned {type(loss).__name__}, no tensor")
    if loss.numel() != 1:
        raise AuditFailed(f"it returned a tensor of shape {tuple(loss.shape)}, no scalar")
    if not loss.requires_grad:
        raise AuditFailed("it returned a tensor without a gradient")
    return loss


class Steps:
    """Micro-batches, one after the other, and the sum of their gradients.

    Args:
        subject: what is run.
        in_place: which gradients are added to zeros, and not taken as they come.
        scale: of the loss, or None.
    """

    def __init__(
        self, subject: Subject, in_place: Sequence[bool], scale: torch.Tensor | None
    ) -> None:
        self._subject, self._in_place, self._scale = subject, in_place, scale
        self._sums: list[torch.Tensor | None] = [None] * len(subject.parameters)
        self._losses: list[torch.Tensor] = []

    def add(self, batch: Any, micro: MicroBatch) -> None:
        """Run one forward and backward; the generators are as its forward found them."""
        parameters = self._subject.parameters
        with torch.inference_mode(mode=False), torch.enable_grad():
            with micro.autocast.again():
                # a copy: the loss function may take the batch apart
                loss = _loss_of(self._subject, pinned(batch))
                self._losses.append(loss.detach().to(torch.float64).reshape(()))
                if self._scale is not None:
                    loss = loss * self._scale.to(loss.device)
            trained = [place for place, each in enumerate(parameters) if each.requires_grad]
            found = torch.autograd.grad(
                loss, [parameters[place] for place in trained], allow_unused=True
            )
        with torch.no_grad():
            for place, gradient in zip(trained, found, strict=True):
                if gradient is not None:
                    self._add(place, gradient.detach())

    def drop(self) -> None:
        """Forget what was added, as the script did."""
        self._sums = [None] * len(self._subject.parameters)

    def result(self) -> Result:
        """Of what was added."""
        there = [gradient for gradient in self._sums if gradient is not None]
        present = [gradient is not None for gradient in self._sums]
        return Result.of(digest_rows(there), present, self._losses)

    def _add(self, place: int, gradient: torch.Tensor) -> None:
        before = self._sums[place]
        if before is None and not self._in_place[place]:
            self._sums[place] = gradient
            return
        if gradient.layout is not torch.strided:
            raise NotComparable("gradients are sparse")
        # as the engine does it; a zero with a sign loses it there, too
        self._sums[place] = (torch.zeros_like(gradient) if before is None else before) + gradient
