"""The operator sdc_guard::corrupt: what torch.compile calls for `corrupt`.

It takes the tensor itself, of its own dtype, and looks at its bits within: a view as integers
that is made outside of an operator is no longer the tensor's memory once a compiler is done.

Without a compiler nothing comes here: the first call of such an operator imports the compiler,
which takes a second.
"""

from __future__ import annotations

from typing import Any

import torch

from .corrupt import corrupt_on_cuda
from .operation import corrupt_by_torch


def corrupt_operator(
    tensor: torch.Tensor, plan: torch.Tensor, step: torch.Tensor, log: torch.Tensor
) -> None:
    """`corrupt` as an operator."""
    torch.ops.sdc_guard.corrupt(tensor, plan, step, log)


def _register() -> None:
    schema = "(Tensor(a!) tensor, Tensor plan, Tensor step, Tensor(b!) log) -> ()"
    made: Any = torch.library.custom_op(
        "sdc_guard::corrupt", corrupt_by_torch, mutates_args=("tensor", "log"), schema=schema
    )
    made.register_kernel("cuda", corrupt_on_cuda)

    @made.register_fake  # type: ignore[untyped-decorator] # torch has no types here
    def _(tensor: torch.Tensor, plan: torch.Tensor, step: torch.Tensor, log: torch.Tensor) -> None:
        del tensor, plan, step, log


_register()
