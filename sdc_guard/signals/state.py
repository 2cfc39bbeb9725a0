"""The tensors whose bits are carried from step to step: parameters and optimizer moments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch.nn.parameter import UninitializedParameter

from ..detect.carried import Key
from ..digest import digest_rows
from ..errors import UsageError
from ..store.run_file import Layer

MOMENTS: Final = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class PendingDigests:
    """Digests that may still be on their way from the device: rows int64 (len(keys), 3)."""

    keys: tuple[Key, ...]
    rows: torch.Tensor


def state_tensors(
    parameters: list[tuple[Layer, torch.nn.Parameter]], optimizer: torch.optim.Optimizer
) -> dict[Key, torch.Tensor]:
    """The parameters that only `optimizer` may write to, and each of Adam's moments by now.

    Those are its own and the frozen ones. A parameter that is trained by another optimizer
    changes at that one's steps.
    """
    own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    tensors: dict[Key, torch.Tensor] = {}
    for layer, parameter in parameters:
        if id(parameter) in own or not parameter.requires_grad:
            tensors["param", layer.id] = parameter
    for moment in MOMENTS:
        for layer, parameter in parameters:
            value = optimizer.state.get(parameter, {}).get(moment)
            if isinstance(value, torch.Tensor):
                tensors[moment, layer.id] = value
    return tensors


def digest_state(tensors: dict[Key, torch.Tensor]) -> PendingDigests:
    """Digest the given tensors without waiting for their device."""
    return PendingDigests(tuple(tensors), digest_rows(list(tensors.values())))


def written_by_forward(model: torch.nn.Module) -> list[str]:
    """Names of parameters that the model's own forward writes to: embeddings with max_norm."""
    return [
        f"{name}.weight" if name else "weight"
        for name, module in model.named_modules()
        if getattr(module, "max_norm", None) is not None
        and isinstance(getattr(module, "weight", None), torch.nn.Parameter)
    ]


def model_layers(model: torch.nn.Module) -> list[tuple[Layer, torch.nn.Parameter]]:
    """The model's parameters as layers: a tied one once, with its other names as aliases."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    layers = []
    for number, (name, parameter) in enumerate(model.named_parameters()):
        if isinstance(parameter, UninitializedParameter):
            raise UsageError(
                f"the parameter {name} has no shape yet",
                next_step="run the model once on a batch before making the Guard",
            )
        layer = Layer(
            id=number,
            name=name,
            aliases=tuple(other for other in names[id(parameter)] if other != name),
            shape=tuple(parameter.shape),
            dtype=str(parameter.dtype).removeprefix("torch."),
            numel=parameter.numel(),
        )
        layers.append((layer, parameter))
    return layers
