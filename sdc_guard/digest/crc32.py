"""CRC-32 as zip files keep it, at several times zlib's speed where the processor multiplies without
carry (x86 with PCLMULQDQ); else zlib's.

Method: V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
Instruction", Intel, 2009: four remainders of 128 bits are carried over 64 bytes at a time, and
folded into one. Its 16 bytes have the CRC of everything before them, and zlib takes it from there.
The constants are x^n mod P, bit-reflected, for P = 0x104C11DB7 and the distances of the folds.
"""

from __future__ import annotations

import ctypes
import sys
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np

_BLOCK: Final = 64  # bytes that one turn of the loop takes
_LEAST: Final = 4096  # bytes from which on it is worth the call
_NONE: Final = 0xFFFFFFFF  # what zlib turns into a remainder of zero

_FAR: Final = (0x154442BD4, 0x1C6E41596)  # over 64 bytes
_NEAR: Final = (0x1751997D0, 0x0CCAA009E)  # over 16 bytes


def crc32(data: Any, value: int = 0) -> int:
    """As zlib.crc32; Python's lock is free meanwhile.

    Args:
        data: contiguous bytes.
        value: of what came before them.
    """
    view = memoryview(data).cast("B")
    fold = _fold() if len(view) >= _LEAST else None
    if fold is None:
        return zlib.crc32(view, value)
    blocks = len(view) // _BLOCK
    left = ctypes.create_string_buffer(16)
    words = np.frombuffer(view, np.uint8)  # takes what is read-only, too
    fold(words.ctypes.data, blocks, ~value & _NONE, ctypes.addressof(left))
    return zlib.crc32(view[blocks * _BLOCK :], zlib.crc32(left.raw, _NONE))


@cache
def _fold() -> Callable[[int, int, int, int], None] | None:
    """The compiled loop; None where the processor lacks the instruction, or it is not right."""
    try:
        import llvmlite.binding as llvm

        if not llvm.get_host_cpu_features().get("pclmul") or sys.byteorder != "little":
            return None
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features="+sse2,+pclmul", opt=2
        )
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_code()), machine)
        engine.finalize_object()
        kinds = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint32, ctypes.c_void_p)
        compiled = ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address("fold"))
    except Exception:  # noqa: BLE001 - because any version of LLVM may refuse, and zlib does the same
        return None
    _KEPT.append(engine)
    return compiled if _is_right(compiled) else None


def _is_right(fold: Callable[[int, int, int, int], None]) -> bool:
    """Whether it gives zlib's answer for a few blocks that are not alike."""
    data, left = (
        ctypes.create_string_buffer(bytes(range(192)), 192),
        ctypes.create_string_buffer(16),
    )
    fold(ctypes.addressof(data), 3, 0x12345678, ctypes.addressof(left))
    return zlib.crc32(left.raw, _NONE) == zlib.crc32(data.raw, ~0x12345678 & _NONE)


_KEPT: Final[list[Any]] = []  # owns the machine code


def _code() -> str:
    """The loop, in LLVM's own language."""
    names = ("a", "b", "c", "d")
    start = "\n".join(
        f"  %p{i} = getelementptr i8, ptr %data, i64 {16 * i}\n"
        f"  %{name}.0 = load <2 x i64>, ptr %p{i}, align 1"
        for i, name in enumerate(names)
    )
    turns = "\n".join(
        _folded(f"%{name}", _FAR, f"{name}.f")
        + f"\n  %q{i} = getelementptr i8, ptr %at, i64 {16 * i}"
        + f"\n  %{name}.w = load <2 x i64>, ptr %q{i}, align 1"
        + f"\n  %{name}.n = xor <2 x i64> %{name}.f, %{name}.w"
        for i, name in enumerate(names)
    )
    phis = "\n".join(
        f"  %{name} = phi <2 x i64> [ %{first}, %entry ], [ %{name}.n, %turn ]"
        for name, first in zip(names, ("a.1", "b.0", "c.0", "d.0"), strict=True)
    )
    ends = "\n".join(
        _folded(f"%{one}", _NEAR, f"{two}.g") + f"\n  %{two}.e = xor <2 x i64> %{two}.g, %{two}"
        for one, two in (("a", "b"), ("b.e", "c"), ("c.e", "d"))
    )
    return f"""
declare <2 x i64> @llvm.x86.pclmulqdq(<2 x i64>, <2 x i64>, i8 immarg)
define void @fold(ptr %data, i64 %blocks, i32 %before, ptr %out) {{
entry:
{start}
  %wide = zext i32 %before to i64
  %first = insertelement <2 x i64> zeroinitializer, i64 %wide, i32 0
  %a.1 = xor <2 x i64> %a.0, %first
  br label %check
check:
{phis}
  %done = phi i64 [ 1, %entry ], [ %more, %turn ]
  %left = icmp slt i64 %done, %blocks
  br i1 %left, label %turn, label %end
turn:
  %offset = mul i64 %done, {_BLOCK}
  %at = getelementptr i8, ptr %data, i64 %offset
{turns}
  %more = add i64 %done, 1
  br label %check
end:
{ends}
  store <2 x i64> %d.e, ptr %out, align 1
  ret void
}}
"""


def _folded(value: str, by: tuple[int, int], name: str) -> str:
    """Multiply the two halves of a remainder by two constants, and add the products."""
    multiply = "call <2 x i64> @llvm.x86.pclmulqdq"
    constant = f"<2 x i64> <i64 {by[0]}, i64 {by[1]}>"
    return (
        f"  %{name}.low = {multiply}(<2 x i64> {value}, {constant}, i8 0)\n"
        f"  %{name}.high = {multiply}(<2 x i64> {value}, {constant}, i8 17)\n"
        f"  %{name} = xor <2 x i64> %{name}.low, %{name}.high"
    )
