"""One training loop for every set-up of several ranks, and what a guard should record of it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from sdc_guard import Guard
from sdc_guard.checks.across_ranks import InBackground, SameValue
from sdc_guard.digest import digest_tensor

Five = list[float]


@dataclass(frozen=True)
class Here:
    """This process; `run` is None for the training without a guard."""

    rank: int
    world: int
    run: Path | None


def batch(step: int, part: int, rank: int) -> torch.Tensor:
    """The batch of a micro-step, which every rank can make."""
    generator = torch.Generator().manual_seed(1000 * step + 100 * part + rank)
    return torch.randn(4, 6, generator=generator)


def five(gradient: torch.Tensor, numel: int) -> Five:
    """The measures of a gradient by their definitions, in float64.

    Args:
        numel: elements of the whole tensor.
    """
    wide = gradient.detach().double().reshape(-1)
    largest = float(wide.abs().max()) if wide.numel() else 0.0
    return [
        float(wide.square().sum().sqrt()),
        largest,
        float(wide.abs().sum()) / numel,
        float((~wide.isfinite()).sum()),
        float((wide == 0).sum()),
    ]


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of all these trainings."""
    return torch.optim.AdamW(model.parameters(), lr=0.01)


@contextlib.contextmanager
def closing_within(seconds: float) -> Iterator[None]:
    """Guards that close wait so long, and no longer, for a rank from which nothing comes."""
    with contextlib.ExitStack() as stack:
        for kind in (InBackground, SameValue):
            stack.enter_context(mock.patch.object(kind.close, "__defaults__", (seconds,)))
        yield


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor; a collective for a distributed one."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def named(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters by the names of the model that was wrapped."""
    found = {}
    for name, parameter in model.named_parameters():
        for wrapper in ("_orig_mod.", "_fsdp_wrapped_module.", "module."):
            name = name.replace(wrapper, "")
        found[name] = parameter
    return found


def bits(state: dict[str, torch.Tensor]) -> dict[str, bytes]:
    """The bytes of each tensor."""
    return {name: value.numpy().tobytes() for name, value in state.items()}


def differences(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    """Names of the tensors that are not the same bit for bit."""
    found = bits(one), bits(other)
    return sorted(name for name in found[0] | found[1] if found[0].get(name) != found[1].get(name))


def _weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: whole(parameter.detach()) for name, parameter in named(model).items()}


@dataclass
class Training:
    """A training, and what was computed beside it.

    Attributes:
        model: what is called.
        guarded: what the guard is given, if not the model.
        inner: a model of the same kind without wrappers, for the twin in float64.
        weights: the whole parameters by name, if they are not those of the model.
        parts: micro-batches a step.
        quiet: called with a part that is not the last, for the context of its pass.
        factor: by (step, rank), multiplies the loss.
        together: whether all ranks see the same batches.
        digests: whether the whole tensors are digested after each step.
        last: called after the last step.
    """

    here: Here
    model: nn.Module
    optimizer: torch.optim.Optimizer
    guarded: nn.Module | None = None
    inner: nn.Module | None = None
    weights: Callable[[nn.Module], dict[str, torch.Tensor]] | None = None
    parts: int = 1
    quiet: Callable[[bool], Any] = lambda _: contextlib.nullcontext()
    factor: Callable[[int, int], float] = lambda *_: 1.0
    scaler: torch.amp.GradScaler | None = None
    clip: float | None = None
    together: bool = False
    digests: bool = False
    steps: int = 3
    last: Callable[[Guard], Any] = lambda _: None
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> dict[str, Any]:
        told: dict[str, Any] = {"expected": {}, "whole": {}, "digests": {}, "health": None}
        guard = self._guard()
        for step in range(self.steps):
            gradients = self._twin(step) if self.inner is not None else []
            for part in range(self.parts):
                self._pass(step, part, guard)
            self._expect(told, step, gradients)
            self._update()
            if self.digests:
                told["digests"] |= self._digest_all(step)
        if guard is not None:
            told["last"] = self.last(guard)
            told["health"] = guard.health.errors, guard.health.last_error
            guard.close()
        told["state"] = self._state()
        return told

    def _guard(self) -> Guard | None:
        if self.here.run is None:
            return None
        options = {"digest_budget": None, "policy": "record"} | self.options
        return Guard(self.guarded or self.model, self.optimizer, run=self.here.run, **options)

    def _seed(self) -> int:
        return 0 if self.together else self.here.rank

    def _loss(self, model: nn.Module, x: torch.Tensor, step: int, rank: int) -> torch.Tensor:
        loss: torch.Tensor = model(x).square().mean() * self.factor(step, rank) / self.parts
        return loss

    def _pass(self, step: int, part: int, guard: Guard | None) -> None:
        x = batch(step, part, self._seed())
        with self.quiet(part < self.parts - 1):
            loss = self._loss(self.model, x, step, self.here.rank)
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        if guard is not None:
            guard.observe(loss, x)

    def _update(self) -> None:
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad()

    def _twin(self, step: int) -> list[dict[str, torch.Tensor]]:
        """Gradients of each rank's batches by one process in float64; none where unused."""
        assert self.inner is not None
        twin = copy.deepcopy(self.inner).double()
        weights = (self.weights or _weights)(self.model)
        twin.load_state_dict({name: weights[name].double() for name, _ in twin.named_parameters()})
        found = []
        for rank in range(1 if self.together else self.here.world):
            twin.zero_grad()
            for part in range(self.parts):
                self._loss(twin, batch(step, part, rank).double(), step, rank).backward()
            found.append({n: p.grad for n, p in named(twin).items() if p.grad is not None})
        return found

    def _expect(self, told: dict[str, Any], step: int, twin: list[dict[str, torch.Tensor]]) -> None:
        scale = 1.0 if self.scaler is None else self.scaler.get_scale()
        for name, parameter in named(self.model).items():
            numel = self._numel(name, parameter)
            if parameter.grad is not None:
                own = local(parameter.grad).double() / scale
                told["expected"]["present", step, name] = five(own, numel)
                told["whole"][step, name] = float(whole(parameter.grad).double().norm()) / scale
                if self.options.get("digest_gradients"):
                    digest = digest_tensor(whole(parameter.grad))
                    told["digests"][step, "grad", name] = tuple(digest)
        if not twin:
            return
        for name in set().union(*twin):
            terms = [gradients[name] for gradients in twin if name in gradients]
            mean = torch.stack(terms).sum(0) / len(twin)
            told["expected"]["mean", step, name] = five(mean, mean.numel())
            if name in twin[self._seed()]:
                own = twin[self._seed()][name]
                told["expected"]["own", step, name] = five(own, own.numel())

    def _numel(self, name: str, parameter: torch.Tensor) -> int:
        """Elements of the whole parameter; a flat one is all of them."""
        sizes = {n: p.numel() for n, p in named(self.inner or self.model).items()}
        return sum(sizes.values()) if name == "_flat_param" else sizes.get(name, parameter.numel())

    def _digest_all(self, step: int) -> dict[tuple[int, str, str], tuple[int, ...]]:
        found = {}
        for name, parameter in named(self.model).items():
            found[step, "param", name] = tuple(digest_tensor(whole(parameter.detach())))
            for kind in ("exp_avg", "exp_avg_sq"):
                value = self.optimizer.state[parameter][kind]
                found[step, kind, name] = tuple(digest_tensor(whole(value)))
        return found

    def _state(self) -> dict[str, torch.Tensor]:
        found = {}
        for name, parameter in self.model.named_parameters():
            found[name] = local(parameter.detach()).clone()
            for kind, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    found[f"{kind} of {name}"] = local(value).clone()
        return found
