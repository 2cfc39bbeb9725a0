"""Gathering one step's evidence in the training process, without waiting for anything."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch

from .detect.carried import Key
from .digest.reference import stack_rows
from .evidence import AfterStep, BeforeStep, Gradients, HostCopy
from .signals.batch import batch_digest, tensors_of
from .signals.buffers import CarriedBuffers
from .signals.gradient_digests import GradientDigests
from .signals.gradients import GradientCapture, Measured
from .signals.optimizer_audit import OptimizerAudit
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
        rotation: which digests of the state are taken.
        gradients: takes the digests of gradients, if they are asked for.
    """

    capture: GradientCapture
    state: CarriedState

    def __init__(
        self,
        optimizers: list[torch.optim.Optimizer],
        scale: LossScale,
        rotation: Rotation,
        gradients: GradientDigests | None = None,
    ) -> None:
        self._optimizers = optimizers
        self._gradients = gradients
        self._buffers: CarriedBuffers | None = None
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
        self.capture, self.state, self._audits = capture, state, audits
        self._carried = [key for key in self._carried if key in state.sizes()]

    def remove(self) -> None:
        """Remove the hook on the model."""
        if self._buffers is not None:
            self._buffers.remove()

    def whole_tensor(self, key: Key) -> torch.Tensor | None:
        """A digested tensor as it was found, if this rank holds everything of it."""
        if self._buffers is not None and (changed := self._buffers.changed_tensor(key)) is not None:
            return changed
        return self.state.whole_tensor(key)

    def observe(self, loss: Any, batch: Any) -> None:
        """Take a loss, a scalar tensor or number, and a batch."""
        self._losses.append(_scalar(loss))
        digest = batch_digest(batch)
        if digest is not None:
            self._batches.append(HostCopy(digest))
            self._tokens.append(next(tensors_of(batch)).numel())

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

    def backward_ended(self) -> None:
        """A backward ended: gradients are reduced, and not yet clipped."""
        if self._gradients is not None:
            self._gradients.take(self.capture)

    def gradients(self) -> dict[Key, torch.Tensor]:
        """The gradients whose digests are taken."""
        return {} if self._gradients is None else self._gradients.tensors(self.capture)

    def find_state(self, step: int) -> None:
        """Digest the state that the step before left, as it is found now."""
        for audit in self._audits:
            audit.before(step)
        whole = self._rotation.whole
        self.urgent = False
        if not whole and not self._carried:
            self._found = NO_DIGESTS
            return
        self._found = self._digest(self.state.tensors(None if whole else self._carried))
        # to be judged while the tensors are as they were found: it names the element then
        self.urgent = _differ(self._left, self._found)

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
        scale = self._scale.value()
        found_inf = None if skipped else self._scale.found_inf(self._optimizers)
        return BeforeStep(
            step=step,
            time=now,
            step_seconds=seconds,
            lr=_learning_rate(self._optimizers[0]),
            gradients=tuple(
                Gradients(part.rows, HostCopy(part.sums), part.reduced) for part in measured
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
        )

    def after(self, step: int, shadow: ShadowResult | None) -> AfterStep:
        """Evidence of what a step left behind."""
        sizes = self.state.sizes()
        self._carried = self._rotation.choose(self.state.keys, sizes)
        carried = self._carried
        digests = self._digest(self.state.tensors(carried)) if carried else NO_DIGESTS
        self._left = digests
        if self._buffers is not None:
            digests = joined((digests, self._buffers.after()))
        losses = None if shadow is None else HostCopy(shadow.losses)
        batch = None if shadow is None or shadow.batch is None else HostCopy(shadow.batch)
        audits = tuple(
            (pending, HostCopy(pending.rows))
            for audit in self._audits
            if (pending := audit.after(step)) is not None
        )
        return AfterStep(step, digests, _rows(digests), shadow, losses, batch, audits)

    def notes(self) -> list[str]:
        """What the optimizers' invariants do not cover, each once."""
        return [note for audit in self._audits for note in audit.take_notes()]

    def missing_from(self, held: set[Key]) -> PendingDigests:
        """Digests of the state that is not in `held`."""
        rest = {key: tensor for key, tensor in self.state.tensors().items() if key not in held}
        return digest_state(rest, self.state.offsets)

    def _digest(self, tensors: dict[Key, torch.Tensor]) -> PendingDigests:
        started = time.perf_counter()
        digests = digest_state(tensors, self.state.offsets)
        if tensors and digests.rows.device.type == "cpu":
            size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
            self._rotation.digested(len(tensors), size, time.perf_counter() - started)
        return digests


def _differ(left: PendingDigests | None, found: PendingDigests) -> bool:
    if left is None or not found.rows.is_cpu or left.keys != found.keys:
        return False
    return not torch.equal(left.rows, found.rows)


def _scalar(loss: Any) -> torch.Tensor | float:
    # a copy: the script may change its own tensor in place
    if not isinstance(loss, torch.Tensor):
        return float(loss)
    if loss.is_cpu:
        return loss.item()
    return loss.detach().to(torch.float64, copy=True).reshape(())


def _copies(losses: list[torch.Tensor | float]) -> HostCopy:
    if all(isinstance(loss, float) for loss in losses):
        return HostCopy(np.array(losses))
    tensors = [
        loss if isinstance(loss, torch.Tensor) else torch.tensor(loss, dtype=torch.float64)
        for loss in losses
    ]
    return HostCopy(stack_rows(tensors))


def _are_finite(measured: list[Measured]) -> bool:
    """Whether those in host memory are: what is on a device cannot be known yet."""
    return not any(isinstance(m.sums, np.ndarray) and m.sums[:, 3].any() for m in measured)


def _losses_are_finite(losses: list[torch.Tensor | float]) -> bool:
    return all(math.isfinite(loss) for loss in losses if isinstance(loss, float))


def _rows(digests: PendingDigests) -> HostCopy:
    return HostCopy(digests.rows) if digests.keys else _NO_ROWS


def _is_scalar(loss: Any) -> bool:
    return isinstance(loss, torch.Tensor) and loss.numel() == 1


def _learning_rate(optimizer: torch.optim.Optimizer) -> float | None:
    lr = optimizer.param_groups[0].get("lr")
    if isinstance(lr, torch.Tensor):
        return float(lr) if lr.device.type == "cpu" and lr.numel() == 1 else None
    return float(lr) if isinstance(lr, (int, float)) else None
