"""The digest on a CUDA device: the bits of the CPU, by the kernel, without waiting."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import pytest
import torch

from sdc_guard.digest import Patch, Patches, Place, Span, device_rows, digest_rows
from sdc_guard.digest.device_rows import plain_rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
]
REAL = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint16, torch.uint32, torch.uint64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]  # fmt: skip
NESTED = Span(0, (5, (2**31 + 2) // 5), (2**33, 1))
DTYPES = [*REAL, torch.bool, torch.complex32, torch.complex64, torch.complex128]


@contextlib.contextmanager
def waiting_is_an_error() -> Iterator[None]:
    """Within it, torch raises where the host would wait for the device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def bits(size: int, dtype: torch.dtype) -> torch.Tensor:
    """Any bits at all, on the CPU."""
    raw = torch.randint(0, 256, (size * dtype.itemsize,), dtype=torch.uint8)
    return raw.view(dtype)


def check(host: list[torch.Tensor], places: list[Place] | None = None) -> None:
    """The same rows on the device, by the kernel, as on the CPU."""
    there = [tensor.cuda() for tensor in host]
    digest_rows(there, offsets=places)  # builds the kernel
    torch.cuda.synchronize()
    with waiting_is_an_error():
        found = digest_rows(there, offsets=places)
    assert device_rows._unbuilt == []
    assert found.is_cuda
    assert found.tolist() == digest_rows(host, offsets=places).tolist()
    assert found.tolist() == plain_rows(there, places or [0] * len(there)).tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_and_size(dtype: torch.dtype) -> None:
    check([bits(size, dtype) for size in (0, 1, 2047, 2048, 32_768, 32_769, 1_000_003)])


def test_many_tensors_of_all_dtypes_at_once() -> None:
    host = [bits(5_000 + 97 * number, dtype) for number, dtype in enumerate(DTYPES)]
    host += [x[1:] for x in host]  # not at a multiple of 16 bytes
    check(host, [3 + 2**40 * number for number in range(len(host))])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_parts(dtype: torch.dtype) -> None:
    matrix = bits(600 * 800, dtype).reshape(600, 800)
    left, right = matrix[:, :300].contiguous(), matrix[:, 300:].contiguous()
    places: list[Place] = [Span(0, (600, 300), (800, 1)), Span(300, (600, 500), (800, 1))]
    check([left, right], places)
    rows = digest_rows([left.cuda(), right.cuda()], offsets=places)
    assert rows.sum(0).tolist() == digest_rows([matrix])[0].tolist()
    cut = Patches(
        (
            Patch((0, 0), (600, 100), Span(0, (600, 100), (800, 1))),
            Patch((0, 100), (600, 200), Span(150, (600, 2, 100), (800, 300, 1))),
        )
    )
    check([left, matrix.t(), matrix[::2, 5:].conj()], [cut, 7, 0])


def test_a_compiled_function_digests_on_the_device() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return digest_rows([x * 2, x], offsets=[0, Span(0, (4, 8), (16, 1))])

    x = torch.randn(4, 8, device="cuda")
    found = torch.compile(function, backend="aot_eager", fullgraph=True)(x)
    assert found.tolist() == function(x).tolist()


@pytest.mark.slow
def test_more_than_2_to_the_31_words() -> None:
    there = torch.zeros(2**31 + 2, dtype=torch.uint8, device="cuda")
    there[-1] = 3
    (_, s1, s2), (_, t1, t2) = digest_rows([there, there], offsets=[0, NESTED]).tolist()
    assert (s1, s2) == (3, 3 * (2**31 + 2))
    assert (t1, t2) == (3, 3 * (4 * 2**33 + (2**31 + 2) // 5))
