"""Whether the same steps from the same state give the same bits here, and what would make them."""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 - because this is how everyone writes it
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..digest import digest_rows
from .line import Bench, Outcome, Trial
from .training import one_thread

_SECTION = "replay"
_STEPS: Final = 8
_REPEATS: Final = 4  # of the same steps: what is not exact may be so by chance once


@dataclass(frozen=True)
class Setting:
    """A setting that is known to make some computations exact.

    Attributes:
        name: as a user would write it.
        set: in force inside.
    """

    name: str
    set: Callable[[], contextlib.AbstractContextManager[object]]


def settings_for(device: torch.device) -> list[Setting]:
    """Those that are tried one at a time, the cheapest first."""
    found = [Setting("torch.use_deterministic_algorithms(True)", _deterministic)]
    if device.type == "cuda":
        found += [
            Setting("torch.backends.cudnn.benchmark = False, deterministic = True", _cudnn),
            Setting("sdpa_kernel(SDPBackend.MATH)", lambda: sdpa_kernel(SDPBackend.MATH)),
        ]
    found.append(Setting('torch.set_float32_matmul_precision("highest")', _precision))
    if device.type == "cpu":
        found += [
            Setting("torch.set_num_threads(1)", one_thread),
            Setting("torch.backends.mkldnn.set_flags(False)", _without_mkldnn),
        ]
    return found


def judged(steps: Callable[[], str], settings: list[Setting]) -> Outcome:
    """Run the steps several times, and find the setting that makes them equal if they are not.

    Args:
        steps: trains from one state and returns a hash of all bits of the result.
        settings: tried one at a time.
    """
    if _exact(steps):
        return Outcome("PASS", f"{_STEPS} steps, {_REPEATS} times from one state: equal bits")
    for setting in settings:
        with setting.set():
            if _exact(steps):
                return Outcome(
                    "INCOMPLETE",
                    f"not exact as set here; exact with {setting.name}",
                    {"exact_with": setting.name},
                )
    tried = ", ".join(setting.name for setting in settings)
    return Outcome("FAIL", f"not exact, and no setting alone makes it so: {tried}")


def _exact(steps: Callable[[], str]) -> bool:
    first = steps()
    return all(steps() == first for _ in range(_REPEATS - 1))


def replayed(device: torch.device, bench: Bench) -> Outcome:
    """A training of embedding, convolution, attention and norm on one device."""
    del bench
    outcome = judged(partial(trained, device), settings_for(device))
    detail = outcome.detail | {"threads": torch.get_num_threads()}
    return Outcome(outcome.verdict, outcome.reason, detail)


class Mixed(nn.Module):
    """What kernels are known to compute in an order of their own: gathers, convolution, SDPA."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32, 64)
        self.conv = nn.Conv1d(64, 64, 3, padding=1)
        self.norm = nn.LayerNorm(64)
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        x = x + self.conv(x.mT).mT
        q, k, v = (
            part.unflatten(-1, (4, 16)).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        found: torch.Tensor = self.out(x + mixed.transpose(1, 2).flatten(2))
        return found


def trained(device: torch.device) -> str:
    """Train from one state; a hash of the bits of all losses, parameters and moments."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = Mixed()
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(4)
    kept: list[torch.Tensor] = []
    for _ in range(_STEPS):
        tokens = torch.randint(0, 32, (8, 64), generator=generator).to(device)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten())
        loss.backward()  # type: ignore[no-untyped-call] # torch has no types here
        optimizer.step()
        optimizer.zero_grad()
        kept.append(loss.detach())
    kept += [parameter.detach() for parameter in model.parameters()]
    kept += [
        value
        for parameter in model.parameters()
        for value in optimizer.state[parameter].values()
        if isinstance(value, torch.Tensor)
    ]
    rows = digest_rows(kept).cpu().numpy()
    return hashlib.blake2b(rows.tobytes(), digest_size=8).hexdigest()


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    only_warn = torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before, warn_only=only_warn)


@contextlib.contextmanager
def _cudnn() -> Iterator[None]:
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        yield


@contextlib.contextmanager
def _precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def _without_mkldnn() -> Iterator[None]:
    set_flags: Any = torch.backends.mkldnn.set_flags
    before, *_ = set_flags(False)
    try:
        yield
    finally:
        set_flags(before)


def trials_of(bench: Bench) -> list[Trial]:
    """A line for each device."""
    return [
        Trial(_SECTION, f"bit-exact on {device}", partial(replayed, device))
        for device in bench.devices
    ]
