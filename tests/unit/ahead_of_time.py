"""Triton's kernels compiled for devices that are not there."""

from __future__ import annotations

from typing import Any

import pytest


def compiled(kernel: Any, types: dict[str, str], constants: dict[str, Any], capability: int) -> Any:
    """A kernel, compiled ahead of time for a device of this compute capability."""
    import triton
    from triton.backends import backends
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if "nvidia" not in backends:
        pytest.skip("this triton has no backend for CUDA")
    if triton.knobs.runtime.interpret:
        pytest.skip("TRITON_INTERPRET is set: nothing is compiled in this process")
    signature = types | dict.fromkeys(constants, "constexpr")
    pointers = {
        (place,): [["tt.divisibility", 16]]
        for place, kind in enumerate(signature.values())
        if kind.startswith("*")
    }
    source = ASTSource(kernel, signature, constants, pointers)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32))
