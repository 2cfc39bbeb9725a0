"""Outputs of modules and the gradients of them, by a hook on each module that was chosen.

Only the first training forward of a step is hit; of a persistent fault each one, as what is broken
is met whenever it is used: by every micro-batch, and by whatever runs a step again.
"""

from __future__ import annotations

from typing import Any

import torch

from ..fault import Draw, Fault, Site
from ..firing import Firing
from ..hooks import SilentInCopies
from ..scope import Scope
from ..taken import Taken
from ..traced import register, with_gradient_watched, with_output_watched
from .modules import module_named, scope_of_modules
from .outputs import replaced, split_name
from .site import Handles


class OfModules:
    """A site whose targets are the outputs of modules."""

    site: Site

    def __init__(self, firing: Firing, model: torch.nn.Module) -> None:
        self._firing, self._model = firing, model
        self._handles = Handles()

    def scope(self) -> Scope:
        """Modules that can be hit, and those that are not drawn."""
        return scope_of_modules(self.site, self._model)

    def check(self, name: str, fault: Fault, draw: Draw) -> None:
        """Nothing: shape and dtype show when the module runs."""

    def watch(self, taken: Taken) -> None:
        """Hook the module."""
        module = module_named(self._model, taken.target or "")
        self._handles.add(module.register_forward_hook(self.hook(taken)))

    def hook(self, taken: Taken) -> OutputHook:
        """What is called with the module's output."""
        raise NotImplementedError

    def close(self) -> None:
        """Remove the hooks."""
        self._handles.remove()


class Activations(OfModules):
    """What a module has computed."""

    site = "activation"

    def hook(self, taken: Taken) -> OutputHook:
        """What is called with the module's output."""
        return ActivationHook(self._firing, taken)


class OutputGradients(OfModules):
    """The gradient of what a module has computed."""

    site = "output_gradient"

    def hook(self, taken: Taken) -> OutputHook:
        """What is called with the module's output."""
        return OutputGradientHook(self._firing, taken)


class OutputHook(SilentInCopies):
    """A forward hook for one fault."""

    def __init__(self, firing: Firing, taken: Taken) -> None:
        self._firing, self._taken = firing, taken
        self._name, self._place = split_name(taken.target or "")
        self._traced_name = taken.target or ""
        self._number = register(self)

    def __call__(self, module: torch.nn.Module, args: Any, output: Any) -> Any:
        """Called by torch: the output to go on with, or None for the same."""
        if not torch.is_grad_enabled():
            return None  # an evaluation, or the guard's shadow pass: not the training forward
        if torch.compiler.is_compiling():
            return replaced(output, self._name, self._place, self._in_graph)
        if not self._firing.is_due(self._taken, repeated=True):
            return None
        with self._firing.or_missed(self._taken):
            return replaced(output, self._name, self._place, self._eager)
        return None

    def _in_graph(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        raise NotImplementedError

    def _eager(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        raise NotImplementedError

    def within_compiled(self, tensor: torch.Tensor) -> None:
        """What is meant is there, within compiled code, as a copy of its own."""
        if self._firing.is_due(self._taken, repeated=True):
            self._firing.fire(self._taken, tensor, self._traced_name, backend="compiled")


class ActivationHook(OutputHook):
    """Changes an output."""

    def _in_graph(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        return with_output_watched(tensor, self._number)

    def _eager(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        wrong = tensor if self._taken.fault.effect == "memory" else tensor.clone()
        # past autograd: neither is it an operation, nor does it invalidate what was saved
        self._firing.fire(self._taken, wrong, name)
        return wrong


class OutputGradientHook(OutputHook):
    """Changes the gradient of an output, by a hook on that output.

    A hook on the module's backward would make its output a view, and later operations in place on
    it an error.
    """

    def _in_graph(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        return with_gradient_watched(tensor, self._number)

    def _eager(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        if not tensor.requires_grad:
            self._firing.miss(self._taken, f"{name} requires no gradient")
            return tensor
        watched: Any = tensor
        watched.register_hook(_GradientOf(self._firing, self._taken, name))
        self._taken.done = self._firing.step()
        return tensor


class _GradientOf(SilentInCopies):
    def __init__(self, firing: Firing, taken: Taken, name: str) -> None:
        self._firing, self._taken, self._name = firing, taken, name

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor | None:
        memory = self._taken.fault.effect == "memory"
        wrong = gradient if memory else gradient.clone()
        self._firing.fire(self._taken, wrong, self._name)
        return None if memory else wrong
