"""The shadow pass's batch and loss as something that ranks hold alike."""

from __future__ import annotations

import torch

from ...detect.replicas import INPUT, LOSS, Part, Unit
from ...digest import digest_rows
from ...evidence import HostCopy
from ...signals.shadow import ShadowPass
from .units import unit_id

_BATCH = Unit(unit_id(INPUT), "input", (Part(INPUT, -1, 1, "int64", 0),))
_LOSS = Unit(unit_id(LOSS), "loss", (Part(LOSS, -1, 2, "float64", 0),))


def shadow_units(shadow: ShadowPass | None) -> list[tuple[Unit, HostCopy]]:
    """The pinned batch as it is now and the newest losses, each with a row of int64 (3,).

    Nothing waits for a device.
    """
    if shadow is None:
        return []
    found = []
    batch = shadow.digest()
    if batch is not None:
        # a sum in which the tensors' order counts, left on the device
        found.append((_BATCH, HostCopy(_folded(batch))))
    if shadow.newest is not None:
        found.append((_LOSS, HostCopy(digest_rows([shadow.newest.losses])[0])))
    return found


def _folded(rows: torch.Tensor) -> torch.Tensor:
    return digest_rows([rows])[0]
