"""Gradients of parameters: before ranks reduce them, and right before the optimizer reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...errors import InjectionError
from ..fault import Site
from ..firing import Firing
from ..hooks import SilentInCopies
from ..named_parts import aliases_of, packed, parameters_of
from ..scope import Scope
from ..taken import Taken
from .site import Handles, Tensors, is_distributed


class OfParameters(Tensors):
    site: Site
    kind = "trainable parameter"

    def __init__(self, firing: Firing, model: torch.nn.Module) -> None:
        super().__init__(firing)
        self._model = model
        # by the fault's number; sharding puts other parameters in their place for a while
        self._parameters: dict[int, torch.Tensor] = {}

    def watch(self, taken: Taken) -> None:
        """Keep hold of the parameter."""
        self._parameters[taken.number] = self.tensors()[taken.target or ""]

    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Parameters that require a gradient, whose shape and dtype it has."""
        return {n: p for n, p in parameters_of(self._model).items() if p.requires_grad}

    def scope(self) -> Scope:
        """What can be hit now, and what cannot."""
        tensors = self.tensors()
        frozen = {
            name: "it requires no gradient"
            for name, parameter in parameters_of(self._model).items()
            if not parameter.requires_grad
        }
        return Scope(
            self.site, {name: tensor.numel() for name, tensor in tensors.items()},
            packed(self._model) | frozen, aliases=aliases_of(self._model), kind=self.kind,
            shared=is_distributed(tensors),
        )  # fmt: skip

    def _fire(self, taken: Taken, gradient: torch.Tensor | None) -> None:
        if gradient is None:
            raise InjectionError(f"{taken.target} has no gradient")
        self._firing.fire(taken, gradient, taken.target or "")


class Gradients(OfParameters):
    """What a backward has accumulated for a parameter, before a reduction over ranks.

    A hook on the parameter that was chosen, before those of others, so that a guard records the
    wrong gradient as one that the backward computed.
    """

    site = "gradient"

    def __init__(self, firing: Firing, model: torch.nn.Module) -> None:
        super().__init__(firing, model)
        self._handles = Handles()

    def watch(self, taken: Taken) -> None:
        """Hook the parameter."""
        super().watch(taken)
        parameter = self._parameters[taken.number]
        hook = _Accumulated(self, taken)
        handle: Any = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call] # torch has no types here
        _put_first(parameter, handle.id)
        self._handles.add(handle)

    def accumulated(self, taken: Taken, parameter: torch.Tensor) -> None:
        """The gradient of the parameter is there."""
        if self._firing.is_due(taken, repeated=True):
            with self._firing.or_missed(taken):
                self._fire(taken, parameter.grad)

    def close(self) -> None:
        """Remove the hooks."""
        self._handles.remove()


class ReducedGradients(OfParameters):
    """What the optimizer is about to read."""

    site = "reduced_gradient"

    def before_the_optimizer(self) -> None:
        """Inject what is due."""
        for taken in self._firing.due(self.site):
            with self._firing.or_missed(taken):
                self._fire(taken, self._parameters[taken.number].grad)


class _Accumulated(SilentInCopies):
    def __init__(self, site: Gradients, taken: Taken) -> None:
        self._site, self._taken = site, taken

    def __call__(self, parameter: torch.Tensor) -> None:
        self._site.accumulated(self._taken, parameter)


def _put_first(parameter: torch.Tensor, number: int) -> None:
    """Have a hook run before the others: torch calls them in the order of insertion."""
    hooks = getattr(parameter, "_post_accumulate_grad_hooks")  # noqa: B009 - because torch's types do not know it
    others = {key: hook for key, hook in hooks.items() if key != number}
    own = hooks[number]
    hooks.clear()
    hooks[number] = own
    hooks.update(others)
