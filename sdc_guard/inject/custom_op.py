"""The operators sdc_guard::corrupt and corrupted: what torch.compile calls for `corrupt`.

They take the tensor itself, of its own dtype, and look at its bits within: a view as integers
that is made outside of an operator is no longer the tensor's memory once a compiler is done.

Inductor cannot compile an operator that writes to a complex tensor or one of powers of two (it
leaves what it makes of such a call in the graph, and fails). For these there is an operator that
writes to copies.

Without a compiler nothing comes here: the first call of such an operator imports the compiler,
which takes a second.
"""

from __future__ import annotations

from typing import Any

import torch

from .corrupt import Way, corrupt_on_cuda
from .formats import format_of
from .operation import corrupt_by_torch


def corrupt_operator(
    tensor: torch.Tensor, plan: torch.Tensor, step: torch.Tensor, log: torch.Tensor
) -> None:
    """`corrupt` as an operator."""
    if _is_written_to(tensor.dtype):
        torch.ops.sdc_guard.corrupt(tensor, plan, step, log)
        return
    bad, told = torch.ops.sdc_guard.corrupted(tensor, plan, step, log)
    tensor.copy_(bad)
    log.copy_(told)


def _is_written_to(dtype: torch.dtype) -> bool:
    number = format_of(dtype).number
    return not dtype.is_complex and (number is None or number.mantissa > 0)


def _on_copies(way: Way) -> Any:
    def corrupted(
        tensor: torch.Tensor, plan: torch.Tensor, step: torch.Tensor, log: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        bad, told = tensor.clone(), log.clone()
        way(bad, plan, step, told)
        return bad, told

    return corrupted


def _register() -> None:
    arguments = "Tensor plan, Tensor step"
    made: Any = torch.library.custom_op(
        "sdc_guard::corrupt",
        corrupt_by_torch,
        mutates_args=("tensor", "log"),
        schema=f"(Tensor(a!) tensor, {arguments}, Tensor(b!) log) -> ()",
    )
    made.register_kernel("cuda", corrupt_on_cuda)
    made.register_fake(lambda *_: None)
    copied: Any = torch.library.custom_op(
        "sdc_guard::corrupted",
        _on_copies(corrupt_by_torch),
        mutates_args=(),
        schema=f"(Tensor tensor, {arguments}, Tensor log) -> (Tensor, Tensor)",
    )
    copied.register_kernel("cuda", _on_copies(corrupt_on_cuda))

    @copied.register_fake  # type: ignore[untyped-decorator] # torch has no types here
    def _(
        tensor: torch.Tensor, plan: torch.Tensor, step: torch.Tensor, log: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        del plan, step
        return tensor.clone(), log.clone()


_register()
