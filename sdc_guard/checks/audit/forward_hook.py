"""Noticing that a model's forward begins, without a trace in copies and compiled code."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ...signals.limits import capturing


class ForwardHook:
    """Calls a method at the beginning of each forward that a gradient may follow.

    Code that is being compiled does not contain it, copies and pickles of the model have one that
    does nothing, and so has a process that was forked from this one.

    Args:
        model: whose forward is meant.
        begins: a bound method, called with what the model is given: (args, kwargs). It must not
            raise.
    """

    def __init__(self, model: torch.nn.Module, begins: Callable[[Any], None]) -> None:
        self._begins: Any = weakref.WeakMethod(begins)
        self._owner = os.getpid()
        self._handle = model.register_forward_pre_hook(self, with_kwargs=True)

    def __call__(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Called by torch."""
        if torch.compiler.is_compiling():
            return
        if not torch.is_grad_enabled() or os.getpid() != self._owner or capturing():
            return
        begins = self._begins()
        if begins is not None:
            begins((args, kwargs))

    def remove(self) -> None:
        """Remove the hook."""
        self._handle.remove()

    def __reduce__(self) -> tuple[type[SilentHook], tuple[()]]:
        return SilentHook, ()


class SilentHook:
    """What a forward hook becomes in a copy of the model."""

    def __call__(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Nothing."""
