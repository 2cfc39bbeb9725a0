"""Leaving parameters sharded by fully_shard as they were found, after a forward pass of our own.

Such a forward gathers each module's whole parameters, and may leave them gathered for a backward
that never comes. The training would go on with these copies after its optimizer has written to
the shards, and what it prefetches in backward follows the order of forward passes. So what the
training had sharded is sharded again, what it had gathered is left alone, and the order is put
back. There is no public way to ask for that state, so the attributes of torch's own classes are
used.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch

from ..errors import UsageError


@contextlib.contextmanager
def sharding_kept(model: torch.nn.Module) -> Iterator[None]:
    """Undo on leaving what forward passes in the block do to the sharding of `model`.

    The block's forward passes communicate: every rank must run the same ones.

    Raises:
        UsageError: the parameters are sharded by FullyShardedDataParallel, or a backward pass is
            under way.
    """
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # not loaded: nothing is sharded
    if fsdp is None:
        yield
        return
    modules = list(model.modules())
    if any(isinstance(module, fsdp.FullyShardedDataParallel) for module in modules):
        raise UsageError(
            "no shadow pass with FullyShardedDataParallel",
            next_step="shard with torch.distributed.fsdp.fully_shard, or leave shadow out",
        )
    states = [x._get_fsdp_state() for x in modules if isinstance(x, fsdp.FSDPModule)]
    if all(state._is_root is None for state in states):
        # no forward yet: ours would make the outermost ones roots, and add hooks, which stay
        for state in states:
            state._lazy_init()
    kept = _Sharding(list({id(state): state for state in states}.values()))
    try:
        yield
    finally:
        kept.put_back()


class _Sharding:
    def __init__(self, states: list[Any]) -> None:
        self._states = [
            (state, state._training_state, _copy(getattr(state, "_modules_to_run_forward", None)))
            for state in states
        ]
        groups = [group for state in states for group in _groups(state)]
        if any(group._training_state.name != "IDLE" for group in groups):
            raise UsageError(
                "no shadow pass while a backward pass of sharded parameters is under way",
                next_step="call optimizer.step() after backward(), or leave shadow out",
            )
        self._groups = [
            (group, group._training_state, list(group._post_forward_indices)) for group in groups
        ]
        self._orders = [
            (context.post_forward_order, list(context.post_forward_order))
            for context in {id(group.comm_ctx): group.comm_ctx for group in groups}.values()
        ]
        self._contexts = [
            (context, context.iter_forward_root)
            for context in {id(state._state_ctx): state._state_ctx for state in states}.values()
        ]
        self._found_gathered = [
            (group, group.post_forward_mesh_info) for group in groups if group.is_unsharded
        ]
        for group, _ in self._found_gathered:
            group.post_forward_mesh_info = None  # so that its forward does not shard it

    def put_back(self) -> None:
        for state, training_state, to_run in self._states:
            state._training_state = training_state
            if to_run is not None:
                state._modules_to_run_forward.clear()
                state._modules_to_run_forward.update(to_run)
        for context, root in self._contexts:
            context.iter_forward_root = root
        for order, before in self._orders:
            order[:] = before
        gathered = {id(group) for group, _ in self._found_gathered}
        for group, training_state, indices in self._groups:
            group._training_state = training_state
            group._post_forward_indices[:] = indices
            if id(group) not in gathered:
                group.wait_for_unshard()  # one that was prefetched and then not needed
                group.reshard()
        for group, mesh_info in self._found_gathered:
            group.post_forward_mesh_info = mesh_info


def _groups(state: Any) -> list[Any]:
    several = getattr(state, "_fsdp_param_groups", None)  # since torch 2.12 or so
    if several is not None:
        return list(several)
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]


def _copy(modules: set[torch.nn.Module] | None) -> set[torch.nn.Module] | None:
    return None if modules is None else set(modules)
