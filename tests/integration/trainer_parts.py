"""Small models, data and Trainers for the tests with the Hugging Face Trainer.

Imported when the first of those tests runs: the library takes seconds to import.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from sdc_guard.integrations.huggingface import SdcGuardCallback

__all__ = ["SdcGuardCallback", "TrainerCallback"]  # for the tests, besides what is below

VOCABULARY, LENGTH = 17, 8


def tiny_llama(dropout: float = 0.0) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=8, intermediate_size=12, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=LENGTH, attention_dropout=dropout,
    )  # fmt: skip
    return LlamaForCausalLM(config)


class Line(torch.nn.Module):
    """A model of a user's own: it takes no further arguments and gives a mean loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1)
        )

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.net(x)
        return {"loss": (out - labels).square().mean(), "logits": out}


def texts(count: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randint(VOCABULARY, (count, LENGTH), generator=generator)
    return [{"input_ids": text, "labels": text} for text in drawn]


def points(count: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn((count, 6), generator=generator)
    return [{"x": row[:5], "labels": row[5:]} for row in drawn]


class Weights(TrainerCallback):
    """Keeps the weights that each step starts from."""

    def __init__(self) -> None:
        self.before: list[dict[str, torch.Tensor]] = []

    def on_step_begin(self, *_: Any, model: torch.nn.Module, **kwargs: Any) -> None:
        self.before.append(copy.deepcopy(model.state_dict()))


class At(TrainerCallback):
    """Calls a function at the end of one step."""

    def __init__(self, step: int, action: Callable[..., Any]) -> None:
        self.step, self.action = step, action

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            self.action(**kwargs)


def trainer_of(
    folder: Path, model: torch.nn.Module, data: list[Any], *callbacks: Any, **options: Any
) -> Trainer:
    """A Trainer of four steps that takes the data in their order."""
    defaults: dict[str, Any] = {
        "max_steps": 4, "per_device_train_batch_size": 2, "train_sampling_strategy": "sequential",
        "logging_steps": 1, "save_strategy": "no", "use_cpu": True, "report_to": [],
        "disable_tqdm": True, "optim": "adamw_torch", "learning_rate": 1e-2,
    }  # fmt: skip
    arguments = TrainingArguments(str(folder), **{**defaults, **options})
    return Trainer(model, arguments, train_dataset=data, callbacks=list(callbacks))


def collated(data: list[Any], size: int = 2) -> list[dict[str, torch.Tensor]]:
    """Batches of `size`."""
    parts = [data[start : start + size] for start in range(0, len(data), size)]
    return [{key: torch.stack([row[key] for row in part]) for key in part[0]} for part in parts]


def line_loss(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    loss: torch.Tensor = model(**{key: value.double() for key, value in batch.items()})["loss"]
    return loss


def text_loss(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    logits = model(input_ids=batch["input_ids"]).logits[:, :-1]
    targets = batch["input_ids"][:, 1:]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def summed_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any) -> torch.Tensor:
    targets = labels[:, 1:].flatten()
    logits = outputs["logits"][:, :-1].flatten(0, 1)
    total = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
    return total / num_items_in_batch
