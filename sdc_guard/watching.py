"""Attaching to a model as it is now: what is read of its parameters, and whether they changed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from .attempt import Place
from .collector import Collector
from .options import group_sizes
from .recorder import Recorder
from .signals.buffers import CarriedBuffers
from .signals.flat_shards import flat_parts
from .signals.gradients import GradientCapture
from .signals.layers import reducing_groups, trained_by
from .signals.limits import NO_FORWARD
from .signals.optimizer_audit import OptimizerAudit
from .signals.state import CarriedState
from .store.writer import Health


class Watching:
    """What one guard reads of the parameters and of the optimizers' state.

    Args:
        model, optimizers: as the guard was given them.
        collector, recorder: told which layers and tensors there are.
        health: where troubles are counted.
        tell: says once what cannot be seen.
        invariants_every: as in Guard.
        begins, ended: called when a backward begins, and when it has ended.

    Attributes:
        capture: of the gradients; another one after each `attach`.
        reduces: whether the model reduces gradients over ranks by itself.
    """

    capture: GradientCapture
    reduces: bool

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: list[torch.optim.Optimizer],
        collector: Collector,
        recorder: Recorder,
        health: Health,
        tell: Callable[[str], None],
        invariants_every: int | None,
        *,
        begins: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        self._model, self._optimizers = model, optimizers
        self._collector, self._recorder, self._health = collector, recorder, health
        self._tell, self._every = tell, invariants_every
        self._begins, self._ended = begins, ended
        self._sizes: list[int] = []

    @property
    def changed(self) -> bool:
        """Whether the optimizers have other parameters than those that were attached to."""
        return group_sizes(self._optimizers) != self._sizes

    def attach(self, place: Place) -> None:
        """Attach to the parameters that there are.

        Args:
            place: knows their layers.
        """
        optimized = trained_by(self._optimizers)
        owned = [pair for pair in place.parameters if id(pair[1]) in optimized]
        groups = reducing_groups(self._model)
        flat = flat_parts(self._model)
        held, trouble = place.buffers, self._health.trouble
        untold = partial(self._tell, NO_FORWARD)
        buffers = CarriedBuffers(held, self._model, untold, trouble) if held else None
        self.reduces = bool(groups)
        self._sizes = group_sizes(self._optimizers)
        self.capture = GradientCapture(
            owned,
            trouble,
            begins=self._begins,
            dropped=self._collector.forget,
            ended=self._ended,
            reducing=place.world_size > 1,
            flat=flat,
            modules=self._model.modules(),
        )
        self._recorder.use_layers(
            [layer for layer, _ in place.parameters],
            [layer for layer, _ in owned],
            self.capture.placements,
            groups[0] if groups else place.world_size,
            reduces=self.reduces,
            trained={layer.id for layer, parameter in owned if parameter.requires_grad},
            buffers=[buffer.layer for buffer in held],
        )
        state = CarriedState(place.parameters, self._optimizers, place.written_by_forward, flat)
        watched = [] if self._every is None else self._optimizers
        audits = [OptimizerAudit(owned, one, every=self._every or 1) for one in watched]
        self._collector.watch(self.capture, state, audits, buffers)

    def attach_again(self, place: Place) -> None:
        """Attach to parameters that were added, replaced or unfrozen."""
        old = self.capture
        old.remove()
        self.attach(place)
        self.capture.go_on_from(old)
