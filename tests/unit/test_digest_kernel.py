"""The kernel that digests tensors on CUDA, on a machine without CUDA: compiled for three
generations of devices; and the operator around it. test_interpreted.py runs it."""

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

import sdc_guard.digest
from sdc_guard.digest import Patch, Patches, Place, Span, device_rows, digest_rows
from sdc_guard.digest.custom_op import digest_operator
from sdc_guard.digest.device_rows import fused_kernels, plain_rows, rows_on_cuda, rows_on_devices
from sdc_guard.digest.word_table import Piece, table

NESTED = Span(3, (2, 2), (7, 1))
PATCHES = Patches(
    (Patch((0, 0), (2, 1), Span(0, (2, 1), (9, 1))), Patch((0, 1), (2, 1), Span(4, (2, 1), (9, 1))))
)
PLACES: list[Place] = [7, NESTED, PATCHES]


def tensors() -> list[torch.Tensor]:
    return [
        torch.arange(5.0, dtype=torch.bfloat16),
        torch.tensor([1.5, -0.0, float("nan"), 2.0]),
        torch.arange(4).reshape(2, 2),
    ]


@pytest.fixture
def _kernels_unknown() -> Any:
    fused_kernels.cache_clear()
    yield
    fused_kernels.cache_clear()
    device_rows._unbuilt.clear()


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize(
    ("size", "levels", "wide_read"),
    [
        (1, 1, "ld.global.b32"),
        (2, 2, "ld.global.v2.b32"),
        (4, 3, "ld.global.v4.b32"),
        (8, 1, "ld.global.v2.b64"),
    ],
)
def test_the_kernel_compiles_to_wide_reads_and_three_additions(
    size: int,
    levels: int,
    wide_read: str,
    capability: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("triton", reason="needs triton, which CUDA builds of torch bring")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernels = fused_kernels()
    types = {"words": "*i64", "out": "*i64", "chunks": "i32", "first": "i32", "depth": "i32"}
    constants = {
        "element": kernels.WORDS[size], "aligned": True, "levels": levels, "short": True,
    }  # fmt: skip
    made = compiled(kernels.digest_chunks, types, constants, capability)
    assert len(made.asm["cubin"]) > 1000
    assert wide_read in made.asm["ptx"]
    # whole numbers alone: no rounding, and an order of additions that does not show
    assert len(re.findall(r"\b(?:atom|red)\.\S*add\.u64", made.asm["ptx"])) == 3
    assert not re.search(r"\.f(16|32|64)\b", made.asm["ptx"])
    loop = re.search(r"^(\$L__BB0_2:.*?)bra", made.asm["ptx"], re.DOTALL | re.MULTILINE)
    assert loop is not None
    assert "bar.sync" not in loop.group(1)  # threads wait for each other after it alone


def test_wide_reads_are_of_words_at_multiples_of_16_bytes() -> None:
    whole, flat = Span(0, (70_000,), (1,)), Span(9, (10,), (1,))
    nested = Span(0, (5, 2), (7, 1))
    pieces = [
        Piece(64, 2, 70_000, whole, 0), Piece(72, 2, 10, flat, 1), Piece(96, 2, 10, flat, 2),
        Piece(80, 2, 10, nested, 3), Piece(96, 4, 10, flat, 4),
    ]  # fmt: skip
    made = table(pieces, torch.device("cpu"))
    kinds = [(x.size, x.aligned, x.levels, x.short, x.chunks) for x in made.launches]
    assert sorted(kinds) == [
        (2, False, 1, True, 1), (2, True, 1, True, 4), (2, True, 2, True, 1), (4, True, 1, True, 1),
    ]  # fmt: skip
    addresses = made.words[: made.chunks].tolist()
    for launch in made.launches:
        of_launch = addresses[launch.first : launch.first + launch.chunks]
        assert all((address % 16 == 0) == launch.aligned for address in of_launch)


@pytest.mark.usefixtures("_kernels_unknown")
def test_without_triton_plain_torch_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sdc_guard.digest.fused_cuda", raising=False)
    monkeypatch.delattr(sdc_guard.digest, "fused_cuda", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)  # makes its import fail
    assert fused_kernels() is None
    found = rows_on_cuda(tensors(), PLACES)
    assert found.tolist() == digest_rows(tensors(), offsets=PLACES).tolist()


@pytest.mark.usefixtures("_kernels_unknown")
def test_a_kernel_that_cannot_be_built_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class NoCompiler:
        @staticmethod
        def rows(*_: object) -> torch.Tensor:
            raise RuntimeError("Failed to find C compiler\nset CC")

    monkeypatch.setattr(device_rows, "fused_kernels", lambda: NoCompiler)
    expected = digest_rows(tensors(), offsets=PLACES).tolist()
    with caplog.at_level(logging.WARNING, "sdc_guard"):
        for _ in range(3):
            assert rows_on_cuda(tensors(), PLACES).tolist() == expected
    (record,) = caplog.records
    assert "RuntimeError: Failed to find C compiler); plain torch" in record.message


def test_the_operator_makes_the_same_rows_and_has_a_sound_schema() -> None:
    expected = plain_rows(tensors(), PLACES).tolist()
    assert digest_operator(tensors(), PLACES).tolist() == expected
    numbers = [0, 7, 0, 0, 3, 2, 2, 2, 7, 1]
    torch.library.opcheck(torch.ops.sdc_guard.digest_rows.default, (tensors()[:2], numbers))


def test_the_operator_has_a_shape_without_values() -> None:
    with FakeTensorMode():
        made = [torch.empty(3, device="cuda", dtype=torch.bfloat16), torch.empty(2, device="cuda")]
        found = digest_operator(made, [0, 5])
    assert (found.shape, found.dtype, found.device.type) == ((2, 3), torch.int64, "cuda")


def test_a_compiled_function_digests_within_one_graph() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        return y, digest_rows([y, x.t()], offsets=[0, NESTED])

    x = torch.arange(4.0).reshape(2, 2)
    doubled, rows = torch.compile(function, backend="aot_eager", fullgraph=True)(x)
    assert rows.tolist() == digest_rows([doubled, x.t()], offsets=[0, NESTED]).tolist()


def test_tensors_of_several_devices_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    # meta tensors stand for those of a device that is not there
    monkeypatch.setitem(
        device_rows._ROWS, "meta", lambda those, _: torch.tensor([[x.numel()] * 3 for x in those])
    )
    mixed = [torch.empty(9, device="meta"), torch.tensor([0.0]), torch.empty(4, device="meta")]
    found = rows_on_devices(mixed, [0, 0, 0])
    assert found.tolist() == [[9, 9, 9], [0, 0, 0], [4, 4, 4]]
