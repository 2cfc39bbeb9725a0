"""One forward at the first step, to learn what replays must know of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...signals.batch import pinned
from ...signals.parameter_writes import ParameterWrites
from ..audit.kept_step import KeptStep
from ..audit.step_replay import NotComparable, put_back_after

_COLLECTIVES = ("c10d", "_c10d_functional", "c10d_functional", "_dtensor")


class _NoCommunication(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no types here
    """Within it an operation that talks to other ranks is refused, before it does."""

    supports_higher_order_operators = True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Called by torch in place of each operation."""
        if getattr(func, "namespace", "") in _COLLECTIVES:
            raise NotComparable("the forward talks to other ranks, and a replay must not")
        return func(*args, **(kwargs or {}))


def written_in(kept: KeptStep) -> set[str]:
    """Names of the parameters that the model's own forward writes to.

    Raises:
        NotComparable: the forward communicates.
        Exception: whatever the loss function raises; not every operation runs while it is watched.
    """
    subject, (micro, *_) = kept.subject, kept.micro_batches
    with (
        put_back_after(subject, ()),
        torch.compiler.set_stance("force_eager"),
        torch.inference_mode(mode=False),
        torch.enable_grad(),
        ParameterWrites(subject.model) as writes,
        _NoCommunication(),  # type: ignore[no-untyped-call] # as above
        micro.autocast.again(),
    ):
        subject.loss_fn(subject.model, pinned(micro.batch))
    return set(writes.names)
