"""The kernel that digests tensors, interpreted by Triton on CPU tensors, against the reference.

Run by test_interpreted.py in a process of its own: whether Triton interprets is settled when it
is first imported.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_digest import COMPLEX, REAL

from sdc_guard.digest import Patch, Patches, Place, Span, digest_rows, word_table
from sdc_guard.digest.device_rows import _unbuilt, plain_rows, rows_on_cuda
from sdc_guard.digest.rows import rows_in_host

DTYPES = [*REAL, *COMPLEX, torch.bool]
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


def drawn(rng: np.random.Generator, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Any bits at all."""
    raw = rng.bytes(size * dtype.itemsize)
    return torch.frombuffer(bytearray(raw), dtype=dtype) if size else torch.empty(0, dtype=dtype)


def check(tensors: list[torch.Tensor], places: list[Place] | None = None) -> None:
    where = places or [0] * len(tensors)
    found = rows_on_cuda(tensors, where)
    assert _unbuilt == []
    assert found.dtype == torch.int64
    assert found.tolist() == plain_rows(tensors, where).tolist()
    assert found.tolist() == rows_in_host(tensors, where).tolist()


@pytest.mark.parametrize(
    "dtype",
    [torch.float8_e5m2, torch.bfloat16, torch.float32, torch.float64, torch.complex32],
    ids=str,
)
def test_sizes_around_tiles_and_chunks(dtype: torch.dtype, rng: np.random.Generator) -> None:
    chunk = word_table.CHUNK
    sizes = [0, 1, 2, 2047, 2048, 2049, chunk, chunk + 1]
    check([drawn(rng, size, dtype) for size in sizes])


def test_all_dtypes_and_places_at_once(rng: np.random.Generator) -> None:
    tensors = [drawn(rng, int(rng.integers(1, 5000)), dtype) for dtype in DTYPES]
    tensors += [drawn(rng, 999, dtype)[1:] for dtype in DTYPES]  # not at a multiple of 16 bytes
    check(tensors, [int(place) for place in rng.integers(0, 2**62, len(tensors))])


def test_any_view(rng: np.random.Generator) -> None:
    matrix = drawn(rng, 48, torch.complex64).reshape(6, 8)
    check(
        [
            matrix.t(), matrix[1::2, ::3], matrix[:1].expand(4, 8), matrix.conj(), matrix.real,
            matrix.conj().imag, torch.tensor(2.5), torch.empty(3, 0),
        ]
    )  # fmt: skip
    check([torch.empty(0)])


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    gaps=st.lists(st.integers(0, 3), min_size=4, max_size=4),
    first=st.integers(0, 2**50),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.complex64, torch.int64]),
    seed=st.integers(0, 2**32 - 1),
)
def test_nested_runs(
    sizes: list[int], gaps: list[int], first: int, dtype: torch.dtype, seed: int
) -> None:
    strides, below = [], 1
    for size, gap in zip(reversed(sizes), gaps, strict=False):
        strides.append(below + gap)
        below = size * (below + gap)
    span = Span(first, tuple(sizes), tuple(reversed(strides)))
    tensor = drawn(np.random.default_rng(seed), int(np.prod(sizes)), dtype)
    check([tensor, tensor], [span, first])


def test_nested_runs_over_several_chunks_and_deep(rng: np.random.Generator) -> None:
    long = drawn(rng, word_table.CHUNK + 700, torch.bfloat16)
    halves = long.reshape(2, -1)
    width = halves.shape[1]
    patches = Patches(
        (
            Patch((0, 0), (2, 10), Span(5, (2, 10), (3 * width, 1))),
            Patch((0, 10), (2, width - 10), Span(7_000, (2, width - 10), (3 * width, 2))),
        )
    )
    check([long, halves], [Span(3, (len(long) // 6, 3, 2), (40, 9, 4)), patches])


def test_which_others_there_are_does_not_show(rng: np.random.Generator) -> None:
    tensors = [drawn(rng, 3000, torch.float32) for _ in range(5)]
    together = rows_on_cuda(tensors, [0] * 5)
    assert together.tolist() == digest_rows(tensors).tolist()
    assert rows_on_cuda(tensors[3:4], [0]).tolist() == together[3:4].tolist()


def test_positions_beyond_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_table, "SHORT", 10)
    tensor = torch.arange(60, dtype=torch.int32)
    check([tensor], [Span(2**40, (6, 10), (2**33, 1))])
