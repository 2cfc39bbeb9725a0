"""What an all-reduce of gradients gave a rank: the sum over ranks as it arrived there.

DistributedDataParallel reduces buckets of gradients by a hook of ours then, which does the same
arithmetic as without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ...errors import InjectionError
from ..fault import Site
from ..firing import Firing
from ..scope import Scope
from ..taken import Taken
from .gradients import OfParameters


class Collective(OfParameters):
    """Gradients within the result of a bucket's all-reduce, before they are handed out."""

    site: Site = "collective"

    def __init__(self, firing: Firing, model: torch.nn.Module) -> None:
        super().__init__(firing, model)
        self._watched: list[Taken] = []
        self._hooked = False

    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Parameters whose gradients a DistributedDataParallel reduces."""
        reduced = {
            id(parameter) for ddp in self._reducers() for parameter in ddp.module.parameters()
        }
        return {n: p for n, p in super().tensors().items() if id(p) in reduced}

    def scope(self) -> Scope:
        """What can be hit now, and what cannot.

        Raises:
            InjectionError: nothing here reduces gradients in buckets, or others do it their way.
        """
        reducers = self._reducers()
        if not reducers:
            raise InjectionError(
                "collective needs a model in DistributedDataParallel",
                next_step="with sharded or plain models use gradient or reduced_gradient",
            )
        if not self._hooked and any(getattr(ddp, "_comm_hooks", ()) for ddp in reducers):
            raise InjectionError(
                "DistributedDataParallel has a communication hook already",
                next_step="use reduced_gradient, which is hit after it",
            )
        return super().scope()

    def watch(self, taken: Taken) -> None:
        """Register the hook, once."""
        super().watch(taken)
        self._watched.append(taken)
        if not self._hooked:
            self._hooked = True
            for ddp in self._reducers():
                ddp.register_comm_hook((self, ddp.process_group), _reduce)

    def close(self) -> None:
        """Only reduce from now on: DistributedDataParallel keeps its hook."""
        self._watched.clear()

    def arrived(self, bucket: Any) -> None:
        """A bucket was reduced; called on a thread that waited for it."""
        for taken in self._watched:
            if self._firing.is_due(taken, repeated=True):
                with self._firing.or_missed(taken):
                    self._fire_in(taken, bucket)

    def _fire_in(self, taken: Taken, bucket: Any) -> None:
        parameter = self._parameters[taken.number]
        for held, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            if held is parameter:
                self._firing.fire(taken, gradient, taken.target or "")

    def _reducers(self) -> list[DistributedDataParallel]:
        return [
            module for module in self._model.modules()
            if isinstance(module, DistributedDataParallel)
        ]  # fmt: skip


# without annotations, which DistributedDataParallel would compare as the text that they are here
def _reduce(state, bucket):  # type: ignore[no-untyped-def] # as above
    """What DistributedDataParallel does by itself: each gradient by 1/ranks, then the sum."""
    site, group = state
    buffer = bucket.buffer()
    buffer.mul_(1.0 / dist.get_world_size(group))
    work: Any = dist.all_reduce(buffer, group=group, async_op=True)

    def handed_out(done: Any) -> torch.Tensor:
        reduced: torch.Tensor = done.value()[0]
        site.arrived(bucket)
        return reduced

    return work.get_future().then(handed_out)
