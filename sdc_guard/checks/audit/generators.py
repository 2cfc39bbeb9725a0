"""The random generators of torch, numpy and Python at one moment, to be set back and compared."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True, eq=False)
class Generators:
    """Their states.

    Attributes:
        python: as random.getstate() gives it.
        numpy: as numpy.random.get_state(legacy=False) gives it, arrays as lists.
        cpu: torch's of the CPU, uint8.
        devices: of accelerators, by the device's name.
    """

    python: Any
    numpy: dict[str, Any]
    cpu: torch.Tensor
    devices: dict[str, torch.Tensor]

    @classmethod
    def now(cls, devices: Iterable[torch.device]) -> Generators:
        """As they are; nothing is drawn, and nothing waits for a device.

        Args:
            devices: whose generators are meant, besides the CPU's.
        """
        found = {}
        for device in devices:
            backend = _backend(device)
            if backend is not None:
                found[str(device)] = backend.get_rng_state(*_place(device))
        state = np.random.get_state(legacy=False)
        return cls(random.getstate(), _plain(state), torch.get_rng_state(), found)

    def put(self, device: torch.device | None = None) -> None:
        """Set them.

        Args:
            device: gets the state of the only accelerator that was meant, if given.
        """
        random.setstate(_tuples(self.python))
        np.random.set_state(_arrays(self.numpy))
        torch.set_rng_state(self.cpu)
        for name, state in self.devices.items():
            target = torch.device(name) if device is None else device
            backend = _backend(target)
            if backend is not None:
                backend.set_rng_state(state, *_place(target))

    def different(self, other: Generators) -> set[str]:
        """Names of those whose next draws are others."""
        same = {
            "python": _tuples(self.python) == _tuples(other.python),
            "numpy": self.numpy == other.numpy,
            "cpu": torch.equal(self.cpu, other.cpu),
        }
        same |= {
            name: name in other.devices and torch.equal(state, other.devices[name])
            for name, state in self.devices.items()
        }
        return {name for name, is_same in same.items() if not is_same}

    def with_those_of(self, other: Generators, names: Collection[str]) -> Generators:
        """These, and some by name as they are in `other`."""
        return Generators(
            (other if "python" in names else self).python,
            (other if "numpy" in names else self).numpy,
            (other if "cpu" in names else self).cpu,
            {
                name: other.devices.get(name, state) if name in names else state
                for name, state in self.devices.items()
            },
        )

    def to_plain(self) -> dict[str, Any]:
        """Numbers, lists and tensors alone."""
        return {
            "python": self.python,
            "numpy": self.numpy,
            "cpu": self.cpu,
            "devices": self.devices,
        }

    @classmethod
    def of_plain(cls, content: Mapping[str, Any]) -> Generators:
        """The inverse of `to_plain`."""
        return cls(content["python"], content["numpy"], content["cpu"], content["devices"])


def _backend(device: torch.device) -> Any:
    if device.type in ("cpu", "meta"):
        return None
    backend = torch.get_device_module(device)
    return backend if hasattr(backend, "get_rng_state") else None


def _place(device: torch.device) -> tuple[torch.device, ...]:
    return () if device.index is None else (device,)  # backends of a single device take none


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        return {"dtype": str(value.dtype), "values": value.tolist()}
    return value.item() if isinstance(value, np.generic) else value


def _arrays(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"dtype", "values"}:
            return np.array(value["values"], dtype=value["dtype"])
        return {name: _arrays(item) for name, item in value.items()}
    return value


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value
