"""The sample GPT, as its own script trains it."""

from __future__ import annotations

import copy
import importlib.util
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch

from ..demo.story import sample_script
from ..errors import UsageError
from .training import Training


def gpt(seed: int) -> Training:
    """The training of `sample_runs/tiny_gpt.py --seed SEED`: 0.8M parameters, AdamW, clip 1.0."""
    sample = _sample()
    torch.manual_seed(seed)
    model = sample.TinyGPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    return Training(model, optimizer, copy.copy(_text(seed)), sample.loss_fn, clip=1.0)


@lru_cache(maxsize=1)
def _sample() -> ModuleType:
    """The script as a module; it is no part of a package."""
    path = sample_script()
    spec = importlib.util.spec_from_file_location("sdc_guard_sample_gpt", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(
            "the sample training script is missing", where=str(path), next_step="install again"
        )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@lru_cache(maxsize=4)
def _text(seed: int) -> Any:
    """The text in its order; it is read from many files, and not written to."""
    return _sample().Text(seed)
