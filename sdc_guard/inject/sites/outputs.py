"""The tensor that is meant in what a module returns, or is called with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ...errors import InjectionError

Change = Callable[[torch.Tensor, str], torch.Tensor]


def split_name(target: str) -> tuple[str, int | None]:
    """A module's name and the number of the tensor in what it returns: "lstm:1" is ("lstm", 1)."""
    name, colon, number = target.rpartition(":")
    return (name, int(number)) if colon and number.isdigit() else (target, None)


def replaced(output: Any, name: str, number: int | None, change: Change) -> Any:
    """The same output with one floating-point tensor replaced.

    Args:
        output: a tensor, or several nested in tuples, lists, mappings and classes that torch
            knows how to take apart.
        name: of the module.
        number: of the tensor among the floating-point ones; None for the first.
        change: called with the tensor and its name, which has its number if there are others.

    Raises:
        InjectionError: there is no such tensor.
    """
    if isinstance(output, torch.Tensor) and is_floating(output):
        if number not in (None, 0):
            raise InjectionError(f"{name} returns one tensor, and no number {number}")
        return change(output, name)
    leaves, structure = pytree.tree_flatten(output)
    places = [place for place, leaf in enumerate(leaves) if is_floating(leaf)]
    chosen = number or 0
    if chosen >= len(places):
        raise InjectionError(
            f"{name} returns {len(places)} floating-point tensors ({type(output).__name__})"
        )
    place = places[chosen]
    leaves[place] = change(leaves[place], f"{name}:{chosen}")
    return pytree.tree_unflatten(leaves, structure)


def is_floating(value: Any) -> bool:
    """Whether it is a tensor of real or complex floating-point numbers."""
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
