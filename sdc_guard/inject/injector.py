"""Injector: does planned faults to a training run, and keeps the record."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..errors import InjectionError
from ..options import listed
from ..stepping import StepHooks
from .bits import flip_bit
from .checked import check_fault
from .fault import Fault, InjectionRecord, Site
from .firing import Firing
from .hooks import SilentInCopies
from .journal import Journal, read_journal
from .scope import Scope
from .sites import at_rest, gradients
from .sites.activation import Activations, OutputGradients
from .sites.batch import Batch
from .sites.collective import Collective
from .sites.site import Target
from .taken import Missed

__all__ = ["Injector", "flip_bit", "read_journal"]

_log = logging.getLogger("sdc_guard")

_ELSEWHERE = "a checkpoint's file is not part of the training"


class Injector:
    """Injects faults into a training: into its state at rest and into what it computes.

    docs/injector.md says what each site is, and when exactly it is hit. The training's random
    generators are left alone, and nothing waits for a device. What cannot be injected once the
    training runs does not stop it: that is logged, and kept in `missed`.

    Args:
        model, optimizer: what is trained; several optimizers that step together as a sequence.
            A Guard of them is made before, so that it sees the gradients that are injected into.
        seed: of everything that a Fault leaves open.
        run: folder that keeps the journal; a fault that stands in it does not fire again, so a
            resumed run is not hit twice. None for no journal.
        first_step: number of the first step that this process runs.
        again: whether what the journal says has fired does fire again. A persistent fault always
            does: a defect is still there after a restart.
        count: called at the beginning and end of a step for the number of the one that runs then,
            where somebody else counts; by itself the injector counts the optimizers' steps, which
            leaves out those that a gradient scaler skips.

    Raises:
        InjectionError: the run's journal is damaged.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        seed: int,
        run: str | Path | None = None,
        first_step: int = 0,
        again: bool = False,
        count: Callable[[], int] | None = None,
    ) -> None:
        optimizers = listed(optimizer)
        self._first = self._step = first_step
        rank = rank_here()
        journal = Journal(None if run is None else Path(run).absolute(), rank)
        self._count = count
        self._firing = Firing(
            seed, rank, journal, lambda: self._step, world=world_here(), again=again
        )
        if hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None):
            self._firing.backend = "compiled"
        self._at_rest = _at_rest(self._firing, model, optimizers)
        self._batch = Batch(self._firing, model)
        self._reduced = gradients.ReducedGradients(self._firing, model)
        self._sites: dict[Site, Target] = {
            **self._at_rest,
            "batch": self._batch,
            "gradient": gradients.Gradients(self._firing, model),
            "reduced_gradient": self._reduced,
            "activation": Activations(self._firing, model),
            "output_gradient": OutputGradients(self._firing, model),
            "collective": Collective(self._firing, model),
        }
        self._told = False  # of a forward in this step
        # before other hooks: sharding puts whole parameters in the place of what a rank keeps
        self._handle: Any = model.register_forward_pre_hook(
            _ForwardBegins(self), with_kwargs=True, prepend=True
        )
        self._hooks = StepHooks(optimizers, self)

    def __enter__(self) -> Injector:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def attached(self) -> bool:
        """Whether its hooks are there: it was not closed."""
        return self._hooks.attached

    @property
    def records(self) -> list[InjectionRecord]:
        """What was injected so far; on a device, as far as it can be read without waiting."""
        return self._firing.records()

    @property
    def missed(self) -> list[Missed]:
        """What was due and did not fire, with the reason; complete after `close`."""
        return list(self._firing.missed)

    @property
    def plan(self) -> Mapping[int, Fault]:
        """The faults that were added, by their numbers."""
        return {taken.number: taken.fault for taken in self._firing.plan}

    def scope(self, site: Site) -> Scope:
        """What a fault at a site can be aimed at, and what is skipped, with the reason.

        Raises:
            InjectionError: no such site in this training.
        """
        return self._target(site).scope()

    def add(self, fault: Fault) -> Injector:
        """Plan a fault.

        Raises:
            InjectionError: no such site or tensor, an index, bit or step out of range, something
                that cannot be done to this dtype, or a fault that is planned already and would be
                undone by its double.
        """
        if not self.attached:
            raise InjectionError("the injector is closed", next_step="add faults before")
        check_fault(fault)
        target = self._target(fault.site)
        target.watch(self._firing.take(fault, target.scope(), target.check, self._first))
        return self

    def revert(self) -> list[tuple[InjectionRecord, tuple[int, ...]]]:
        """Put state at rest back to what it was, where it still is what was injected.

        Returns:
            the records of which words could not be put back, as they were written to since, with
            the indices of these words.
        """
        return self._firing.revert({site: target.tensor for site, target in self._at_rest.items()})

    def remove(self) -> None:
        """The same as `close`."""
        self.close()

    def close(self) -> None:
        """Detach; read what is still on a device, and say what did not fire. Twice is once."""
        if not self.attached:
            return
        self._hooks.settle()
        self._hooks.remove()
        self._handle.remove()
        for target in self._sites.values():
            target.close()
        self._firing.close(self._first)

    # what the model's hook tells

    def forward_begins(self, args: Any, kwargs: Any) -> Any:
        """A training forward begins; called by the hook on the model."""
        self._hooks.settle()
        self._step = self._counted(self._step)
        self._told = True
        self._hit_state()
        return self._batch.called_with(args, kwargs)

    # what StepHooks tells

    def step_begins(self, optimizer: torch.optim.Optimizer, *, has_closure: bool) -> None:
        """The gradients of this step are about to be read."""
        if not has_closure:
            self._reduced.before_the_optimizer()

    def step_goes_on(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer steps inside of the backward."""
        self._reduced.before_the_optimizer()

    def closure_returned(self, loss: Any) -> None:
        """A closure has made the gradients that its optimizer is about to read."""
        self._reduced.before_the_optimizer()

    def closure_raised(self) -> None:
        """A closure gave nothing to read."""

    def step_ends(self) -> None:
        """All optimizers have stepped."""
        self._step = self._counted(self._step + 1)
        if not self._told:
            self._firing.untold = True
            if "torch._dynamo" in sys.modules:  # it is what swallows hooks
                self._firing.backend = "compiled"
            self._hit_state()  # the only moment that is told of between two steps
        self._told = False

    def _counted(self, by_itself: int) -> int:
        """The number of the step; that by its own count where nobody else counts."""
        if self._count is None:
            return by_itself
        try:
            return self._count()
        except Exception as error:  # noqa: BLE001 - because the training goes on
            self._count = None
            _log.warning(
                "SDC Guard: the injector counts steps by itself from %d on, as count= raised %s: "
                "%s", by_itself, type(error).__name__, error,
            )  # fmt: skip
            return by_itself

    def _hit_state(self) -> None:
        for target in self._at_rest.values():
            target.at_rest()

    def _target(self, site: Site) -> Target:
        if site == "file":
            raise InjectionError(_ELSEWHERE, next_step="corrupt it by: sdc-guard inject --file")
        return self._sites[site]


class _ForwardBegins(SilentInCopies):
    def __init__(self, injector: Injector) -> None:
        self._injector = injector

    def __call__(self, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        # an evaluation, or the guard's shadow pass, is not the training forward
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return None
        return self._injector.forward_begins(args, kwargs)


def _at_rest(
    firing: Firing, model: torch.nn.Module, optimizers: list[torch.optim.Optimizer]
) -> dict[Site, at_rest.AtRest]:
    states: tuple[Site, ...] = ("exp_avg", "exp_avg_sq", "step")
    kept = {site: at_rest.OptimizerState(firing, model, optimizers, site) for site in states}
    return {
        "weight": at_rest.Weights(firing, model),
        "buffer": at_rest.Buffers(firing, model),
        **kept,
    }


def rank_here() -> int:
    """Number of this process among those that train together."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank())
    return int(os.environ.get("RANK", 0))


def world_here() -> int:
    """How many processes train together."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_world_size())
    return int(os.environ.get("WORLD_SIZE", 1))
