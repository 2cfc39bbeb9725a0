"""What a forward runs in: autocast, and torch's settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Autocast:
    """The regions of automatic mixed precision in force.

    Attributes:
        regions: (device type, enabled, name of the dtype).
        cached: whether casts of weights are kept within the region.
    """

    regions: tuple[tuple[str, bool, str], ...]
    cached: bool

    @classmethod
    def now(cls, devices: Iterable[torch.device]) -> Autocast:
        """As it is, for the CPU and the types of these devices."""
        kinds = sorted({"cpu", *(device.type for device in devices)} - {"meta"})
        regions = tuple(
            (kind, torch.is_autocast_enabled(kind), _name(torch.get_autocast_dtype(kind)))
            for kind in kinds
        )
        return cls(regions, torch.is_autocast_cache_enabled())

    @property
    def enabled(self) -> bool:
        """Whether any region is."""
        return any(enabled for _, enabled, _ in self.regions)

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """The same regions around a block.

        Where a region is in force around the block already, casts are not kept: those of the
        block would be met by the training, and the other way round.
        """
        within = any(torch.is_autocast_enabled(kind) for kind, _, _ in self.regions)
        with contextlib.ExitStack() as stack:
            for kind, enabled, dtype in self.regions:
                stack.enter_context(
                    torch.autocast(
                        kind,
                        dtype=getattr(torch, dtype),
                        enabled=enabled,
                        cache_enabled=self.cached and not within,
                    )
                )
            yield

    def to_plain(self) -> list[Any]:
        """Lists, numbers and text alone."""
        return [[list(region) for region in self.regions], self.cached]

    @classmethod
    def of_plain(cls, content: list[Any]) -> Autocast:
        """The inverse of `to_plain`."""
        regions, cached = content
        return cls(tuple((str(a), bool(b), str(c)) for a, b, c in regions), bool(cached))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
