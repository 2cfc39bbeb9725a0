"""Gathering one step's evidence in the training process, without waiting for anything."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch

from .detect.carried import DigestTable, Key, changed
from .digest import Place
from .digest.reference import stack_rows
from .evidence import (
    AfterStep,
    BeforeStep,
    Counters,
    Gradients,
    HeldNumbers,
    HeldRows,
    HostCopy,
    ThreadRows,
)
from .signals.batch import digest_of, tensors_in
from .signals.buffers import CarriedBuffers
from .signals.counters import CounterPair, StepCounters
from .signals.fused_cpu import no_nonfinite_at
from .signals.gradient_digests import GradientDigests
from .signals.gradient_table import Measured
from .signals.gradients import GradientCapture
from .signals.optimizer_audit import OptimizerAudit
from .signals.overlap import Overlap
from .signals.rotation import Rotation
from .signals.scaling import LossScale
from .signals.shadow import ShadowResult
from .signals.state import NO_DIGESTS, CarriedState, PendingDigests, digest_state, joined

_NO_ROWS = HostCopy(NO_DIGESTS.rows)


class Collector:
    """What was observed since the last step, until a step makes evidence of it.

    Args:
        optimizers: of one guard.
        scale: of the loss.
        rotation: which digests of the state are taken, and when step counters are read.
        gradients: takes the digests of gradients, if they are asked for.
        overlap: takes those of the state beside the training, if that is asked for.
    """

    capture: GradientCapture
    state: CarriedState
    counters: StepCounters

    def __init__(
        self,
        optimizers: list[torch.optim.Optimizer],
        scale: LossScale,
        rotation: Rotation,
        gradients: GradientDigests | None = None,
        overlap: Overlap | None = None,
    ) -> None:
        self._optimizers = optimizers
        self._gradients, self._overlap = gradients, overlap
        self._buffers: CarriedBuffers | None = None
        self._rewritten: list[CounterPair] = []
        self._scale, self._rotation = scale, rotation
        self._audits: list[OptimizerAudit] = []
        self._clock: float | None = None
        self._losses: list[torch.Tensor | float] = []
        self._batches: list[HostCopy] = []
        self._tokens: list[int] = []
        self._carried: list[Key] = []
        self._found: PendingDigests | None = None
        self._left: PendingDigests | None = None
        self.digests_all = rotation.whole  # every tensor of the state, at every step
        self.urgent = False  # to be judged at once

    def watch(
        self,
        capture: GradientCapture,
        state: CarriedState,
        audits: list[OptimizerAudit],
        buffers: CarriedBuffers | None = None,
    ) -> None:
        """Set what is watched: once more when parameters were added or replaced.

        Args:
            capture: of the gradients.
            state: whose digests are carried from step to step.
            audits: of the optimizers' invariants.
            buffers: whose digests are taken beside those of the state.
        """
        self.remove()
        self._buffers = buffers
        capture.most_is_done = self._most_is_done if self._overlap is not None else None
        self.capture, self.state, self._audits = capture, state, audits
        # what was left is nothing to be compared with where parameters are other ones
        self.counters, self._rewritten = StepCounters(state.owned, self._rotation), []
        self._carried = [key for key in self._carried if key in state.sizes()]

    def remove(self) -> None:
        """Remove the hooks on the model, and have nothing read any more."""
        if self._overlap is not None:
            self._overlap.cancel()
        if self._buffers is not None:
            self._buffers.remove()

    def held(self, key: Key) -> tuple[torch.Tensor, Place] | None:
        """This rank's part of a digested tensor as it was found, and where it is in the whole."""
        if self._buffers is not None and (changed := self._buffers.changed_tensor(key)) is not None:
            return changed, 0
        return self.state.held(key)

    def observe(self, loss: Any, batch: Any) -> None:
        """Take a loss, a scalar tensor or number, and a batch."""
        self._losses.append(_scalar(loss))
        tensors = tensors_in(batch)
        digest = digest_of(tensors)
        if digest is not None:
            self._batches.append(
                HeldRows(digest) if isinstance(digest, bytes) else HostCopy(digest)
            )
            self._tokens.append(tensors[0].numel())

    def forget(self, backwards: int) -> None:
        """Forget what was observed of backwards whose gradients the script has dropped.

        What was observed beyond them belongs to the backward that begins now.
        """
        for observed in (self._losses, self._batches, self._tokens):
            del observed[:backwards]

    def observe_closure(self, loss: Any) -> None:
        """Take the loss that a closure returned, unless the script gave its own."""
        if not self._losses and (isinstance(loss, float) or _is_scalar(loss)):
            self._losses.append(_scalar(loss))

    @property
    def watched(self) -> float | None:
        """See `Overlap.watched`."""
        return None if self._overlap is None else self._overlap.watched

    def backward_begins(self) -> None:
        """A backward begins: the state is at rest until the optimizer steps."""
        self.forward_ended()
        if self._overlap is not None and self._found is None and self._to_digest() != []:
            self._overlap.backward_begins(self.capture.backwards, self._tensors, self.state.offsets)

    def forward_ended(self) -> None:
        """The forwards of a step are over, as far as can be told."""
        if self._buffers is not None:
            self._buffers.forward_ended()

    def _most_is_done(self) -> None:
        if self._overlap is not None and self._found is None and self._to_digest() != []:
            self._overlap.most_of_backward(
                self.capture.backwards, self._tensors, self.state.offsets
            )

    def backward_ended(self) -> None:
        """A backward ended: gradients are reduced, and not yet clipped."""
        if self._gradients is not None:
            self._gradients.take(self.capture)

    def gradients(self) -> dict[Key, torch.Tensor]:
        """The gradients whose digests are taken."""
        return {} if self._gradients is None else self._gradients.tensors(self.capture)

    def find_state(self, step: int) -> None:
        """Digest the state that the step before left, as it is found now."""
        self._rewritten = self.counters.find()
        for audit in self._audits:
            audit.before(step)
        self.urgent = any(_in_host(pair) for pair in self._rewritten)
        if self._to_digest() == []:
            self._found = NO_DIGESTS
            return
        tensors = self._tensors()
        early = None
        if self._overlap is not None:
            early = self._overlap.found(self.capture.backwards, tensors)
        self._found = self._digest(tensors) if early is None else self._confirmed(early, tensors)
        # to be judged while the tensors are as they were found: it names the element then
        self.urgent = self.urgent or _differ(self._left, self._found)

    def before(
        self, step: int, *, skipped: bool = False, stepped: bool = False, applied: bool = True
    ) -> BeforeStep:
        """Evidence of a step, from what was measured and observed since the last one.

        Args:
            step: its number.
            skipped: whether a scaler left it out.
            stepped: whether optimizers have done it already.
            applied: False if an exception ended it before that.
        """
        if self._found is None and stepped and not skipped:
            self._found = NO_DIGESTS  # looking for it failed, and by now it is another one
        if self._found is None:
            self.find_state(step)
        found, self._found = self._found, None
        assert found is not None
        if self._buffers is not None:
            found = joined((found, self._buffers.before()))
            self.urgent = self.urgent or self._buffers.urgent
        if self._gradients is not None:
            found = joined((found, self._gradients.of_step(self.capture, stepped=stepped)))
        now = time.time()
        seconds, self._clock = None if self._clock is None else now - self._clock, now
        if seconds is not None:
            self._rotation.step_took(seconds)
        losses, self._losses = self._losses, []
        # sharded gradients that are not yet reduced fire no hook in their backward
        accumulation = max(self.capture.backwards, len(losses), 1)
        batches, self._batches = tuple(self._batches), []
        tokens, self._tokens = sum(self._tokens), []
        measured = self.capture.take(stepped=stepped)
        self.urgent = self.urgent or not (_are_finite(measured) and _losses_are_finite(losses))
        counters, self._rewritten = _counters(self._rewritten), []
        scale = self._scale.value()
        found_inf = None if skipped else self._scale.found_inf(self._optimizers)
        return BeforeStep(
            step=step,
            time=now,
            step_seconds=seconds,
            lr=_learning_rate(self._optimizers[0]),
            gradients=tuple(
                [Gradients(part.rows, HostCopy(part.sums), part.reduced) for part in measured]
            ),
            losses=_copies(losses) if losses else None,
            accumulation=accumulation,
            batches=batches,
            tokens=tokens or None,
            digests=found,
            digest_rows=_rows(found),
            scale=None if scale is None else HostCopy(scale),
            found_inf=None if found_inf is None else HostCopy(found_inf),
            skipped=skipped,
            applied=applied,
            counters=counters,
        )

    def after(self, step: int, shadow: ShadowResult | None) -> AfterStep:
        """Evidence of what a step left behind."""
        miscounted = self.counters.leave()
        self.urgent = self.urgent or any(_in_host(pair) for pair in miscounted)
        sizes = self.state.sizes()
        self._carried = self._rotation.choose(self.state.keys, sizes)
        carried = self._carried
        digests, rows = self._left_digests(self.state.tensors(carried) if carried else {})
        losses = None if shadow is None else HostCopy(shadow.losses)
        batch = None if shadow is None or shadow.batch is None else HostCopy(shadow.batch)
        audits = tuple(
            (pending, HostCopy(pending.rows))
            for audit in self._audits
            if (pending := audit.after(step)) is not None
        )
        counters = _counters(miscounted)
        return AfterStep(step, digests, rows, shadow, losses, batch, audits, counters)

    def notes(self) -> list[str]:
        """What the optimizers' invariants do not cover, each once."""
        return [note for audit in self._audits for note in audit.take_notes()]

    def missing_from(self, held: set[Key]) -> PendingDigests:
        """Digests of the state that is not in `held`."""
        rest = {key: tensor for key, tensor in self.state.tensors().items() if key not in held}
        return digest_state(rest, self.state.offsets)

    def _to_digest(self) -> list[Key] | None:
        """What the next step is compared by; None for everything."""
        return None if self._rotation.whole else self._carried

    def _tensors(self) -> dict[Key, torch.Tensor]:
        return self.state.tensors(self._to_digest())

    def _confirmed(self, early: PendingDigests, tensors: dict[Key, torch.Tensor]) -> PendingDigests:
        """Take again what differs: the script may have written to it while it was read, and put
        it back since."""
        left = self._left
        if early.rows.is_cpu and self._overlap is not None:
            self._digested(tensors, self._overlap.took)
        if left is None or not (early.rows.is_cpu and left.rows.is_cpu):
            return early
        tables = [DigestTable(x.keys, x.rows.numpy()) for x in (left, early)]
        for key, _, place in changed(tables[0], tables[1]):
            early.rows[place] = digest_state({key: tensors[key]}, self.state.offsets).rows[0]
        return early

    def _left_digests(self, tensors: dict[Key, torch.Tensor]) -> tuple[PendingDigests, HostCopy]:
        """Of what a step left, with the copy of their rows; those of moments may come later."""
        buffers = NO_DIGESTS if self._buffers is None else self._buffers.after()
        job = None
        if self._overlap is not None:
            job = self._overlap.left(tensors, self.state.offsets)
        if job is None:
            self._left = self._digest(tensors)
            digests = joined((self._left, buffers))
            return digests, _rows(digests)
        self._left = PendingDigests(tuple(tensors), job.rows)
        keys = PendingDigests((*tensors, *buffers.keys), job.rows)
        return keys, ThreadRows(job, _rows(buffers))

    def _digest(self, tensors: dict[Key, torch.Tensor]) -> PendingDigests:
        started = time.perf_counter()
        digests = digest_state(tensors, self.state.offsets)
        if tensors and digests.rows.device.type == "cpu":
            self._digested(tensors, time.perf_counter() - started)
        return digests

    def _digested(self, tensors: dict[Key, torch.Tensor], seconds: float) -> None:
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        self._rotation.digested(len(tensors), size, seconds)


