"""What is measured of a gradient.

On its device a gradient is reduced to five sums, which take no other steps' results to compute
and add up over parts and shards; the host makes the recorded measures of them afterwards.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .fused_cpu import sums as fused_sums
from .sums import SUMS

_CHUNK = 1 << 24  # elements at a time: bounds the temporary float64 copy at 128 MB
_MEMORY_FORMATS = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)


def sums_into(gradient: torch.Tensor, numel: int, out: NDArray[np.float64]) -> None:
    """Write the SUMS of a gradient in host memory to `out`, float64, shape (5,).

    Args:
        gradient: dense or sparse, of any floating or complex dtype.
        numel: elements it stands for: more than are stored, if it is sparse.
    """
    if gradient.dtype is torch.float32 and gradient.is_contiguous() and numel:
        fused_sums(gradient, out)  # the usual case, without a detour
        return
    tensor = stored(gradient)
    if tensor.numel() == 0:
        out[:] = 0.0
    elif tensor.is_floating_point():
        fused_sums(dense(tensor), out)
    else:
        out[:] = sums_of(tensor).numpy()
    out[4] += numel - tensor.numel()


def sums_of(gradient: torch.Tensor) -> torch.Tensor:
    """The SUMS of a dense gradient, float64 (5,), left on its device: plain torch, any dtype."""
    flat = gradient.detach().reshape(-1)
    if not flat.numel():
        return torch.zeros(len(SUMS), dtype=torch.float64, device=flat.device)
    rows = torch.stack([_sums_flat(part) for part in torch.split(flat, _CHUNK)])
    total = rows.sum(0)
    total[1] = rows[:, 1].max()
    return total


def stored(gradient: torch.Tensor) -> torch.Tensor:
    """The elements that a gradient stores, as a strided tensor."""
    tensor = gradient.detach()
    return tensor if tensor.layout == torch.strided else tensor.coalesce().values()


def _sums_flat(flat: torch.Tensor) -> torch.Tensor:
    wide = flat.to(torch.complex128 if flat.is_complex() else torch.float64)
    size = wide.abs()
    count: Any = flat.numel()
    return torch.stack(
        [
            size.square().sum(),
            size.max(),
            size.sum(),
            (count - torch.isfinite(wide).sum()).to(torch.float64),
            (count - torch.count_nonzero(wide)).to(torch.float64),
        ]
    )


def is_dense(gradient: torch.Tensor) -> bool:
    """Whether a gradient's elements lie row by row in one piece of memory."""
    return gradient.layout is torch.strided and gradient.is_contiguous()


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements in one piece of memory, in any order."""
    if tensor.is_contiguous():
        return tensor
    if tensor.dim() in (4, 5) and any(
        tensor.is_contiguous(memory_format=order) for order in _MEMORY_FORMATS[tensor.dim() - 3 :]
    ):
        return tensor
    return tensor.contiguous()
