"""Corrupting a tensor on its device, by the fastest way there.

On CUDA a Triton kernel does it in one launch; where there is no Triton, or it cannot build the
kernel, and on other devices, plain torch does, in some more and to the same bits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ..errors import InjectionError
from .operation import corrupt_by_torch

Way: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]

_log = logging.getLogger("sdc_guard")


def corrupt(
    tensor: torch.Tensor, plan: torch.Tensor, step: torch.Tensor, log: torch.Tensor
) -> None:
    """Do to a tensor what its plan says for this step, and log it. Nothing waits for a device.

    Args:
        tensor: of a dtype in FORMATS, whose elements do not share memory; any strides. It is
            written to past autograd's version counter.
        plan: int64 (n, 9), contiguous. Row by row: the word's index, the masks a, o and x, the
            exponent, the first and the last step, the chance in 2⁻⁶² of each step, and a key.
            Rows with one key fire together. No two rows that fire at one step have one index. A
            row whose index is beyond the tensor's end does not fire.
        step: int64 scalar.
        log: int64 (n, 5), contiguous: added to, see above.

    Raises:
        InjectionError: see `refuse_unfit`.
    """
    if torch.compiler.is_compiling() or isinstance(tensor, FakeTensor):
        from .custom_op import corrupt_operator  # its first call imports the compiler

        corrupt_operator(tensor, plan, step, log)
    else:
        _WAYS.get(tensor.device.type, corrupt_by_torch)(tensor, plan, step, log)


def corrupt_on_cuda(
    tensor: torch.Tensor, plan: torch.Tensor, step: torch.Tensor, log: torch.Tensor
) -> None:
    """`corrupt` on a CUDA device."""
    kernels = fused_kernels()
    if kernels is None or _unbuilt or not _fused(kernels, tensor, plan, step, log):
        corrupt_by_torch(tensor, plan, step, log)


def _fused(
    kernels: Any, tensor: torch.Tensor, plan: torch.Tensor, step: torch.Tensor, log: torch.Tensor
) -> bool:
    """Whether the kernel did it; not if it cannot be built, or not for such strides."""
    try:
        done: bool = kernels.corrupt(tensor, plan, step, log)
    except (torch.OutOfMemoryError, InjectionError):
        raise
    except Exception as error:  # noqa: BLE001 - because a compiler may fail in any way
        line = (str(error).strip().splitlines() or [""])[0]
        _unbuilt.append(line)
        _log.warning(
            "SDC Guard: Triton cannot build the kernel that injects faults (%s: %s); "
            "plain torch injects them, which takes longer",
            type(error).__name__,
            line,
        )
        return False
    return done


_unbuilt: list[str] = []  # why the kernel cannot be built, once that is known
_WAYS: Final[dict[str, Way]] = {"cpu": corrupt_by_torch, "cuda": corrupt_on_cuda}


@cache
def fused_kernels() -> Any:
    """The module `fused_cuda`, imported when it is first needed; None without Triton."""
    try:
        from . import fused_cuda
    except Exception:  # noqa: BLE001 - because a damaged installation may fail in any way
        return None
    return fused_cuda
