"""Trainings whose steps cannot be run again by one rank alone, and why."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

from .subject import Subject, called_alone

_SHARDED = "parameters are sharded, and a forward of one rank talks to the others"
_COMPILED_AROUND = (
    "torch.compile is around DistributedDataParallel: compile the module first, and wrap it then"
)
_COMPILED_IN_PLACE = "model.compile() hides where a forward begins: use torch.compile(model)"


def why_never(model: torch.nn.Module, subject: Subject) -> str:
    """Why no step of this training can be audited; "" if nothing speaks against it.

    Args:
        model: as the guard was given it.
    """
    kinds = {type(module).__name__ for module in model.modules()}
    if any(hasattr(parameter, "to_local") for parameter in model.parameters()):
        return _SHARDED
    if any(kind.startswith("FSDP") or kind == "FullyShardedDataParallel" for kind in kinds):
        return _SHARDED
    if any(isinstance(module, DataParallel) for module in model.modules()):
        return "DataParallel splits each batch over devices; use DistributedDataParallel"
    inner = called_alone(model)
    if any(isinstance(module, DistributedDataParallel) for module in inner.modules()):
        return _COMPILED_AROUND
    if getattr(inner, "_compiled_call_impl", None) is not None:
        return _COMPILED_IN_PLACE
    if not subject.parameters:
        return "the optimizer trains none of the model's parameters"
    return ""


def hooks_on_gradients(subject: Subject) -> bool:
    """Whether other hooks than SDC Guard's run when a gradient is accumulated."""
    return any(
        not _is_the_guards(hook)
        for parameter in subject.parameters
        for hook in (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values()
    )


def _is_the_guards(hook: Any) -> bool:
    # an injected fault is not of the script either: it stands for what hardware does
    function = getattr(hook, "func", hook)  # of a partial
    owner = getattr(function, "__self__", function)  # of a method
    module = owner.__module__ if isinstance(owner, FunctionType) else type(owner).__module__
    return module.startswith("sdc_guard.")
