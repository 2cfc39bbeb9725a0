"""Digests of tensors that lie on devices.

On CUDA a Triton kernel computes them, for any number of tensors at once; where there is no Triton,
or it cannot build a kernel, and on other devices, plain torch does, more slowly and to the same
bits. Nothing waits for a device.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ..compiled import address
from .as_words import as_words
from .reference import stack_rows, sums
from .rows import rows_in_host
from .span import Place, pieces
from .word_table import Piece

Way: TypeAlias = Callable[[Sequence[torch.Tensor], Sequence[Place]], torch.Tensor]

_log = logging.getLogger("sdc_guard")


def rows_on_devices(tensors: Sequence[torch.Tensor], places: Sequence[Place]) -> torch.Tensor:
    """`digest_rows` of tensors that need not lie in host memory."""
    where: dict[torch.device, list[int]] = {}
    for number, tensor in enumerate(tensors):
        where.setdefault(tensor.device, []).append(number)
    rows: dict[int, torch.Tensor] = {}
    with torch.no_grad():
        for device, numbers in where.items():
            here = [tensors[x] for x in numbers]
            found = _way(device, here)(here, [places[x] for x in numbers])
            if len(where) == 1:
                return found
            rows.update(zip(numbers, found.unbind(), strict=True))
        return stack_rows([rows[number] for number in range(len(tensors))])


def _way(device: torch.device, tensors: Sequence[torch.Tensor]) -> Way:
    """What digests tensors on a device."""
    # what has no values yet, only an operator can take in
    if torch.compiler.is_compiling() or any(isinstance(x, FakeTensor) for x in tensors):
        from .custom_op import digest_operator  # its first call imports the compiler

        return digest_operator
    return _ROWS.get(device.type, plain_rows)


def plain_rows(tensors: Sequence[torch.Tensor], places: Sequence[Place]) -> torch.Tensor:
    """`digest_rows` by plain torch, on any one device."""
    return torch.stack(
        [
            torch.stack([sums(*piece) for piece in pieces(tensor, place)]).sum(0)
            for tensor, place in zip(tensors, places, strict=True)
        ]
    )


def rows_on_cuda(tensors: Sequence[torch.Tensor], places: Sequence[Place]) -> torch.Tensor:
    """`digest_rows` of tensors on one CUDA device."""
    kernels = fused_kernels()
    found = None if kernels is None or _unbuilt else _fused(kernels, tensors, places)
    return plain_rows(tensors, places) if found is None else found


def _fused(
    kernels: Any, tensors: Sequence[torch.Tensor], places: Sequence[Place]
) -> torch.Tensor | None:
    held, read = [], []  # copies must outlive the launch
    for row, (tensor, place) in enumerate(zip(tensors, places, strict=True)):
        for piece, where in pieces(tensor, place):
            bits, span = as_words(piece, where)
            held.append(bits)
            read.append(Piece(address(bits), bits.element_size(), bits.numel(), span, row))
    try:
        found: torch.Tensor = kernels.rows(
            [piece for piece in read if piece.length], len(tensors), tensors[0].device
        )
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - because a compiler may fail in any way
        line = (str(error).strip().splitlines() or [""])[0]
        _unbuilt.append(line)
        _log.warning(
            "SDC Guard: Triton cannot build the kernel that digests tensors (%s: %s); "
            "plain torch digests them, which takes longer",
            type(error).__name__,
            line,
        )
        return None
    return found


_unbuilt: list[str] = []  # why the kernel cannot be built, once that is known
_ROWS: dict[str, Way] = {"cpu": rows_in_host, "cuda": rows_on_cuda}


@cache
def fused_kernels() -> Any:
    """The module `fused_cuda`, imported when it is first needed; None without Triton."""
    try:
        from . import fused_cuda
    except Exception:  # noqa: BLE001 - because a damaged installation may fail in any way
        return None
    return fused_cuda
