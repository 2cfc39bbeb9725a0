"""What a Guard may be given."""

from __future__ import annotations

import os
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, Final, Literal

import torch

from .detect.choice import SENSORS
from .errors import UsageError

Policy = Literal["record", "warn", "skip", "halt"]
POLICIES: Final = ("record", "warn", "skip", "halt")
Keep = int | tuple[int, int] | None
ArchiveFormat = Literal["auto", "torch", "dcp"]
ARCHIVE_FORMATS: Final = ("auto", "torch", "dcp")


def listed(
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
) -> list[torch.optim.Optimizer]:
    """One optimizer or several as a list.

    Raises:
        UsageError: it is neither.
    """
    if isinstance(optimizer, torch.optim.Optimizer):
        return [optimizer]
    found = list(optimizer) if isinstance(optimizer, Sequence) else []
    if not found or not all(isinstance(one, torch.optim.Optimizer) for one in found):
        raise UsageError(
            "optimizer must be a torch.optim.Optimizer or a sequence of them",
            next_step="give the inner one where a library wraps it (accelerate: .optimizer)",
        )
    return found


def check(policy: str, first_step: int, digest_budget: float | None, audit_rate: float) -> None:
    """Refuse what cannot be meant.

    Raises:
        UsageError: an unknown policy, or a number out of its range.
    """
    for name, value in (("digest_budget", digest_budget), ("audit_rate", audit_rate)):
        if value is not None and not isinstance(value, Real):
            raise UsageError(f"{name} is {value!r}, and must be a number")
    if not isinstance(first_step, Integral):
        raise UsageError(f"first_step is {first_step!r}, and must be a number of steps")
    if policy not in POLICIES:
        raise UsageError(f"no policy {policy!r}", next_step=f"use one of {', '.join(POLICIES)}")
    if first_step < 0:
        raise UsageError("first_step must be at least 0")
    if digest_budget is not None and not 0 <= digest_budget <= 100:
        raise UsageError(
            f"digest_budget is {digest_budget}, and must be a percentage",
            next_step="give 0 to 100, or None for every tensor at every step",
        )
    if not 0 <= audit_rate <= 1:
        raise UsageError(f"audit_rate is {audit_rate}, and must be a probability, 0 to 1")


def check_sensor(sensor: str, false_incidents: float | None) -> None:
    """Refuse a sensor that there is not, and a budget that is no probability.

    Raises:
        UsageError: an unknown name, or a budget that is not above 0 and below 1.
    """
    if sensor not in SENSORS:
        raise UsageError(f"no sensor {sensor!r}", next_step=f"use one of {', '.join(SENSORS)}")
    if false_incidents is None:
        return
    if not isinstance(false_incidents, Real) or isinstance(false_incidents, bool):
        raise UsageError(f"false_incidents is {false_incidents!r}, and must be a number")
    if not 0 < false_incidents < 1:
        raise UsageError(
            f"false_incidents is {false_incidents}, and must be a probability per step",
            next_step="give 1e-4 for one in 10,000 steps, or None for no statistical alerts",
        )


def check_archive(archive_format: str) -> None:
    """Refuse a format of checkpoints that there is not.

    Raises:
        UsageError: an unknown name.
    """
    if archive_format not in ARCHIVE_FORMATS:
        known = ", ".join(ARCHIVE_FORMATS)
        raise UsageError(f"no archive_format {archive_format!r}", next_step=f"use one of {known}")


def check_cadences(**cadences: int | None) -> None:
    """Refuse what is no number of steps.

    Args:
        **cadences: by the name of Guard's argument; None for never.

    Raises:
        UsageError: one is no whole number, or less than 1.
    """
    for name, steps in cadences.items():
        if steps is not None and not (isinstance(steps, Integral) and steps >= 1):
            raise UsageError(f"{name} must be at least 1, or None for never; it is {steps!r}")


def check_step(step: Any) -> None:
    """Refuse what is no number of a step.

    Raises:
        UsageError: it is no whole number, or below 0.
    """
    if isinstance(step, bool) or not isinstance(step, Integral) or step < 0:
        raise UsageError(f"step is {step!r}, and must be a whole number from 0 on")


def check_keep(keep: Keep) -> None:
    """Refuse what is no number of checkpoints, and no pair of numbers.

    Raises:
        UsageError: it is no whole number, or less than 1; or of a pair the second is below 0.
    """
    numbers: tuple[Any, ...] = keep if isinstance(keep, tuple) and len(keep) == 2 else (keep,)
    whole = all(isinstance(n, Integral) and not isinstance(n, bool) for n in numbers)
    if keep is None or (whole and numbers[0] >= 1 and numbers[-1] >= 0):
        return
    raise UsageError(
        f"keep must be at least 1, or None for all checkpoints; it is {keep!r}",
        next_step="a pair keeps the second number more as weights alone: keep=(12, 24)",
    )


def kept_counts(keep: int | tuple[int, int]) -> tuple[int, int | None]:
    """Checkpoints that are kept whole, and as weights alone; None for none of these."""
    return keep if isinstance(keep, tuple) else (keep, None)


def check_functions(shadow: Any, **functions: Any) -> None:
    """Refuse what cannot be called.

    Args:
        shadow: a batch and a function, or None.
        **functions: by the name of Guard's argument; None for none.

    Raises:
        UsageError: one cannot.
    """
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise UsageError(f"{name} is {function!r}, and must be a function")
    if shadow is None:
        return
    if not (isinstance(shadow, tuple | list) and len(shadow) == 2 and callable(shadow[1])):
        raise UsageError("shadow must be a pair: a batch, and loss_fn(model, batch)")


def check_paths(**paths: Any) -> None:
    """Refuse what is no path.

    Args:
        **paths: by the name of Guard's argument.

    Raises:
        UsageError: one is empty, or something else than text or a path.
    """
    for name, path in paths.items():
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise UsageError(f"{name} is {path!r}, and must be a path")


def check_switches(**switches: Any) -> None:
    """Refuse what is neither True nor False.

    Args:
        **switches: by the name of Guard's argument.

    Raises:
        UsageError: one is something else.
    """
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise UsageError(f"{name} is {value!r}, and must be True or False")


def group_sizes(optimizers: list[torch.optim.Optimizer]) -> list[int]:
    """How many parameters each of their groups has."""
    return [len(group["params"]) for optimizer in optimizers for group in optimizer.param_groups]
