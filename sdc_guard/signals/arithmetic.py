"""Torch's settings that decide which kernel computes a step, and how exactly."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

import torch

from .reading import Part, read

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "MKL_CBWR")
# what makes a library choose another algorithm, or another order of adding
_VARIABLES = (
    "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE", "OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE",
    "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_BLAS_PREFER_CUBLASLT",
    "NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE", "PYTHONHASHSEED",
)  # fmt: skip
_PRECISIONS = (
    "cuda.matmul.allow_tf32", "cudnn.allow_tf32", "fp32_precision",
    "cuda.matmul.fp32_precision", "cudnn.conv.fp32_precision", "cudnn.rnn.fp32_precision",
    "mkldnn.matmul.fp32_precision", "mkldnn.conv.fp32_precision", "mkldnn.rnn.fp32_precision",
)  # fmt: skip
_REDUCTIONS = (
    "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction",
    "allow_fp16_reduced_precision_reduction_split_k",
    "allow_bf16_reduced_precision_reduction_split_k",
    "allow_fp16_accumulation",
)  # fmt: skip
_SMALLEST_NORMAL = 2.0**-126


def settings() -> dict[str, Part]:
    """By name; each is read when it is called."""
    return {
        "threads": torch.get_num_threads,
        "threads_interop": torch.get_num_interop_threads,
        "threads_env": partial(_environment, _THREAD_VARIABLES),
        "variables": partial(_environment, _VARIABLES),
        "cpu_capability": torch.backends.cpu.get_cpu_capability,
        "flush_denormal": _flushes_denormals,
        "default_dtype": lambda: str(torch.get_default_dtype()),
        "mkldnn": lambda: bool(torch.backends.mkldnn.enabled),
        "mkldnn_flags": partial(_attributes, torch.backends.mkldnn, ("deterministic",)),
        "matmul_precision": torch.get_float32_matmul_precision,
        # torch has an older and a newer interface to the same settings: they are one name here
        "precision": _precision,
        "reduced_precision": _reduced_precision,
        "cudnn_flags": partial(
            _attributes,
            torch.backends.cudnn,
            ("enabled", "benchmark", "benchmark_limit", "deterministic"),
        ),
        "sdpa": _attention,
        "deterministic": torch.are_deterministic_algorithms_enabled,
        "determinism": _determinism,
    }


def _environment(names: tuple[str, ...]) -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in names}


def _attributes(module: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(module, name, None) for name in names}


def _precision() -> dict[str, Any]:
    found = read(
        {"float32_matmul": torch.get_float32_matmul_precision}
        | {name: partial(attrgetter(name), torch.backends) for name in _PRECISIONS}
    )
    # what nobody has set is computed as if it were set to "ieee"
    return {name: "ieee" if value == "none" else value for name, value in found.items()}


def _reduced_precision() -> dict[str, Any]:
    parts: dict[str, Part] = {
        name: partial(getattr, torch.backends.cuda.matmul, name, None) for name in _REDUCTIONS
    }
    parts["math_sdp"] = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed
    return read(parts)


def _attention() -> dict[str, Any]:
    cuda = torch.backends.cuda
    order: Callable[[], Any] | None = getattr(torch._C, "_get_sdp_priority_order", None)
    return read(
        {
            "flash": cuda.flash_sdp_enabled,
            "mem_efficient": cuda.mem_efficient_sdp_enabled,
            "math": cuda.math_sdp_enabled,
            "cudnn": cuda.cudnn_sdp_enabled,
            "order": order or (lambda: None),
        }
    )


def _determinism() -> dict[str, Any]:
    return read(
        {
            "warn_only": torch.is_deterministic_algorithms_warn_only_enabled,
            "fill_uninitialized_memory": partial(
                attrgetter("fill_uninitialized_memory"), torch.utils.deterministic
            ),
            "cublas_workspace": lambda: os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        }
    )


def _flushes_denormals() -> bool:
    """Torch has no getter: half of the smallest normal number is zero where it flushes."""
    half = torch.tensor([_SMALLEST_NORMAL], dtype=torch.float32) * 0.5
    return not bool(half.item())
