"""What the hooks cannot see in a training, recognised and said in one line each."""

from __future__ import annotations

import sys
from typing import Any

import torch

from .pipeline import stage_numbers

_WITH_CUDA = torch.backends.cuda.is_built()  # type: ignore[no-untyped-call] # torch has no types here

AT_THE_STEP = (
    "no gradient hook fired in this backward: gradients are read at the optimizer's step, after "
    "any clipping"
)
CAPTURING = (
    "a CUDA graph is being captured: its replays run no hooks, so steps inside of a graph are "
    "not recorded"
)
COMPILED_AUTOGRAD = (
    "compiled autograd: hooks cannot tell when a backward ends, so gradients are read at the "
    "optimizer's step, after any clipping"
)
NO_FORWARD = (
    "a step came without a forward that hooks can tell of (the model is compiled, or not called as "
    "a module): buffers are digested, and no longer compared"
)
_FSDP1 = (
    "FullyShardedDataParallel (FSDP1) hides its parameters from hooks: gradients are read at the "
    "optimizer's step, this rank's part of them, after any clipping; fully_shard (FSDP2) is seen "
    "in full"
)
NOT_BESIDE = (
    "FullyShardedDataParallel (FSDP1) points its parameters at gathered memory during a forward, "
    "and frees that: digests are taken at the step, not beside it"
)
PIPELINE = (
    "a pipeline schedule divides the gradients after backward by its number of microbatches: "
    "they are read at the optimizer's step, after any clipping"
)
_EARLIER_HOOKS = (
    "other hooks were registered on {count} parameters before the guard's: it sees what they leave "
    "of a gradient. Make the Guard first"
)
_NOT_IN_MODEL = (
    "{count} of the optimizer's parameters are not the model's (first shape {shape}): they are "
    "not recorded. Give the Guard the module that the optimizer trains"
)


def limits(
    model: torch.nn.Module, optimizers: list[torch.optim.Optimizer]
) -> tuple[list[str], bool]:
    """What cannot be seen, a line each, and whether hooks in backward would measure wrongly."""
    lines, wrongly = [], False
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        lines.append(_FSDP1)
        wrongly = True
    if stage_numbers(model):
        lines.append(PIPELINE)
        wrongly = True
    config: Any = sys.modules.get("torch._dynamo.config")
    if getattr(config, "compiled_autograd", False):
        lines.append(COMPILED_AUTOGRAD)
    hooked = sum(bool(getattr(p, "_post_accumulate_grad_hooks", None)) for p in model.parameters())
    if hooked:
        lines.append(_EARLIER_HOOKS.format(count=hooked))
    known = {id(parameter) for parameter in model.parameters()}
    strangers = [
        parameter
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
        if id(parameter) not in known
    ]
    if strangers:
        lines.append(_NOT_IN_MODEL.format(count=len(strangers), shape=list(strangers[0].shape)))
    return lines, wrongly


def capturing() -> bool:
    """Whether a CUDA graph is being captured on the current stream."""
    if not _WITH_CUDA:
        return False
    initialized: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call] # torch has no types here
    return initialized and torch.cuda.is_current_stream_capturing()
