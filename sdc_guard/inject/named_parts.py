"""A model's parameters, buffers and modules by the names that a guard records them under."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch

from ..signals.layers import data_parallel_names, plain_name

_PACKED: Final = "{kind} keeps its weights packed for int8 kernels, which is not supported"


def parameters_of(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Parameters by their plain names, tied ones once."""
    return _plain(model, model.named_parameters())


def buffers_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Buffers by their plain names."""
    return _plain(model, model.named_buffers())


def modules_of(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Modules by their plain names; of a wrapper and what it wraps the latter."""
    return _plain(model, model.named_modules())


def _plain(model: torch.nn.Module, named: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    data_parallel = data_parallel_names(model)
    return {plain_name(name, data_parallel): part for name, part in named}


def aliases_of(model: torch.nn.Module) -> dict[str, str]:
    """Other names of parameters, buffers and modules: as wrappers give them, and of tied ones."""
    data_parallel = data_parallel_names(model)
    first: dict[int, str] = {}
    found: dict[str, str] = {}
    for named in (model.named_parameters, model.named_buffers, model.named_modules):
        for full, part in named(remove_duplicate=False):
            plain = plain_name(full, data_parallel)
            own = first.setdefault(id(part), plain)
            found |= {name: own for name in (full, plain) if name != own}
    return found


def packed(model: torch.nn.Module) -> dict[str, str]:
    """Modules whose weights are packed for quantised kernels, with the reason to skip them."""
    return {
        name: _PACKED.format(kind=type(module).__name__)
        for name, module in modules_of(model).items()
        if hasattr(module, "_packed_params") and not name.endswith("._packed_params")
    }
