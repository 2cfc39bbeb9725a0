"""Models whose forward leaves something behind, a training loop, and its whole state as bits."""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - because this is how everyone writes it
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

WIDTH, STEPS = 6, 12
NOT_ATTRIBUTES = ("_parameters", "_buffers", "_torchdynamo_wrapper_id")  # the last one counts up

Attach = Callable[[nn.Module, torch.optim.Optimizer], Any]


class Dropouts(nn.Module):
    """One that trains, one that its owner froze, one that never stops."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.trained, self.frozen = nn.Dropout(0.3), nn.Dropout(0.3).eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.dropout(self.frozen(self.trained(self.linear(x))), 0.1, training=True))


class FrozenNorm(nn.Module):
    """A batch norm that its owner froze, inside of a model that trains another."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.trained, self.frozen = nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH).eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.frozen(self.trained(self.linear(x)).relu()))


class Spectral(nn.Module):
    """Power iterations at every training forward, but not in the frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.trained = spectral_norm(nn.Linear(WIDTH, WIDTH))
        self.frozen = spectral_norm(nn.Linear(WIDTH, WIDTH)).eval()
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.frozen(self.trained(x).tanh()))


class Queue(nn.Module):
    """A ring of earlier keys, written to at every forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("queue", F.normalize(torch.randn(20, WIDTH)))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keys = F.normalize(self.linear(x))
        scores = keys @ self.queue.clone().T
        places = (int(self.pointer) + torch.arange(len(x))) % len(self.queue)
        self.queue[places] = keys.detach().to(self.queue.dtype)
        self.pointer[0] = (int(self.pointer) + len(x)) % len(self.queue)
        return scores.logsumexp(1)


class MomentumEncoder(nn.Module):
    """Parameters that follow others, by the forward's own writing."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.key.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.key.weight.data.mul_(0.9).add_(self.encoder.weight.data, alpha=0.1)
        self.key.bias.data = 0.9 * self.key.bias.data + 0.1 * self.encoder.bias.data
        return (self.encoder(x) - self.key(x)).square().sum(1)


class LazyCache(nn.Module):
    """Tables made when first needed, one for each length, drawn at random."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 1)
        self.tables: dict[int, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "scale"):
            self.scale = torch.rand(WIDTH)
        if len(x) not in self.tables:
            self.tables[len(x)] = torch.randn(len(x), WIDTH)
        return self.linear((x + self.tables[len(x)]) * self.scale) / len(self.tables)


class Counter(nn.Module):
    """A schedule in the number of forwards."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 1)
        self.calls, self.recent = 0, deque([1.0], maxlen=3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.recent.append(float(x.mean()))
        return self.linear(x) / self.calls + sum(self.recent)


class Noise(nn.Module):
    """Draws from torch, numpy, Python and a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 1)
        self.generator = torch.Generator().manual_seed(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = torch.randn(len(x), 1, generator=self.generator)
        return self.linear(x + torch.randn_like(x) + np.random.randn() + random.gauss(0, 1)) + own


class Rebinding(nn.Module):
    """A buffer that every forward replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 1)
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.linear(x - self.mean)


class Averages(nn.Module):
    """Exponential averages of inputs and weights, written to in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 1)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("weight", torch.zeros(1, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.lerp_(x.mean(0), 0.1)
        self.weight.lerp_(self.linear.weight.detach(), 0.1)
        return self.linear(x - self.mean) + F.linear(x, self.weight.clone())


class Autocast(nn.Module):
    """Forwards in bfloat16; while warming up, its head trains in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += self.training and torch.is_grad_enabled()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.body(x)
            if self.training and torch.is_grad_enabled() and self.calls < 6:
                with torch.autocast("cpu", enabled=False):
                    return self.head(x.float())
            return self.head(x).float()


SETUPS: dict[str, Callable[[], nn.Module]] = {
    "dropout": Dropouts,
    "frozen batch norm": FrozenNorm,
    "spectral norm": Spectral,
    "queue": Queue,
    "momentum encoder": MomentumEncoder,
    "lazy cache": LazyCache,
    "counter": Counter,
    "noise": Noise,
    "rebound buffer": Rebinding,
    "averages": Averages,
    "autocast": Autocast,
}


def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def shadow_batch() -> torch.Tensor:
    """Of another length than the training's."""
    return torch.linspace(-1, 1, 5 * WIDTH).reshape(5, WIDTH)


def train(
    make: Callable[[], nn.Module],
    attach: Attach,
    *,
    region: Callable[[], AbstractContextManager[Any]] = nullcontext,
    compile_with: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> dict[str, Any]:
    """Train a model, and return all of its state as bits.

    Args:
        make: makes the model.
        attach: called with the model and the optimizer before the first step; what it returns
            is closed after the last one.
        region: what each step runs in, its optimizer's included.
        compile_with: applied to the model before the optimizer is made.
    """
    seed_everything(1)
    model = compile_with(make())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    attached = attach(model, optimizer)
    for _ in range(STEPS):
        with region():
            loss = loss_fn(model, torch.randn(8, WIDTH))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    if attached is not None:
        attached.close()
    return state_of(model, optimizer)


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Parameters, buffers, attributes, optimizer state and the generators' next draws."""
    state: dict[str, Any] = {"optimizer": bits(optimizer.state_dict())}
    for name, module in model.named_modules():
        state[f"{name}: tensors"] = bits({**module._parameters, **module._buffers})
        state[f"{name}: attributes"] = bits(
            {k: v for k, v in vars(module).items() if k not in NOT_ATTRIBUTES}
        )
    state["draws"] = (torch.rand(2).tolist(), np.random.rand(), np.random.randn(), random.random())
    return state


def bits(value: Any) -> Any:
    """A nested value in a form whose equality is that of all of its bits."""
    if hasattr(value, "to_local"):  # this rank's part, and where it belongs
        return [bits(value.to_local()), str(value.placements), tuple(value.shape)]
    if isinstance(value, torch.Tensor):
        flat = value.detach().contiguous().reshape(-1)
        raw = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        return (str(value.dtype), tuple(value.shape), raw)
    if isinstance(value, torch.Generator):
        return bits(value.get_state())
    if isinstance(value, OrderedDict):  # of hooks: their keys count up from process to process
        return bits(list(value.values()))
    if isinstance(value, dict):
        return [(str(key), bits(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple, deque)):
        return [bits(item) for item in value]
    if isinstance(value, set):
        return sorted(map(str, value))
    if isinstance(value, (bool, int, float, str, type(None))):
        return repr(value)
    return getattr(value, "__qualname__", type(value).__name__)  # functions, submodules


def different(one: dict[str, Any], two: dict[str, Any]) -> list[str]:
    """Names of what differs between two states."""
    return [name for name in {**one, **two} if one.get(name) != two.get(name)]


def naive_passes() -> Iterator[Attach]:
    """Two shadow passes as one would write them at first, attached to the optimizer's step."""

    def without_gradients(model: nn.Module) -> None:
        with torch.no_grad():
            loss_fn(model, shadow_batch())

    def evaluating(model: nn.Module) -> None:
        model.eval()
        without_gradients(model)
        model.train()

    for run in (without_gradients, evaluating):

        def attach(
            model: nn.Module,
            optimizer: torch.optim.Optimizer,
            run: Callable[[nn.Module], None] = run,
        ) -> None:
            optimizer.register_step_post_hook(lambda *_: run(model))

        yield attach
