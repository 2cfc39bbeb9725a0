"""The kernel that measures gradients on CUDA, on a machine without CUDA: compiled for two
generations of devices; test_interpreted.py runs it."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from ahead_of_time import compiled
from torch._subclasses.fake_tensor import FakeTensorMode

import sdc_guard.signals
from sdc_guard.signals import device_sums
from sdc_guard.signals.device_sums import fused_kernels, sums_on_device
from sdc_guard.signals.measures import sums_of


@pytest.fixture
def _kernels_unknown() -> Any:
    fused_kernels.cache_clear()
    yield
    fused_kernels.cache_clear()
    device_sums._unbuilt.clear()


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module with the kernels."""
    pytest.importorskip("triton", reason="needs triton, which CUDA builds of torch bring")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return fused_kernels()


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(
    ("dtype", "wide_read"),
    [
        (torch.float32, "ld.global.v4.b32"),
        (torch.bfloat16, "ld.global.v2.b32"),
        (torch.float16, "ld.global.v2.b32"),
        (torch.float64, "ld.global.v2.b64"),
    ],
    ids=str,
)
def test_the_kernel_compiles_to_wide_reads_without_atomics(
    kernels: Any, dtype: torch.dtype, wide_read: str, capability: int
) -> None:
    types = {"words": "*i64", "partials": "*fp64", "chunks": "i32", "first": "i32"}
    for aligned in (True, False):
        constants = {"element": kernels.ELEMENTS[dtype], "aligned": aligned}
        made = compiled(kernels.sums_of_chunks, types, constants, capability)
        assert len(made.asm["cubin"]) > 1000
        assert (wide_read in made.asm["ptx"]) == aligned
        # neither an order that changes from run to run nor denormals taken for zero
        assert not re.search(r"\b(atom|red)\.|\.ftz", made.asm["ptx"])
        loop = re.search(r"^(\$L__BB0_2:.*?)bra", made.asm["ptx"], re.DOTALL | re.MULTILINE)
        assert loop is not None
        assert "bar.sync" not in loop.group(1)  # threads wait for each other after it alone


@pytest.mark.parametrize("capability", [80, 90])
def test_the_second_kernel_compiles(kernels: Any, capability: int) -> None:
    types = {"words": "*i64", "partials": "*fp64", "chunks": "i32", "out": "*fp64"}
    made = compiled(kernels.sums_of_gradients, types, {}, capability)
    assert len(made.asm["cubin"]) > 1000
    assert not re.search(r"\b(atom|red)\.", made.asm["ptx"])


def gradients() -> list[torch.Tensor]:
    return [torch.tensor([3.0, -4.0, 0.0]), torch.tensor([float("inf")]), torch.ones(5).double()]


SUMS = [[25.0, 4.0, 7.0, 0.0, 1.0], [float("inf")] * 3 + [1.0, 0.0], [5.0, 1.0, 5.0, 0.0, 0.0]]


@pytest.mark.usefixtures("_kernels_unknown")
def test_without_triton_plain_torch_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sdc_guard.signals.fused_cuda", raising=False)
    monkeypatch.delattr(sdc_guard.signals, "fused_cuda", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)  # makes its import fail
    assert fused_kernels() is None
    assert device_sums._on_cuda(gradients()).tolist() == SUMS


@pytest.mark.usefixtures("_kernels_unknown")
def test_a_kernel_that_cannot_be_built_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    class NoCompiler:
        ELEMENTS = {torch.float32, torch.float64}  # noqa: RUF012 - because it is the module's name

        @staticmethod
        def sums(_: list[torch.Tensor]) -> torch.Tensor:
            raise RuntimeError("Failed to find C compiler\nset CC")

    with caplog.at_level(logging.WARNING, "sdc_guard"):
        for _ in range(3):
            assert device_sums._fused(NoCompiler, gradients()) is None
    (record,) = caplog.records
    assert "RuntimeError: Failed to find C compiler); plain torch" in record.message


def test_the_operator_on_the_cpu_and_its_schema() -> None:
    assert torch.ops.sdc_guard.gradient_sums(gradients()).tolist() == SUMS
    torch.library.opcheck(torch.ops.sdc_guard.gradient_sums.default, (gradients(),))


def test_the_operator_has_a_shape_without_values() -> None:
    with FakeTensorMode():
        made = [torch.empty(3, device="cuda", dtype=torch.bfloat16), torch.empty(2, device="cuda")]
        found = sums_on_device(made, [3, 2])
    assert (found.shape, found.dtype, found.device.type) == ((2, 5), torch.float64, "cuda")


def test_zeros_that_a_sparse_gradient_does_not_store_count() -> None:
    sparse = torch.sparse_coo_tensor(
        torch.tensor([[1, 1, 3]]), torch.ones(3, 2), (5, 2), check_invariants=True
    )
    # row 1 gathers two ones in each of two columns, row 3 one
    expected = [10.0, 2.0, 6.0, 0.0, 6.0]
    assert sums_on_device([sparse, sparse.to_dense()], [10, 10]).tolist() == [expected, expected]


def test_rows_stay_in_their_order() -> None:
    made = [torch.full((size,), float(size)) for size in (3, 1, 2)]
    found = sums_on_device(made, [3, 1, 2])
    assert found.tolist() == [sums_of(gradient).tolist() for gradient in made]
