"""A kept step as plain values, for another device or rank that has the same parameters."""

from __future__ import annotations

import copy
from typing import Any

import torch

from ...digest import digest_rows
from ...signals.batch import pinned
from ...signals.restoration import Kept
from .generators import Generators
from .kept_step import KeptStep, MicroBatch
from .step_replay import NotComparable, Result, Steps, original_of
from .subject import Subject, device_kind
from .surroundings import Autocast

Package = dict[str, Any]


def packed(kept: KeptStep) -> Package:
    """All that the step began with, but the parameters; call it right after `rewind`.

    Nothing in it but tensors, numbers, text and containers, unless the batch holds more.
    """
    model = kept.subject.model
    parameters = dict(model.named_parameters())
    return {
        "kind": device_kind(kept.subject.device),
        "original": _plain(original_of(kept)),
        "weights": digest_rows(kept.subject.state).cpu(),
        "written": {name: parameters[name].detach().clone() for name in kept.by_value},
        "buffers": {name: buffer.detach().clone() for name, buffer in model.named_buffers()},
        "trained": kept.trained,
        "training": [module.training for module in model.modules()],
        "in_place": list(kept.gradients.in_place),
        "dropped": kept.gradients.dropped,
        "scale": kept.scale,
        "micro_batches": [
            {
                "generators": micro.generators.to_plain(),
                "autocast": micro.autocast.to_plain(),
                "batch": pinned(micro.batch),
            }
            for micro in kept.micro_batches
        ],
    }


def original_in(package: Package) -> Result:
    """What the step gave where it was packed."""
    rows, present = package["original"]
    return Result(rows, tuple(present))


def _plain(result: Result) -> list[Any]:
    return [result.rows, list(result.present)]


def run_packed(package: Package, subject: Subject) -> Result:
    """Run a packed step by a model that has its parameters.

    What it changes in the model and the generators the caller puts back.

    Raises:
        NotComparable: another kind of device, other parameters or another model.
        Exception: whatever the loss function raises.
    """
    kind = device_kind(subject.device)
    if package["kind"] != kind:
        raise NotComparable(f"another kind of device: {kind}")
    _set_state(package, subject)
    if not torch.equal(digest_rows(subject.state).cpu(), package["weights"]):
        raise NotComparable("it holds other parameters than this rank")
    if subject.trained != package["trained"]:
        raise NotComparable("it has other parameters frozen than this rank")
    steps = Steps(subject, package["in_place"], package["scale"])
    device = subject.device
    for number, one in enumerate(package["micro_batches"]):
        if number == package["dropped"]:
            steps.drop()
        generators = Generators.of_plain(one["generators"])
        generators.put(None if device.type == "cpu" else device)
        micro = MicroBatch(generators, generators, Autocast.of_plain(one["autocast"]))
        steps.add(_moved(one["batch"], device), micro)
    return steps.result()


def _set_state(package: Package, subject: Subject) -> None:
    model = subject.model
    modules, buffers = list(model.modules()), dict(model.named_buffers())
    parameters = dict(model.named_parameters())
    if len(modules) != len(package["training"]) or set(buffers) != set(package["buffers"]):
        raise NotComparable("its model is another one")
    with torch.no_grad():
        for name, value in package["buffers"].items():
            buffers[name].copy_(value)
        for name, value in package["written"].items():
            parameters[name].copy_(value)
    for module, training in zip(modules, package["training"], strict=True):
        if module.training != training:
            module.training = training


def copied_to(subject: Subject, device: torch.device) -> Subject:
    """The same model on another device, with parameters and buffers of its own.

    Raises:
        NotComparable: it is compiled, or lies on several devices.
        Exception: it refuses to be copied, or there is no memory for it.
    """
    if "_orig_mod" in subject.model._modules:
        raise NotComparable("a compiled model would be compiled again for another device")
    if len(subject.devices) > 1:
        raise NotComparable("the model lies on several devices")
    memo: dict[int, Any] = {}
    for parameter in subject.model.parameters():
        moved = parameter.detach().to(device, copy=True)
        memo[id(parameter)] = torch.nn.Parameter(moved, parameter.requires_grad)
    for buffer in subject.model.buffers():
        memo[id(buffer)] = buffer.detach().to(device, copy=True)
    parameters = tuple(memo[id(parameter)] for parameter in subject.parameters)
    return Subject(
        copy.deepcopy(subject.model, memo),
        subject.names,
        parameters,
        (device,),
        subject.loss_fn,
    )


def on_copy(package: Package, copied: Subject) -> Result:
    """Run a packed step by a copy of the model, whose device's generator is put back."""
    kept = Kept(copied.model, tuple(package["written"]))
    try:
        return run_packed(package, copied)
    finally:
        kept.put_back()


def _moved(value: Any, device: torch.device) -> Any:
    """A batch with its tensors of accelerators on this device; those of the CPU stay."""
    if isinstance(value, torch.Tensor):
        return value if value.is_cpu or device.type == "cpu" else value.to(device)
    if isinstance(value, dict):
        return {name: _moved(item, device) for name, item in value.items()}
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(_moved(item, device) for item in value)
    if isinstance(value, list):
        return [_moved(item, device) for item in value]
    return value