def _differ(left: PendingDigests | None, found: PendingDigests) -> bool:
    if left is None or not found.rows.is_cpu or left.keys != found.keys:
        return False
    return not torch.equal(left.rows, found.rows)


def _in_host(pair: CounterPair) -> bool:
    """Whether counters are known by now not to be what they should be."""
    return isinstance(pair.bits, np.ndarray)


def _counters(pairs: list[CounterPair]) -> tuple[Counters, ...]:
    return tuple([Counters(pair, HostCopy(pair.bits)) for pair in pairs]) if pairs else ()


def _scalar(loss: Any) -> torch.Tensor | float:
    # a copy: the script may change its own tensor in place
    if not isinstance(loss, torch.Tensor):
        return float(loss)
    if loss.is_cpu:
        return loss.item()
    return loss.detach().to(torch.float64, copy=True).reshape(())


def _copies(losses: list[torch.Tensor | float]) -> HostCopy:
    numbers = [loss for loss in losses if isinstance(loss, float)]
    if len(numbers) == len(losses):
        return HeldNumbers(numbers)
    tensors = [
        loss if isinstance(loss, torch.Tensor) else torch.tensor(loss, dtype=torch.float64)
        for loss in losses
    ]
    return HostCopy(stack_rows(tensors))


def _are_finite(measured: list[Measured]) -> bool:
    """Whether those in host memory are: what is on a device cannot be known yet."""
    return not [
        part for part in measured if part.place and not no_nonfinite_at(part.place, len(part.rows))
    ]


def _losses_are_finite(losses: list[torch.Tensor | float]) -> bool:
    return not [loss for loss in losses if isinstance(loss, float) and not math.isfinite(loss)]


def _rows(digests: PendingDigests) -> HostCopy:
    return HostCopy(digests.rows) if digests.keys else _NO_ROWS


def _is_scalar(loss: Any) -> bool:
    return isinstance(loss, torch.Tensor) and loss.numel() == 1


def _learning_rate(optimizer: torch.optim.Optimizer) -> float | None:
    lr = optimizer.param_groups[0].get("lr")
    if isinstance(lr, torch.Tensor):
        return float(lr) if lr.device.type == "cpu" and lr.numel() == 1 else None
    return float(lr) if isinstance(lr, (int, float)) else None
