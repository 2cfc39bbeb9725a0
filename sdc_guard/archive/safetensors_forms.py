"""What tensors of safetensors are in torch."""

from __future__ import annotations

from typing import Final

import torch

from .safetensors_header import Entry

_TORCH: Final = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16",
    "U32": "uint32", "I32": "int32", "U64": "uint64", "I64": "int64",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F4": "float4_e2m1fn_x2",
}  # fmt: skip


def torch_form(entry: Entry) -> tuple[torch.dtype, tuple[int, ...]]:
    """The dtype and shape that a tensor has in torch.

    Data types of 6 bits, which torch has none for, and any other that this torch lacks, are uint8
    of shape (bytes,). Two elements of 4 bits are one of torch's, as the library has it.
    """
    dtype = vars(torch).get(_TORCH.get(entry.dtype, ""))
    shape = entry.shape
    if entry.dtype == "F4" and shape:
        dtype = dtype if shape[-1] % 2 == 0 else None
        shape = (*shape[:-1], shape[-1] // 2)
    if not isinstance(dtype, torch.dtype):
        return torch.uint8, (entry.end - entry.begin,)
    return dtype, shape
