"""A model's parameters as the layers of a run."""

from __future__ import annotations

import math

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import UninitializedParameter

from ..errors import UsageError
from ..store.run_file import Layer
from .flat_shards import flat_parts
from .pipeline import stage_numbers

# what torch.compile and activation checkpointing put into names
_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")


def model_layers(model: torch.nn.Module) -> list[tuple[Layer, torch.nn.Parameter]]:
    """The model's parameters as layers: a tied one once, with its other names as aliases.

    A layer has the same name with and without torch.compile, DistributedDataParallel and
    activation checkpointing; the name under a wrapper is an alias. A parametrized weight
    (weight_norm and others) has its plain name in brackets as an alias of its parts. The stages
    of a pipeline may use the same names: theirs begin with the number of the stage.

    Raises:
        UsageError: a lazy parameter has no shape yet.
    """
    data_parallel = data_parallel_names(model)
    stages, flat = stage_numbers(model), flat_parts(model)
    names: dict[int, list[str]] = {}
    for full_name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(full_name)
    layers = []
    for number, (full_name, parameter) in enumerate(model.named_parameters()):
        if isinstance(parameter, UninitializedParameter):
            raise UsageError(
                f"the parameter {full_name} has no shape yet",
                next_step="run the model once on a batch before making the Guard",
            )
        plain = plain_name(full_name, data_parallel)
        stage = stages.get(id(parameter))
        name = plain if stage is None else f"stage{stage}.{plain}"
        others = dict.fromkeys(
            other
            for alias in names[id(parameter)]
            for other in (plain_name(alias, data_parallel), alias, *_parametrized(alias))
        )
        part = flat.get(id(parameter))
        shape = tuple(parameter.shape) if part is None else part.shape
        layer = Layer(
            id=number,
            name=name,
            aliases=tuple(other for other in others if other != name),
            shape=shape,
            dtype=str(parameter.dtype).removeprefix("torch."),
            numel=math.prod(shape),
        )
        layers.append((layer, parameter))
    return layers


def trained_by(optimizers: list[torch.optim.Optimizer]) -> set[int]:
    """Ids of the parameters of these optimizers."""
    return {id(p) for optimizer in optimizers for g in optimizer.param_groups for p in g["params"]}


def reducing_groups(model: torch.nn.Module) -> list[int]:
    """Sizes of the process groups over which DistributedDataParallel reduces gradients."""
    return [
        module.process_group.size()
        for module in model.modules()
        if isinstance(module, DistributedDataParallel)
    ]


def data_parallel_names(model: torch.nn.Module) -> list[str]:
    """Names of the modules that keep what they wrap as `module`."""
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, (DataParallel, DistributedDataParallel))
    ]


def plain_name(name: str, data_parallel: list[str]) -> str:
    """A parameter's name without what wrappers put into it.

    Args:
        name: as the model gives it.
        data_parallel: names of the modules that keep what they wrap as `module`.
    """
    kept: list[str] = []
    parts = name.split(".")
    for place, part in enumerate(parts):
        wrapped = part == "module" and ".".join(parts[:place]) in data_parallel
        if part not in _WRAPPERS and not wrapped:
            kept.append(part)
    return ".".join(kept)


def _parametrized(name: str) -> list[str]:
    module, found, rest = name.partition("parametrizations.")
    return [f"{module}{rest.partition('.')[0]} (parametrized)"] if found else []


def written_by_forward(model: torch.nn.Module) -> set[int]:
    """Ids of parameters that the model's own forward writes to: embeddings with max_norm."""
    return {
        id(module.weight)
        for module in model.modules()
        if getattr(module, "max_norm", None) is not None
        and isinstance(getattr(module, "weight", None), torch.nn.Parameter)
    }
