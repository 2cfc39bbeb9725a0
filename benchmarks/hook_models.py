"""The models that `hook_overhead.py` trains: from many small operations to few large ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - because this is how everyone writes it
from torch import nn

Batch = tuple[torch.Tensor, torch.Tensor]
BATCHES: Final = 8  # made beforehand and used in turn: data loading is not measured


class Block(nn.Module):
    """One transformer block: 12 tensors."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        split = self.qkv(self.norm_1(x)).view(batch, time, 3, self.heads, -1).unbind(2)
        q, k, v = (tensor.transpose(1, 2) for tensor in split)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        widened: torch.Tensor = self.down(F.gelu(self.up(self.norm_2(x))))
        return x + widened


class GPT(nn.Module):
    """A decoder with a tied head: 4 tensors and 12 in each block."""

    def __init__(self, width: int, blocks: int, heads: int, vocabulary: int, context: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight).flatten(0, 1)


class Residual(nn.Module):
    """Two 3×3 convolutions and what goes around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.around = nn.Sequential()
        if stride > 1:
            self.around = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.body(x) + self.around(x)
        return F.relu(out)


def resnet20() -> nn.Module:
    """The residual network of 20 layers for images of 32×32, with projections."""
    widths = [(16, 16, 1), (16, 32, 2), (32, 64, 2)]
    blocks = [
        Residual(inputs if first else outputs, outputs, stride if first else 1)
        for inputs, outputs, stride in widths
        for first in (True, False, False)
    ]
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def mlp() -> nn.Module:
    """Six linear layers."""
    sizes = [784, 512, 512, 512, 512, 512]
    hidden = [
        layer
        for inputs, outputs in itertools.pairwise(sizes)
        for layer in (nn.Linear(inputs, outputs), nn.ReLU())
    ]
    return nn.Sequential(*hidden, nn.Linear(512, 10))


def token_batch(batch: int, context: int, vocabulary: int) -> Batch:
    """Sequences in which each token decides the next one."""
    tokens = torch.randint(vocabulary, (batch, 1)) + 7 * torch.arange(context + 1)
    tokens = tokens % vocabulary
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def image_batch(batch: int, *shape: int) -> Batch:
    """Noise around a level that is the label."""
    labels = torch.randint(10, (batch,))
    return torch.randn(batch, *shape) + labels.view(-1, *(1 for _ in shape)) / 5, labels


def loss_fn(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Cross entropy of a batch."""
    inputs, targets = batch
    return F.cross_entropy(model(inputs), targets.flatten())


@dataclass(frozen=True)
class Task:
    """A model to train.

    Attributes:
        title: for the table.
        make_model: a new model, initialised from torch's generator.
        make_batch: a new batch, likewise.
        steps: optimizer steps of one measured block.
    """

    title: str
    make_model: Callable[[], nn.Module]
    make_batch: Callable[[], Batch]
    steps: int


TASKS: Final = {
    "gpt-21m": Task(
        "GPT 21M", lambda: GPT(512, 6, 8, 4096, 128), lambda: token_batch(4, 128, 4096), 5
    ),
    "gpt-1m": Task("GPT 1M", lambda: GPT(128, 4, 4, 768, 64), lambda: token_batch(8, 64, 768), 60),
    "mlp": Task("MLP 1.5M", mlp, lambda: image_batch(128, 784), 60),
    "resnet": Task("ResNet 0.3M", resnet20, lambda: image_batch(32, 3, 32, 32), 20),
}
