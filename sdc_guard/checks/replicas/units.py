"""Which ranks hold which tensors alike, without asking them.

Each rank names its units by what is in them, so that equal names mean equal parts: same layers,
same place in the whole tensor. DistributedDataParallel and the placements of distributed tensors
declare which ranks hold the same. What nothing declares may still be the same on several ranks
(a layer that tensor parallelism leaves alone) or not (experts, pipeline stages): it is compared as
well, and believed once it has been alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ...detect.carried import Key
from ...detect.replicas import How, Part, Unit
from ...signals.state import CarriedState


class Units:
    """The units of this rank's state.

    Args:
        model: as the guard was given it.
        state: as it is now.
        tensors: this rank's part of each.

    Attributes:
        all: the units, each with its keys in the order of its parts.
    """

    def __init__(
        self, model: torch.nn.Module, state: CarriedState, tensors: Mapping[Key, torch.Tensor]
    ) -> None:
        wrapped = _data_parallel(model)
        groups: dict[tuple[str, tuple[int, ...], str], list[Key]] = {}
        for key, tensor in tensors.items():
            if tensor.numel():
                label, peers = _held_as(state.parameter(key), wrapped)
                groups.setdefault((label, peers, key[0]), []).append(key)
        self.all: list[tuple[Unit, list[Key]]] = []
        for (label, peers, kind), keys in groups.items():
            keys.sort()
            parts = tuple(_part(key, tensors[key], state.offsets.get(key[1], 0)) for key in keys)
            content = repr(
                (label, peers, kind, [(p, state.offsets.get(p.layer, 0)) for p in parts])
            )
            how: How = "declared" if peers else "assumed"
            self.all.append((Unit(unit_id(content), how, parts), keys))


def unit_id(content: str) -> str:
    """The id of a unit with this content: 16 hexadecimal digits."""
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def _part(key: Key, tensor: torch.Tensor, offset: object) -> Part:
    dtype = str(tensor.dtype).removeprefix("torch.")
    place = offset if isinstance(offset, int) else None
    return Part(key[0], key[1], tensor.numel(), dtype, place)


def _data_parallel(model: torch.nn.Module) -> dict[int, tuple[int, ...]]:
    """The ranks among which DistributedDataParallel keeps a parameter alike, by its id."""
    found = {}
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            ranks = tuple(sorted(dist.get_process_group_ranks(module.process_group)))
            ignored: Any = getattr(module, "parameters_to_ignore", ())
            for name, parameter in module.module.named_parameters():
                if name not in ignored and len(ranks) > 1:
                    found[id(parameter)] = ranks
    return found


def _held_as(
    parameter: torch.Tensor | None, wrapped: Mapping[int, tuple[int, ...]]
) -> tuple[str, tuple[int, ...]]:
    """How a rank holds a parameter, as text that is the same where the part is, and the ranks
    that are declared to hold the same."""
    if parameter is None:
        return "no parameter", ()
    ranks = wrapped.get(id(parameter), ())
    placements: Any = getattr(parameter, "placements", None)
    if placements is None:
        return "plain", ranks
    mesh: Any = getattr(parameter, "device_mesh")  # noqa: B009 - because a plain tensor has none
    here = mesh.get_coordinate()
    if here is None:
        return "elsewhere", ()
    places, peers = [], []
    for place, number in zip(placements, here, strict=True):
        places.append(str(place) if place.is_replicate() else f"{place} at {number}")
        peers.append(slice(None) if place.is_replicate() else number)
    same = mesh.mesh[tuple(peers)].reshape(-1).tolist()
    label = f"{tuple(mesh.mesh.shape)} {' '.join(places)}"
    return label, tuple(sorted(same)) if len(same) > 1 else ranks
