"""From the hooks of one or several optimizers to one beginning and one end of each step."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch._compile import _disable_dynamo


class StepListener(Protocol):
    """Who is told about the steps."""

    def step_begins(self, optimizer: torch.optim.Optimizer, *, has_closure: bool) -> None:
        """No optimizer has changed anything of this step yet."""

    def step_goes_on(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step inside of a backward."""

    def closure_returned(self, loss: Any) -> None:
        """The closure of an optimizer ran its backward; its optimizer has not moved since."""

    def step_ends(self) -> None:
        """All optimizers have done their part of this step."""


class StepHooks:
    """A step is open from the first optimizer's pre-hook to the last one's post-hook.

    Several optimizers make one step together. One that steps twice, or a new backward, ends a
    step in which others did not take part. Optimizers that step inside of backward end theirs
    with it.

    Args:
        optimizers: of one guard.
        listener: told about the steps; it must not raise but on purpose.
    """

    def __init__(
        self,
        optimizers: list[torch.optim.Optimizer],
        listener: StepListener,
    ) -> None:
        self._count = len(optimizers)
        self._listener = listener
        self._stepped: set[int] = set()
        self._inside = 0
        self.open = False
        self.in_backward = False
        self._handles = [
            handle
            for optimizer in optimizers
            for handle in (
                optimizer.register_step_pre_hook(self._before),
                optimizer.register_step_post_hook(self._after),
            )
        ]

    @property
    def attached(self) -> bool:
        """Whether the hooks are still there."""
        return bool(self._handles)

    def remove(self) -> None:
        """Remove the hooks that this object registered, and no others."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def settle(self) -> None:
        """End a step that is open although nothing of it runs any more."""
        if self.open and not self._inside:
            self._end()

    def abandon(self) -> None:
        """Forget the open step: an exception ends it before anything was applied."""
        self.open = self.in_backward = False
        self._stepped, self._inside = set(), 0

    def backward_ended(self) -> None:
        """End a step that was taken inside of the backward that ends now."""
        if self.in_backward:
            self.settle()

    # an optimizer's compiled step would be traced through the hooks otherwise
    @_disable_dynamo
    def _before(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, ...] | None:
        # an exception in an optimizer leaves its post-hook out: the next call is no inner one
        self._inside = 0
        if self.open and id(optimizer) in self._stepped:
            self._end()
        arguments, has_closure = self._with_closure(args, kwargs)
        if not self.open:
            self.open = True
            self.in_backward = torch._C._current_graph_task_id() != -1
            self._listener.step_begins(optimizer, has_closure=has_closure)
        if self.in_backward:
            self._listener.step_goes_on(optimizer)
        self._inside = 1
        return arguments

    @_disable_dynamo
    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._inside = 0
        self._stepped.add(id(optimizer))
        if self.open and len(self._stepped) == self._count and not self.in_backward:
            self._end()

    def _end(self) -> None:
        self.open = self.in_backward = False
        self._stepped = set()
        self._listener.step_ends()

    def _with_closure(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...] | None, bool]:
        """The arguments with a closure that tells when it returned, and whether there is one."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            return None, False

        def told() -> Any:
            loss = closure()
            self._listener.closure_returned(loss)
            return loss

        if len(args) > 1:
            return ((args[0], told, *args[2:]), kwargs), True
        return (args, {**kwargs, "closure": told}), True
