"""Which modules there are to hit the outputs of."""

from __future__ import annotations

from typing import Final

import torch

from ..fault import Site
from ..named_parts import aliases_of, modules_of
from ..scope import Scope
from .outputs import split_name

_WITHOUT: Final = "it keeps no tensor; name it to inject there all the same"
_INSIDE: Final = "the module around it uses its tensors and does not call it"


def scope_of_modules(site: Site, model: torch.nn.Module) -> Scope:
    """Modules that keep parameters or buffers themselves are drawn; others have to be named."""
    modules = modules_of(model)
    uncalled = {
        name: _INSIDE
        for name, module in modules.items()
        if type(module).__name__ in ("NonDynamicallyQuantizableLinear", "LinearPackedParams")
    }
    callable_ones = {name: m for name, m in modules.items() if name not in uncalled}
    bearing = [name for name, module in callable_ones.items() if _keeps_tensors(module)]
    if not bearing:
        bearing = [name for name, m in callable_ones.items() if next(m.children(), None) is None]
    others = [name for name in callable_ones if name not in bearing]
    skipped = uncalled | dict.fromkeys(others, _WITHOUT)
    return Scope(
        site, dict.fromkeys(bearing, None), skipped, tuple(others),
        aliases_of(model), "module", numbered=True,
    )  # fmt: skip


def module_named(model: torch.nn.Module, target: str) -> torch.nn.Module:
    """The module of a target, whose name may have the number of a tensor."""
    return modules_of(model)[split_name(target)[0]]


def _keeps_tensors(module: torch.nn.Module) -> bool:
    own = (*module._parameters.values(), *module._buffers.values())
    return any(tensor is not None for tensor in own) or hasattr(module, "_packed_params")
