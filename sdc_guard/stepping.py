"""From the hooks of one or several optimizers to one beginning and one end of each step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch._compile import _disable_dynamo


def evaluates_first(optimizers: list[torch.optim.Optimizer]) -> bool:
    """Whether these are known to call a closure before they change anything.

    Torch's own do. Others may move the parameters first, to evaluate elsewhere.
    """
    return all(
        type(optimizer).__module__.startswith("torch.optim.")
        and not isinstance(optimizer, torch.optim.LBFGS)
        for optimizer in optimizers
    )


class StepListener(Protocol):
    """Who is told about the steps."""

    def step_begins(self, optimizer: torch.optim.Optimizer, *, has_closure: bool) -> None:
        """No optimizer has changed anything of this step yet."""

    def step_goes_on(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step inside of a backward."""

    def closure_returned(self, loss: Any) -> None:
        """The closure of an optimizer ran its backward; its optimizer has not moved since."""

    def closure_raised(self) -> None:
        """An exception leaves the closure of an optimizer, and with it the step."""

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
        self._busy = False  # the listener or a closure is at work on the open step
        self._left = False  # the optimizer's own step began, and has not ended yet
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
        """End a step that is open although nothing of it runs any more.

        Either not every optimizer took part in it, or an exception left the optimizer's step.
        """
        if self.open and not self._busy and not self.in_backward:
            self._end()

    def abandon(self) -> None:
        """Forget the open step: an exception ends it before anything was applied."""
        self.open = self.in_backward = False
        self._stepped, self._left = set(), False

    def backward_ended(self) -> None:
        """End a step that was taken inside of the backward that ends now."""
        if self.open and self.in_backward:
            self._end()

    # an optimizer's compiled step would be traced through the hooks otherwise
    @_disable_dynamo
    def _before(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, ...] | None:
        # an exception in an optimizer leaves its post-hook out
        if self.open and (self._left or id(optimizer) in self._stepped):
            self._end()
        arguments, has_closure = self._with_closure(args, kwargs)
        if not self.open:
            self.open = True
            self.in_backward = torch._C._current_graph_task_id() != -1
            before, self._busy = self._busy, True
            try:  # `_at_work` in fewer calls: at each step each of them counts
                self._listener.step_begins(optimizer, has_closure=has_closure)
            finally:
                self._busy = before
        if self.in_backward:
            self._listener.step_goes_on(optimizer)
        self._left = not self.in_backward
        return arguments

    @_disable_dynamo
    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._left = False
        self._stepped.add(id(optimizer))
        if self.open and len(self._stepped) == self._count and not self.in_backward:
            self._end()

    def _end(self) -> None:
        self.abandon()
        self._listener.step_ends()

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        before, self._busy = self._busy, True
        try:
            yield
        finally:
            self._busy = before

    def _with_closure(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...] | None, bool]:
        """The arguments with a closure that tells when it returned, and whether there is one."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            return None, False

        def told() -> Any:
            with self._at_work():
                try:
                    loss = closure()
                except BaseException:
                    self._listener.closure_raised()
                    raise
                self._listener.closure_returned(loss)
            return loss

        if len(args) > 1:
            return ((args[0], told, *args[2:]), kwargs), True
        return (args, {**kwargs, "closure": told}), True
