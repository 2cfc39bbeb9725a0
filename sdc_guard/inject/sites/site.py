"""What every kind of site has in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from ..fault import Draw, Fault
from ..firing import Firing
from ..scope import Scope
from ..strike import check_tensor
from ..taken import Taken


class Target(Protocol):
    """A place where faults are injected; it knows what there is, and watches what was chosen."""

    def scope(self) -> Scope:
        """What can be hit now, and what cannot."""

    def check(self, name: str, fault: Fault, draw: Draw) -> None:
        """Refuse what cannot be done to a target; InjectionError."""

    def watch(self, taken: Taken) -> None:
        """Attach what a fault needs."""

    def close(self) -> None:
        """Detach it."""


class Tensors:
    """A site whose targets are tensors that are there before the training runs.

    Args:
        firing: told when a fault is due.
    """

    kind = "tensor"

    def __init__(self, firing: Firing) -> None:
        self._firing = firing

    def tensors(self) -> Mapping[str, torch.Tensor]:
        """What can be hit, by name."""
        raise NotImplementedError

    def check(self, name: str, fault: Fault, draw: Draw) -> None:
        """Refuse what cannot be done to a tensor of this shape and dtype; InjectionError."""
        check_tensor(self.tensors()[name], name, fault, draw)

    def watch(self, taken: Taken) -> None:
        """Attach nothing."""

    def close(self) -> None:
        """Detach nothing."""


def is_distributed(tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether ranks hold parts of these tensors."""
    return any(hasattr(tensor, "device_mesh") for tensor in tensors.values())


class Handles:
    """Hooks that were registered, to be removed together."""

    def __init__(self) -> None:
        self._handles: list[Any] = []

    def add(self, handle: Any) -> None:
        """Keep one."""
        self._handles.append(handle)

    def remove(self) -> None:
        """Remove all of them."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
