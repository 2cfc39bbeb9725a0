"""Healthy logs for calibrating `check-log`: made from formulas, and by small trainings.

Each yields loss and gradient norm of every step. Nothing goes wrong in any of them; what looks
odd in them is what a limit has to stand above.
"""

from __future__ import annotations

import math
import sysconfig
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Made = tuple[Floats, Floats]  # loss, gradient norm; shape (rows,) each


def _noise(tail: str, rng: np.random.Generator, rows: int) -> Floats:
    """Noise of about unit scale in its middle."""
    if tail == "normal":
        return rng.normal(size=rows)
    if tail == "t3":
        return rng.standard_t(3, size=rows)
    if tail == "laplace":
        return rng.laplace(size=rows) / math.sqrt(2)
    steady = rng.normal(size=rows)
    if tail == "ar1":  # each value remembers nine tenths of the last
        for row in range(1, rows):
            steady[row] = 0.9 * steady[row - 1] + math.sqrt(1 - 0.81) * steady[row]
        return steady
    calm = np.zeros(rows)  # "bursts": the scale itself wanders
    for row in range(1, rows):
        calm[row] = 0.98 * calm[row - 1] + 0.1 * rng.normal()
    return steady * np.exp(calm)


def made(tail: str, seed: int, rows: int) -> Made:
    """A run with a warm-up of 200 rows, noise of this kind, and losses rounded to 4 digits."""
    rng = np.random.default_rng([seed, len(tail)])
    at = np.arange(rows)
    loss = 2.5 + 8 * np.exp(-at / 150) - 0.1 * np.log1p(at / 500)
    loss = np.round(loss + 0.04 * _noise(tail, rng, rows), 4)
    log_norm = 4.6 * np.exp(-at / 60) - 1.0 + 0.15 * _noise(tail, rng, rows)
    return loss, np.exp(log_norm)


TAILS = ("normal", "t3", "laplace", "ar1", "bursts")


class _Gpt(torch.nn.Module):
    def __init__(self, width: int = 32, context: int = 32) -> None:
        super().__init__()
        self.token = torch.nn.Embedding(128, width)
        self.place = torch.nn.Parameter(0.02 * torch.randn(context, width))
        layer = torch.nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(width, 128)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = torch.nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.blocks(self.token(ids) + self.place, mask=mask, is_causal=True))


class _Gru(torch.nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.token = torch.nn.Embedding(128, width)
        self.cell = torch.nn.GRU(width, width, batch_first=True)
        self.head = torch.nn.Linear(width, 128)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(self.token(ids))[0])


def _text() -> torch.Tensor:
    """Python's own library as ASCII codes."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    raw = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py"))[:60])
    return torch.tensor([byte for byte in raw if byte < 128], dtype=torch.int64)


def _of_text(model: Callable[[], torch.nn.Module], lr: float, batch: int) -> Callable[..., Made]:
    def run(seed: int, rows: int) -> Made:
        torch.manual_seed(seed)
        text, net = _text(), model()

        def loss() -> torch.Tensor:
            begin = torch.randint(len(text) - 33, (batch, 1)) + torch.arange(33)
            ids = text[begin]
            return F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

        return _train(net, loss, lr, rows)

    return run


def _digits(seed: int, rows: int) -> Made:
    """A convolution with a small batch, until it knows its data by heart: losses near zero."""
    from sklearn.datasets import load_digits

    torch.manual_seed(seed)
    images, names = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    y = torch.tensor(names, dtype=torch.int64)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 12, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(432, 10)
    )

    def loss() -> torch.Tensor:
        drawn = torch.randint(len(x), (16,))
        return F.cross_entropy(net(x[drawn]), y[drawn])

    return _train(net, loss, 2e-3, rows)


def _train(net: torch.nn.Module, loss_of: Callable[[], torch.Tensor], lr: float, rows: int) -> Made:
    """AdamW with a warm-up of 100 steps, cosine decay, and clipping at 1."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda at: min(1, (at + 1) / 100) * (0.55 + 0.45 * math.cos(math.pi * at / rows))
    )
    losses, norms = np.empty(rows), np.empty(rows)
    for row in range(rows):
        loss = loss_of()
        loss.backward()
        norms[row] = float(torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0))
        losses[row] = float(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return losses, norms


TRAININGS: dict[str, Callable[[int, int], Made]] = {
    "gpt": _of_text(_Gpt, 3e-3, 8),
    "gpt, batch of 2": _of_text(_Gpt, 1e-3, 2),
    "gru": _of_text(_Gru, 1e-2, 8),
    "digits": _digits,
}
