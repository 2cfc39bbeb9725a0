"""A small network of convolutions with BatchNorm, on scikit-learn's handwritten digits."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import nn

from ..errors import UsageError
from .training import Batch, Training

BATCH = 32


class Digits:
    """Batches of 8×8 images in an order that a seed draws anew for each epoch."""

    def __init__(self, seed: int) -> None:
        self._images, self._labels = _digits()
        self._seed = seed
        self.position = 0

    def next(self) -> Batch:
        """32 images, (32, 1, 8, 8) f32 in [0, 1], and their classes, (32,) i64."""
        epoch, place = divmod(self.position, len(self._labels) // BATCH)
        self.position += 1
        generator = torch.Generator().manual_seed(1_000_003 * self._seed + epoch)
        order = torch.randperm(len(self._labels), generator=generator)
        chosen = order[BATCH * place : BATCH * (place + 1)]
        return self._images[chosen], self._labels[chosen]


def convnet(seed: int) -> Training:
    """Two convolutions, BatchNorm and dropout: 10k parameters, AdamW, no clipping.

    No bias before BatchNorm, which would take it away again: its gradient is rounding alone.

    Raises:
        UsageError: scikit-learn is not installed.
    """
    data = Digits(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Flatten(), nn.Dropout(0.1), nn.Linear(512, 10),
    )  # fmt: skip
    return Training(model, torch.optim.AdamW(model.parameters(), lr=1e-3), data, loss_fn)


def loss_fn(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Cross entropy."""
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels)


def load_digits() -> Any:
    """The images, as scikit-learn gives them.

    Raises:
        UsageError: scikit-learn cannot be imported.
    """
    try:
        from sklearn import datasets

        return datasets.load_digits()
    except ImportError:
        raise UsageError(
            "scikit-learn is not installed, which has the images of the model convnet",
            next_step='pip install ".[campaign]" in a clone of SDC Guard, or --model gpt',
        ) from None


@lru_cache(maxsize=1)
def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    found = load_digits()
    images = torch.from_numpy(found.images).to(torch.float32).unsqueeze(1) / 16
    return images, torch.from_numpy(found.target).to(torch.int64)
