"""State at rest: parameters, buffers, Adam's moments and its step counter, between two steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...errors import InjectionError
from ..fault import Draw, Fault, Site
from ..firing import Firing
from ..named_parts import aliases_of, buffers_of, packed, parameters_of
from ..scope import Scope
from ..strike import check_tensor
from .site import Tensors, is_distributed


class AtRest(Tensors):
    """Tensors that a fault hits before the training's forward reads them."""

    site: Site

    def __init__(self, firing: Firing, model: torch.nn.Module) -> None:
        super().__init__(firing)
        self._model = model

    def at_rest(self) -> None:
        """Inject what is due: nothing of the step has run yet."""
        for taken in self._firing.due(self.site):
            with self._firing.or_missed(taken):
                name = taken.target or ""
                self._firing.fire(taken, self.tensor(name), name)

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor as it is now.

        Raises:
            InjectionError: it is not there any more, or not yet.
        """
        found = self.tensors().get(name)
        if found is None:
            raise InjectionError(f"{name} is not there any more")
        return found

    def scope(self) -> Scope:
        """What can be hit now, and what cannot."""
        tensors = self.tensors()
        return Scope(
            self.site, {name: tensor.numel() for name, tensor in tensors.items()},
            packed(self._model), aliases=aliases_of(self._model), kind=self.kind,
            shared=is_distributed(tensors),
        )  # fmt: skip


class Weights(AtRest):
    """Parameters, also those that no optimizer trains."""

    site = "weight"
    kind = "parameter"

    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Every parameter."""
        return parameters_of(self._model)


class Buffers(AtRest):
    """Buffers of any dtype: statistics of norms and their counters, masks, tables."""

    site = "buffer"
    kind = "buffer"

    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Every buffer."""
        return buffers_of(self._model)


class OptimizerState(AtRest):
    """What an optimizer keeps of each parameter under one name."""

    kind = "parameter that the optimizer trains"

    def __init__(
        self,
        firing: Firing,
        model: torch.nn.Module,
        optimizers: list[torch.optim.Optimizer],
        site: Site,
    ) -> None:
        super().__init__(firing, model)
        self.site = site
        self._optimizers = optimizers

    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The parameters of which there is, or will be, such a state."""
        trained = {id(p) for o in self._optimizers for g in o.param_groups for p in g["params"]}
        return {n: p for n, p in parameters_of(self._model).items() if id(p) in trained}

    def scope(self) -> Scope:
        """Trained parameters; of a counter each as often, as it has one element."""
        found = super().scope()
        if self.site != "step":
            return found
        ones = dict.fromkeys(found.sizes, 1)
        return Scope(
            self.site, ones, found.skipped, aliases=found.aliases, kind=self.kind, shared=False
        )

    def check(self, name: str, fault: Fault, draw: Draw) -> None:
        """Refuse what cannot be done to the state, or a tensor like the parameter before it is."""
        state = self._state(name)
        if state is not None and not isinstance(state.get(self.site), torch.Tensor):
            raise self._nothing()
        if state is not None or self.site != "step":
            example = self.tensors()[name] if state is None else state[self.site]
            check_tensor(example, name, fault, draw)

    def tensor(self, name: str) -> torch.Tensor:
        """The state as it is now."""
        found = (self._state(name) or {}).get(self.site)
        if not isinstance(found, torch.Tensor):
            raise self._nothing()
        return found

    def _state(self, name: str) -> Any:
        parameter = self.tensors().get(name)
        if parameter is None:
            return None
        states = (o.state.get(parameter) for o in self._optimizers)
        return next((state for state in states if state), None)

    def _nothing(self) -> InjectionError:
        kind = ", ".join(sorted({type(o).__name__ for o in self._optimizers}))
        return InjectionError(
            f"the optimizer ({kind}) keeps no {self.site} at step {self._firing.step()}"
        )
