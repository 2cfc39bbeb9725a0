"""The parameters of FullyShardedDataParallel (FSDP1): parts of one flat tensor per module.

They are plain tensors that do not tell what they are a part of; the handle of their module does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from .placement import Placement, mesh_size, placement


@dataclass(frozen=True)
class FlatPart:
    """A parameter's part on this rank.

    Attributes:
        placement: of the part in the whole.
        shape: of the whole parameter.
    """

    placement: Placement
    shape: tuple[int, ...]


def flat_parts(model: torch.nn.Module) -> dict[int, FlatPart]:
    """The parts by id of the parameter; empty without FSDP1."""
    found: dict[int, FlatPart] = {}
    for module in model.modules():
        handle: Any = getattr(module, "_handle", None)
        if type(module).__name__ == "FullyShardedDataParallel" and handle is not None:
            found |= _parts(module, handle)
    return found


def _parts(module: Any, handle: Any) -> dict[int, FlatPart]:
    flat = handle.flat_param
    across: Any = getattr(module, "_inter_node_pg", None)  # hybrid sharding: groups of replicas
    copies = 1 if across is None else int(across.size())
    if not handle.uses_sharded_strategy:
        whole = Placement("replicated", copies * int(module.process_group.size()))
        shapes = dict(zip(map(id, flat._params or ()), flat._shapes, strict=False))
        shapes[id(flat)] = flat.shape
        return {key: FlatPart(whole, tuple(shape)) for key, shape in shapes.items()}
    # all ranks' shards of the flat tensor are of one size, the last one padded
    start = int(handle.rank) * int(flat._sharded_size.numel())
    shape = tuple(flat._unpadded_unsharded_size)
    found = {id(flat): FlatPart(Placement("sharded", copies, start), shape)}
    for parameter, info, shape in zip(
        flat._params or (), flat._shard_param_infos, flat._shapes, strict=False
    ):
        offset = info.intra_param_start_idx or 0
        found[id(parameter)] = FlatPart(Placement("sharded", copies, offset), tuple(shape))
    return found


def placements(
    parameters: list[torch.nn.Parameter], flat: Mapping[int, FlatPart]
) -> list[Placement]:
    """The placements of a model's parameters, some of which may be parts of flat tensors.

    What is distributed over fewer ranks than the rest of the model is held by the others as well:
    so it is for a layer that tensor parallelism leaves alone and fully_shard then shards.
    """
    ranks = [mesh_size(parameter) for parameter in parameters]
    return [
        _copied(placement(parameter), max(ranks) // max(own, 1))
        if (part := flat.get(id(parameter))) is None
        else part.placement
        for parameter, own in zip(parameters, ranks, strict=True)
    ]


def _copied(own: Placement, times: int) -> Placement:
    return own if own.scope == "local" else replace(own, copies=own.copies * times)
