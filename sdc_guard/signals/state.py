"""The tensors whose bits are carried from step to step: parameters and optimizer moments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch

from ..detect.carried import Key
from ..digest import Place, digest_rows
from ..digest.reference import stack_rows
from ..store.run_file import Layer
from .flat_shards import FlatPart, placements
from .placement import local, placement

MOMENTS: Final = ("exp_avg", "exp_avg_sq")

# gives this rank's part of a tensor and where it is in the whole one
Live: TypeAlias = Callable[[Key], tuple[torch.Tensor, Place] | None]


@dataclass(frozen=True)
class PendingDigests:
    """Digests that may still be on their way from the device: rows int64 (len(keys), 3)."""

    keys: tuple[Key, ...]
    rows: torch.Tensor


NO_DIGESTS: Final = PendingDigests((), torch.empty((0, 3), dtype=torch.int64))


class CarriedState:
    """The parameters that only these optimizers may write to, and each of Adam's moments by now.

    Those are their own and the frozen ones. A parameter that is trained by another optimizer
    changes at that one's steps.

    Args:
        parameters: layer and parameter.
        optimizers: of one guard.
        left_out: ids of parameters that something else may write to.
        flat: parts of flat tensors, by id of the parameter.

    Attributes:
        names: of the layers, by number.
        owned: number of each layer that these optimizers train, its parameter and its optimizer.
    """

    def __init__(
        self,
        parameters: list[tuple[Layer, torch.nn.Parameter]],
        optimizers: list[torch.optim.Optimizer],
        left_out: set[int],
        flat: Mapping[int, FlatPart] | None = None,
    ) -> None:
        self._optimizers = optimizers
        self.names = {layer.id: layer.name for layer, _ in parameters}
        owner = {
            id(parameter): optimizer
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        self.owned = [
            (layer.id, parameter, owner[id(parameter)])
            for layer, parameter in parameters
            if id(parameter) in owner
        ]
        carried = [
            (layer.id, parameter)
            for layer, parameter in parameters
            if id(parameter) not in left_out
            and (id(parameter) in owner or not parameter.requires_grad)
        ]
        places = placements([parameter for _, parameter in carried], flat or {})
        placed = list(zip(carried, places, strict=True))
        self._carried = {
            layer: parameter for (layer, parameter), place in placed if place.offset is not None
        }
        self.offsets = {layer: place.offset for (layer, _), place in placed if place.offset}
        self._states = -1
        self._moments: dict[Key, tuple[torch.nn.Parameter, torch.optim.Optimizer]] = {}
        self._sizes: dict[Key, int] = {}
        self.keys: list[Key] = []

    def sizes(self) -> dict[Key, int]:
        """Bytes of each tensor that there is by now, in a fixed order."""
        states = 0
        for optimizer in self._optimizers:
            states += len(optimizer.state)
        if states != self._states:
            self._look_for_moments()
            self._sizes = {
                key: tensor.numel() * tensor.element_size() for key, tensor in self._all().items()
            }
            self.keys = list(self._sizes)
            self._states = states
        return self._sizes

    def tensors(self, keys: Iterable[Key] | None = None) -> dict[Key, torch.Tensor]:
        """This rank's part of these tensors, or of all."""
        if keys is None:
            self.sizes()
            return self._all()
        found = {key: self._tensor(key) for key in keys}
        return {key: tensor for key, tensor in found.items() if tensor is not None}

    def held(self, key: Key) -> tuple[torch.Tensor, Place] | None:
        """This rank's part of a tensor and where it is in the whole one, or None."""
        tensor = self._tensor(key) if key in self._sizes else None
        return None if tensor is None else (tensor, self.offsets.get(key[1], 0))

    def parameter(self, key: Key) -> torch.nn.Parameter | None:
        """The parameter that a tensor is, or belongs to."""
        moment = self._moments.get(key)
        return self._carried.get(key[1]) if moment is None else moment[0]

    def _all(self) -> dict[Key, torch.Tensor]:
        keys: list[Key] = [("param", layer) for layer in self._carried]
        found = {key: self._tensor(key) for key in [*keys, *self._moments]}
        return {key: tensor for key, tensor in found.items() if tensor is not None}

    def _tensor(self, key: Key) -> torch.Tensor | None:
        kind, layer = key
        if kind == "param":
            return local(self._carried[layer])
        parameter, optimizer = self._moments[key]
        value = optimizer.state.get(parameter, {}).get(kind)
        return local(value) if isinstance(value, torch.Tensor) else None

    def _look_for_moments(self) -> None:
        self._moments = {
            (moment, layer): (parameter, optimizer)
            for moment in MOMENTS
            for layer, parameter, optimizer in self.owned
            if isinstance(value := optimizer.state.get(parameter, {}).get(moment), torch.Tensor)
            and placement(value).offset is not None
        }


def digest_state(tensors: dict[Key, torch.Tensor], offsets: Mapping[int, Place]) -> PendingDigests:
    """Digest the given tensors without waiting for their device.

    Args:
        tensors: this rank's part of each.
        offsets: by layer, where a part is in the whole tensor, if it does not begin with it.
    """
    if not tensors:
        return NO_DIGESTS
    places = [offsets.get(layer, 0) for _, layer in tensors]
    return PendingDigests(tuple(tensors), digest_rows(list(tensors.values()), offsets=places))


def joined(parts: Iterable[PendingDigests]) -> PendingDigests:
    """Digests that were taken apart as one table, without waiting for a device."""
    held = [part for part in parts if part.keys]
    if len(held) < 2:
        return held[0] if held else NO_DIGESTS
    keys = tuple(key for part in held for key in part.keys)
    if all(part.rows.is_cpu for part in held):
        return PendingDigests(keys, torch.cat([part.rows for part in held]))
    return PendingDigests(keys, stack_rows([row for part in held for row in part.rows.unbind()]))
