"""Reading back what a guard recorded, and computing what it should have recorded by hand."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT

from sdc_guard import RunReader

os.environ["HF_HUB_OFFLINE"] = "1"  # read when one of Hugging Face's libraries is imported


def rows(run: Path, columns: str, table: str = "steps") -> list[Any]:
    """The rows of a table in the order of the steps."""
    with RunReader(run) as reader:
        return reader.rows(f"SELECT {columns} FROM {table} ORDER BY step")


def sums_of_bits(run: Path, step: int) -> dict[str, int]:
    """Name of each parameter to the sum of its bits that the trace has after a step."""
    with RunReader(run) as reader:
        found = reader.rows(
            "SELECT name, s1 FROM digests JOIN layer_names USING (layer)"
            " WHERE step = $step AND phase = 'after' AND kind = 'param'",
            {"step": step},
        )
    return dict(found)


def sum_of_bits(tensor: torch.Tensor) -> int:
    """The sum of a float32 tensor's bits, by numpy."""
    return int(tensor.detach().numpy().view(np.uint32).astype(np.int64).sum())


def gradient_norm(parameters: Iterable[torch.nn.Parameter]) -> float:
    """Norm over all gradients, in float64."""
    squares = [p.grad.double().square().sum().item() for p in parameters if p.grad is not None]
    return math.sqrt(sum(squares))


def by_hand(
    model: torch.nn.Module,
    weights: list[dict[str, torch.Tensor]],
    batches: list[list[Any]],
    loss_of: Callable[[torch.nn.Module, Any], torch.Tensor],
    divisor: int | None = None,
) -> list[tuple[float, float]]:
    """Mean loss and gradient norm of each step, by plain torch in float64.

    Args:
        model: of the trained model's class; is overwritten.
        weights: of each step, before it.
        batches: of each step, its micro-batches.
        loss_of: a micro-batch's mean loss.
        divisor: of each loss before its backward; by default the number of micro-batches.
    """
    model = model.double()
    found = []
    for state, micro_batches in zip(weights, batches, strict=True):
        model.load_state_dict(state)
        model.zero_grad()
        losses = [loss_of(model, batch) for batch in micro_batches]
        for loss in losses:
            (loss / (divisor or len(losses))).backward()
        mean = sum(loss.item() for loss in losses) / len(losses)
        found.append((mean, gradient_norm(model.parameters())))
    return found


def another_scaler() -> torch.amp.GradScaler:
    """One that has been used: with it the guard cannot tell which one is the training's."""
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    return scaler


def example(library: str) -> str:
    """The example of a section of the integrations' document."""
    text = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
    section = text.split(f"\n## {library}\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    return str(code)


def close(values: Any) -> Any:
    """Equal to 1e-6 of each value, or both NaN."""
    return [pytest.approx(row, rel=1e-6, nan_ok=True) for row in values]
