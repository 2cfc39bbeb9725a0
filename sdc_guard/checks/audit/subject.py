"""What a step audit runs again: the model that the script calls, and what it trains."""

from __future__ import annotations

import platform
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

from ...signals.layers import model_layers, trained_by
from ...signals.shadow import LossFunction
from .outside import Outside, roots_of


@dataclass(frozen=True)
class Subject:
    """One training's model.

    Attributes:
        model: without the wrappers of data parallelism, whose forward talks to other ranks;
            compiled if the training's is, as other kernels give other bits.
        names, parameters: those that the optimizers train, each once.
        devices: of the model.
        loss_fn: loss_fn(model, batch) → scalar tensor.
    """

    model: torch.nn.Module
    names: tuple[str, ...]
    parameters: tuple[torch.nn.Parameter, ...]
    devices: tuple[torch.device, ...]
    loss_fn: LossFunction

    @classmethod
    def of(
        cls,
        model: torch.nn.Module,
        optimizers: list[torch.optim.Optimizer],
        loss_fn: Callable[[torch.nn.Module, Any], torch.Tensor],
    ) -> Subject:
        """The model as it is now."""
        trained = trained_by(optimizers)
        inner = called_alone(model)
        pairs = [
            (layer.name, parameter)
            for layer, parameter in model_layers(model)
            if id(parameter) in trained and parameter.requires_grad
        ]
        devices = {tensor.device for tensor in (*inner.parameters(), *inner.buffers())}
        return cls(
            inner,
            tuple(name for name, _ in pairs),
            tuple(parameter for _, parameter in pairs),
            tuple(sorted(devices, key=str)),
            loss_fn,
        )

    @property
    def device(self) -> torch.device:
        """The first accelerator of the model, or the CPU."""
        return _first(self.devices)

    def outside(self) -> Outside:
        """State that the loss function and the model keep outside of it, as it is now."""
        return Outside(roots_of(self.loss_fn, self.model), self.model)

    @property
    def trained(self) -> list[bool]:
        """Which of the parameters require a gradient now; a script may freeze some for a while."""
        return [parameter.requires_grad for parameter in self.parameters]

    @property
    def state(self) -> list[torch.Tensor]:
        """All parameters, those that are not trained too."""
        return [parameter.detach() for parameter in self.model.parameters()]


def called_alone(model: torch.nn.Module) -> torch.nn.Module:
    """The model without the wrappers of data parallelism around it."""
    while isinstance(model, (DistributedDataParallel, DataParallel)):
        model = model.module
    return model


def device_of(model: torch.nn.Module) -> torch.device:
    """The first accelerator that a model lies on, or the CPU."""
    return _first(sorted({parameter.device for parameter in model.parameters()}, key=str))


def _first(devices: Iterable[torch.device]) -> torch.device:
    for device in devices:
        if device.type not in ("cpu", "meta"):
            return device
    return torch.device("cpu")


def device_kind(device: torch.device) -> str:
    """What has to be the same for the same bits: the accelerator's name, or the processor's."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"{device.type} {platform.machine()}"


def device_serial(device: torch.device) -> str:
    """What a device is known by wherever it is built in: a GPU's UUID; of a CPU, its host."""
    if device.type == "cuda":
        return f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    return f"{device.type} of {socket.gethostname()}"
