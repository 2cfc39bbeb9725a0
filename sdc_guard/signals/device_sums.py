"""The operator sdc_guard::gradient_sums: the SUMS of many gradients that lie on one device.

On CUDA a Triton kernel computes them; where there is no Triton, or it cannot build a kernel, and
for dtypes that it does not know, plain torch does, more slowly and to the same numbers. Nothing
here waits for a device, apart from `coalesce`: how many elements a sparse gradient has is known
there only.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import numpy as np
import torch

from ..digest.reference import stack_rows
from .measures import dense, stored, sums_into, sums_of
from .sums import SUMS

_log = logging.getLogger("sdc_guard")


def sums_on_device(gradients: list[torch.Tensor], numel: list[int]) -> torch.Tensor:
    """The SUMS of several gradients, float64 (len, 5), on their device; nothing waits for it.

    Args:
        gradients: at least one; on several devices, the sums end on the first that is no CPU.
        numel: elements each stands for: more than are stored, if it is sparse.
    """
    with torch.no_grad():
        values = [stored(gradient) for gradient in gradients]
        places: dict[torch.device, list[int]] = {}
        for place, value in enumerate(values):
            places.setdefault(value.device, []).append(place)
        rows: dict[int, torch.Tensor] = {}
        for here in places.values():
            sums: torch.Tensor = torch.ops.sdc_guard.gradient_sums(
                [values[place] for place in here]
            )
            for row, place in enumerate(here):
                absent = numel[place] - values[place].numel()
                if absent:
                    sums[row, 4] += absent
            if len(places) == 1:
                return sums
            rows.update(zip(here, sums.unbind(), strict=True))
        return stack_rows([rows[place] for place in range(len(gradients))])


def _plain(gradients: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([sums_of(gradient) for gradient in gradients])


def _in_host(gradients: list[torch.Tensor]) -> torch.Tensor:
    table = np.zeros((len(gradients), len(SUMS)))
    for out, gradient in zip(table, gradients, strict=True):
        sums_into(gradient, gradient.numel(), out)
    return torch.from_numpy(table)


def _on_cuda(gradients: list[torch.Tensor]) -> torch.Tensor:
    kernels = fused_kernels()
    known = () if kernels is None else kernels.ELEMENTS
    ours = [place for place, gradient in enumerate(gradients) if gradient.dtype in known]
    fused = _fused(kernels, [dense(gradients[place]) for place in ours]) if ours else None
    if fused is not None and len(ours) == len(gradients):
        return fused
    rows = {} if fused is None else dict(zip(ours, fused.unbind(), strict=True))
    return torch.stack(
        [rows[i] if i in rows else sums_of(gradient) for i, gradient in enumerate(gradients)]
    )


def _shape_alone(gradients: list[torch.Tensor]) -> torch.Tensor:
    return gradients[0].new_empty((len(gradients), len(SUMS)), dtype=torch.float64)


@cache
def fused_kernels() -> Any:
    """The module `fused_cuda`, imported when it is first needed; None without Triton."""
    try:
        from . import fused_cuda
    except Exception:  # noqa: BLE001 - because a damaged installation may fail in any way
        return None
    return fused_cuda


def _fused(kernels: Any, gradients: list[torch.Tensor]) -> torch.Tensor | None:
    if _unbuilt:
        return None
    try:
        sums: torch.Tensor = kernels.sums(gradients)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - because a compiler may fail in any way
        line = (str(error).strip().splitlines() or [""])[0]
        _unbuilt.append(line)
        _log.warning(
            "SDC Guard: Triton cannot build the kernel that measures gradients "
            "(%s: %s); plain torch measures them, which takes longer",
            type(error).__name__,
            line,
        )
        return None
    return sums


_unbuilt: list[str] = []  # why the kernel cannot be built, once that is known


def _register() -> Any:
    # not by torch.library.custom_op: its first call imports the compiler, which takes seconds
    library: Any = torch.library.Library("sdc_guard", "FRAGMENT")  # type: ignore[no-untyped-call] # torch has no types here
    library.define("gradient_sums(Tensor[] gradients) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
    library.impl("gradient_sums", _plain, "CompositeExplicitAutograd")
    library.impl("gradient_sums", _in_host, "CPU")
    library.impl("gradient_sums", _on_cuda, "CUDA")
    torch.library.register_fake("sdc_guard::gradient_sums", _shape_alone, lib=library)
    return library


_library = _register()  # what it holds is registered for as long as it lives
