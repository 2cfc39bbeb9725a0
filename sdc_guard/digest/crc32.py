"""CRC-32 as zip files keep it, at several times zlib's speed where the processor multiplies without
carry (x86 with PCLMULQDQ, faster with VPCLMULQDQ); else zlib's.

Method: V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
Instruction", Intel, 2009: remainders of 128 bits, four vectors of one, two or four of them, are
carried over as many bytes at a time, and folded into one. Its 16 bytes have the CRC of everything
before them, and zlib takes it from there. The constants are x^n mod P, bit-reflected and doubled,
for P = 0x104C11DB7 and n 32 more and 32 less than the bits over which a remainder is carried.
"""

from __future__ import annotations

import ctypes
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np

_POLYNOMIAL: Final = 0x104C11DB7
_VECTORS: Final = 4  # as many products are on their way at a time
_LEAST: Final = 4096  # bytes from which on it is worth the call
_NONE: Final = 0xFFFFFFFF  # what zlib turns into a remainder of zero

# what the processor needs for vectors of so many remainders
_WIDTHS: Final = (
    (4, ("pclmul", "vpclmulqdq", "avx512f")), (2, ("pclmul", "vpclmulqdq", "avx2")),
    (1, ("pclmul", "sse2")),
)  # fmt: skip
_NAMES: Final = {1: "", 2: ".256", 4: ".512"}  # of the instruction, by remainders in a vector


@dataclass(frozen=True)
class _Fold:
    """The compiled loop over a whole number of blocks of `block` bytes, at least one.

    It takes their address, their number, the complement of the CRC before them, and where to
    write 16 bytes.
    """

    block: int
    run: Callable[[int, int, int, int], None]


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
    blocks = len(view) // fold.block
    left = ctypes.create_string_buffer(16)
    words = np.frombuffer(view, np.uint8)  # takes what is read-only, too
    fold.run(words.ctypes.data, blocks, ~value & _NONE, ctypes.addressof(left))
    return zlib.crc32(view[blocks * fold.block :], zlib.crc32(left.raw, _NONE))


@cache
def _fold() -> _Fold | None:
    """The fastest loop that is right; None where the processor has none."""
    if sys.byteorder != "little":
        return None
    for width, needed in _WIDTHS:
        try:
            found = _compiled(width, needed)
        except Exception:  # noqa: BLE001 - because any version of LLVM may refuse, and zlib does the same
            continue
        if found is not None and _is_right(found):
            return found
    return None


def _compiled(width: int, needed: tuple[str, ...]) -> _Fold | None:
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    if not all(features.get(feature) for feature in needed):
        return None
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=",".join(f"+{one}" for one in needed), opt=2
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_code(width)), machine)
    engine.finalize_object()
    kinds = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint32, ctypes.c_void_p)
    run = ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address("fold"))
    _KEPT.append(engine)
    return _Fold(16 * width * _VECTORS, run)


def _is_right(fold: _Fold) -> bool:
    """Whether it gives zlib's answer for a few blocks that are not alike."""
    content = bytes(7 * place % 251 for place in range(3 * fold.block))
    data = ctypes.create_string_buffer(content, len(content))
    left = ctypes.create_string_buffer(16)
    fold.run(ctypes.addressof(data), 3, 0x12345678, ctypes.addressof(left))
    return zlib.crc32(left.raw, _NONE) == zlib.crc32(content, ~0x12345678 & _NONE)


_KEPT: Final[list[Any]] = []  # owns the machine code


def _constants(bits: int) -> tuple[int, int]:
    """By what the halves of a remainder are multiplied to carry it over so many bits."""
    found = []
    for power in (bits + 32, bits - 32):
        rest = 1
        for _ in range(power):
            rest <<= 1
            rest ^= _POLYNOMIAL if rest >> 32 else 0
        found.append(int(f"{rest:032b}"[::-1], 2) << 1)
    return found[0], found[1]


def _code(width: int) -> str:
    """The loop, in LLVM's own language, for vectors of so many remainders."""
    kind, step = f"<{2 * width} x i64>", 16 * width
    block = step * _VECTORS
    far = _constants(8 * block)
    start, turns, phis = [], [], []
    for i in range(_VECTORS):
        start += [
            f"  %p{i} = getelementptr i8, ptr %data, i64 {step * i}",
            f"  %v{i}.0 = load {kind}, ptr %p{i}, align 1",
        ]
        turns += [
            _folded(f"%v{i}", far, f"v{i}.f", width),
            f"  %q{i} = getelementptr i8, ptr %at, i64 {step * i}",
            f"  %v{i}.w = load {kind}, ptr %q{i}, align 1",
            f"  %v{i}.n = xor {kind} %v{i}.f, %v{i}.w",
        ]
        first = "%v0.1" if not i else f"%v{i}.0"
        phis.append(f"  %v{i} = phi {kind} [ {first}, %entry ], [ %v{i}.n, %turn ]")
    joined, last = _joined(width)
    lines = "\n".join
    return f"""
declare {kind} @llvm.x86.pclmulqdq{_NAMES[width]}({kind}, {kind}, i8 immarg)
{_declared(width)}
define void @fold(ptr %data, i64 %blocks, i32 %before, ptr %out) {{
entry:
{lines(start)}
  %wide = zext i32 %before to i64
  %first = insertelement {kind} zeroinitializer, i64 %wide, i32 0
  %v0.1 = xor {kind} %v0.0, %first
  br label %check
check:
{lines(phis)}
  %done = phi i64 [ 1, %entry ], [ %more, %turn ]
  %left = icmp slt i64 %done, %blocks
  br i1 %left, label %turn, label %end
turn:
  %offset = mul i64 %done, {block}
  %at = getelementptr i8, ptr %data, i64 %offset
{lines(turns)}
  %more = add i64 %done, 1
  br label %check
end:
{joined}
  store <2 x i64> {last}, ptr %out, align 1
  ret void
}}
"""


def _declared(width: int) -> str:
    """The narrow instruction, where the loop uses a wider one."""
    narrow = "declare <2 x i64> @llvm.x86.pclmulqdq(<2 x i64>, <2 x i64>, i8 immarg)"
    return "" if width == 1 else narrow


def _joined(width: int) -> tuple[str, str]:
    """All remainders folded into one, in the order of their bytes, and its name."""
    near, lines, last = _constants(128), [], ""
    for place in range(_VECTORS * width):
        vector, lane = divmod(place, width)
        name = f"%l{place}"
        mask = f"<2 x i32> <i32 {2 * lane}, i32 {2 * lane + 1}>"
        kind = f"<{2 * width} x i64>"
        lines.append(f"  {name} = shufflevector {kind} %v{vector}, {kind} %v{vector}, {mask}")
        if last:
            lines.append(_folded(last, near, f"j{place}", 1))
            lines.append(f"  %s{place} = xor <2 x i64> %j{place}, {name}")
            name = f"%s{place}"
        last = name
    return "\n".join(lines), last


def _folded(value: str, by: tuple[int, int], name: str, width: int) -> str:
    """Multiply the two halves of each remainder by two constants, and add the products."""
    kind = f"<{2 * width} x i64>"
    multiply = f"call {kind} @llvm.x86.pclmulqdq{_NAMES[width]}"
    constant = f"{kind} <{', '.join([f'i64 {by[0]}, i64 {by[1]}'] * width)}>"
    return (
        f"  %{name}.low = {multiply}({kind} {value}, {constant}, i8 0)\n"
        f"  %{name}.high = {multiply}({kind} {value}, {constant}, i8 17)\n"
        f"  %{name} = xor {kind} %{name}.low, %{name}.high"
    )
