"""The digest against a second implementation in numpy, on unsigned 64-bit numbers."""

from __future__ import annotations

import itertools
import operator
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sdc_guard.digest import Digest, Span, as_words, digest_rows, digest_tensor, mix64, reference
from sdc_guard.digest.device_rows import rows_on_devices
from sdc_guard.digest.reference import MASK64, K

_UINT = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
REAL = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint16, torch.uint32, torch.uint64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]  # fmt: skip
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]


def numpy_digest(words: np.ndarray, first: int = 0) -> Digest:
    """H, S1 and S2 of unsigned words, from their formulas."""
    bits = words.reshape(-1).astype(np.uint64)
    index = np.arange(first, first + bits.size, dtype=np.uint64)
    z = bits ^ (index * np.uint64(0x9E3779B97F4A7C15))
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    weighted = (index + np.uint64(1)) * bits
    return Digest(int(z.sum()), int(bits.sum()), int(weighted.sum()))


def random_words(rng: np.random.Generator, shape: tuple[int, ...], size: int) -> np.ndarray:
    raw = rng.bytes(int(np.prod(shape)) * size)
    return np.frombuffer(bytearray(raw), dtype=_UINT[size]).reshape(shape)


def as_tensor(words: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    flat = torch.frombuffer(bytearray(words.tobytes()), dtype=dtype)
    return flat.reshape(words.shape) if dtype not in COMPLEX else flat


def test_mix64_is_the_published_splitmix64() -> None:
    state, outputs = 1234567, []
    for _ in range(3):
        state = (state + 0x9E3779B97F4A7C15) & MASK64
        outputs.append(mix64(state))
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (37,), (5, 7), (3, 4, 5), (0,), (3, 0)], ids=str)
def test_equals_numpy(dtype: torch.dtype, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    words = random_words(rng, shape, dtype.itemsize)
    if words.size:
        tensor = as_tensor(words.reshape(-1), dtype).reshape(shape)
    else:
        tensor = torch.empty(shape, dtype=dtype)
    assert digest_tensor(tensor) == numpy_digest(words)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_complex_elements_are_two_words(dtype: torch.dtype, rng: np.random.Generator) -> None:
    words = random_words(rng, (2 * 21,), dtype.itemsize // 2)
    tensor = as_tensor(words, dtype)
    assert tensor.shape == (21,)
    assert digest_tensor(tensor) == numpy_digest(words)
    transposed = tensor.reshape(3, 7).t()
    pairs = words.reshape(3, 7, 2).transpose(1, 0, 2)
    assert digest_tensor(transposed) == numpy_digest(pairs)


def test_bool() -> None:
    tensor = torch.tensor([True, False, True, True])
    assert digest_tensor(tensor) == numpy_digest(np.array([1, 0, 1, 1], dtype=np.uint8))


def test_every_bit_of_a_bool_counts() -> None:
    raw = torch.tensor([[1, 0], [2, 255]], dtype=torch.uint8)  # as a fault may leave them
    damaged = raw.view(torch.bool)
    assert digest_tensor(damaged) == numpy_digest(raw.numpy())
    assert digest_tensor(damaged.t()) == numpy_digest(raw.numpy().T)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2, torch.int64])
def test_is_read_row_by_row_whatever_the_strides(
    dtype: torch.dtype, rng: np.random.Generator
) -> None:
    words = random_words(rng, (6, 8), dtype.itemsize)
    tensor = as_tensor(words, dtype)
    assert digest_tensor(tensor.t()) == numpy_digest(words.T)
    assert digest_tensor(tensor[1::2, ::3]) == numpy_digest(words[1::2, ::3])
    assert digest_tensor(tensor[:1].expand(4, 8)) == numpy_digest(np.repeat(words[:1], 4, 0))
    assert digest_tensor(tensor.t()) != digest_tensor(tensor)


@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    data=st.data(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.float8_e5m2]),
    first=st.integers(0, 2**40),
    numpy_seed=st.integers(0, 2**32 - 1),
)
def test_any_order_of_memory_and_any_gaps_in_it(
    shape: list[int], data: st.DataObject, dtype: torch.dtype, first: int, numpy_seed: int
) -> None:
    order = data.draw(st.permutations(range(len(shape))))
    steps = tuple(slice(None, None, data.draw(st.sampled_from([1, 1, 1, 2]))) for _ in shape)
    words = random_words(np.random.default_rng(numpy_seed), tuple(shape), dtype.itemsize)
    tensor = as_tensor(words, dtype).permute(order)[steps]
    expected = numpy_digest(words.transpose(order)[steps], first)
    assert digest_tensor(tensor, offset=first) == expected
    assert (
        rows_on_devices([tensor], [first]).tolist()
        == digest_rows([tensor.contiguous()], offsets=[first]).tolist()
    )


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("stride", [1, 3, 2**40 + 1])
def test_long_runs(size: int, stride: int, rng: np.random.Generator) -> None:
    for count in (35, 36, 37, 71, 72, 1000, 4321):
        words = random_words(rng, (count,), size)
        bits = words.astype(np.uint64)
        index = np.arange(count, dtype=np.uint64) * np.uint64(stride) + np.uint64(7)
        mixed = [mix64(int(b) ^ int(i) * K & MASK64) for b, i in zip(bits, index, strict=True)]
        tensor = torch.from_numpy(words.view(f"i{size}"))
        found = digest_tensor(tensor, offset=Span(7, (count,), (stride,)))
        assert found == Digest(
            sum(mixed) & MASK64,
            int(bits.sum()),
            int(((index + np.uint64(1)) * bits).sum()),
        )
        plain = reference.sums(tensor, Span(7, (count,), (stride,))).tolist()
        assert found == Digest(*(value & MASK64 for value in plain))


ELSEWHERE = """
import numpy as np, torch
from sdc_guard.digest import Span, digest_tensor
raw = torch.from_numpy(np.random.default_rng(7).integers(0, 256, 9000, dtype=np.uint8))
kinds = (torch.uint8, torch.bfloat16, torch.float32, torch.int64)
found = [digest_tensor(raw.view(kind), offset=Span(5, (1125,), (3,))) for kind in kinds[3:]]
print([*found, *(digest_tensor(raw.view(kind)) for kind in kinds)])
"""


@pytest.mark.slow
def test_code_for_another_processor_makes_the_same_bits(tmp_path: Path) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("the other processor is an x86 one")
    other = {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": ""}
    told = [
        subprocess.run(
            [sys.executable, "-c", ELSEWHERE],
            env={**os.environ, **environment},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for environment in ({}, other | {"NUMBA_CACHE_DIR": str(tmp_path)})
    ]
    assert told[0] == told[1]
    assert told[0].count("Digest(") == 5


def test_a_transposed_matrix_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = torch.randn(8, 50)
    expected = digest_tensor(matrix.t().contiguous())
    monkeypatch.setattr(as_words, "words", None)
    assert digest_tensor(matrix.t()) == expected
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert digest_tensor(image) == digest_tensor(image.contiguous())


def test_tied_tensors_have_one_digest() -> None:
    embedding, head = torch.nn.Embedding(5, 4), torch.nn.Linear(4, 5, bias=False)
    head.weight = embedding.weight
    one, other = digest_rows([embedding.weight, head.weight]).tolist()
    assert one == other


def test_lazy_conjugates_and_negatives_are_taken_by_value() -> None:
    tensor = torch.complex(torch.tensor([1.0, 2.0]), torch.tensor([3.0, -4.0]))
    assert digest_tensor(tensor.conj()) == digest_tensor(tensor.conj().resolve_conj().clone())
    negative = tensor.conj().imag
    assert negative.is_neg()
    assert digest_tensor(negative) == digest_tensor(torch.tensor([-3.0, 4.0]))
    contiguous = tensor[:1].conj().imag
    assert contiguous.is_neg()
    assert contiguous.is_contiguous()
    assert digest_tensor(contiguous) == digest_tensor(torch.tensor([-3.0]))


def test_known_value_of_a_hand_made_tensor() -> None:
    # float32 1.0 is 0x3f800000, −0.0 is 0x80000000
    one, minus_zero = 0x3F800000, 0x80000000
    expected = Digest(
        (mix64(one) + mix64(minus_zero ^ K)) & MASK64, one + minus_zero, one + 2 * minus_zero
    )
    assert digest_tensor(torch.tensor([1.0, -0.0])) == expected
    assert digest_tensor(torch.tensor([1.0, 0.0])) != expected


def test_empty_is_zero() -> None:
    assert digest_tensor(torch.empty(0)) == Digest(0, 0, 0)
    assert digest_rows([]).shape == (0, 3)


def test_rows_are_the_signed_digests_in_order() -> None:
    tensors = [torch.randn(5), torch.arange(3), torch.empty(0)]
    rows = digest_rows(tensors)
    assert rows.dtype == torch.int64
    assert [tuple(v % 2**64 for v in row) for row in rows.tolist()] == [
        tuple(digest_tensor(tensor)) for tensor in tensors
    ]


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.float32, torch.uint8])
def test_the_tensor_is_left_as_it_was(dtype: torch.dtype, rng: np.random.Generator) -> None:
    words = random_words(rng, (64,), dtype.itemsize)
    tensor = as_tensor(words, dtype)
    version = tensor._version
    digest_tensor(tensor)
    assert tensor.view(torch.uint8).numpy().tobytes() == words.tobytes()
    assert tensor._version == version


def test_a_parameter_can_be_digested_between_forward_and_backward() -> None:
    weight = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))
    loss = (weight * weight).sum()
    digest_tensor(weight)
    loss.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0] * 4


@given(data=st.data(), size=st.integers(0, 60), numpy_seed=st.integers(0, 2**32 - 1))
def test_the_digests_of_shards_add_up(data: st.DataObject, size: int, numpy_seed: int) -> None:
    dtype = data.draw(st.sampled_from([*REAL, torch.complex64, torch.complex128]))
    cuts = sorted(data.draw(st.lists(st.integers(0, size), max_size=5)))
    raw = np.random.default_rng(numpy_seed).bytes(size * dtype.itemsize)
    tensor = torch.frombuffer(bytearray(raw), dtype=dtype) if size else torch.empty(0, dtype=dtype)
    total = Digest(0, 0, 0)
    for start, stop in itertools.pairwise([0, *cuts, size]):
        total += digest_tensor(tensor[start:stop], offset=start)
    assert total == digest_tensor(tensor)


@given(data=st.data(), numpy_seed=st.integers(0, 2**32 - 1))
def test_the_digests_of_blocks_add_up(data: st.DataObject, numpy_seed: int) -> None:
    dtype = data.draw(st.sampled_from([*REAL, torch.complex64, torch.complex128]))
    rows, inner, below = (data.draw(st.integers(1, 5)) for _ in range(3))
    raw = np.random.default_rng(numpy_seed).bytes(rows * inner * below * dtype.itemsize)
    tensor = torch.frombuffer(bytearray(raw), dtype=dtype).reshape(rows, inner, below)
    row, column = data.draw(st.integers(0, rows)), data.draw(st.integers(0, inner))
    total = [0, 0, 0]
    for block, top, left in (
        (tensor[:row, :column], 0, 0),
        (tensor[:row, column:], 0, column),
        (tensor[row:, :column], row, 0),
        (tensor[row:, column:], row, column),
    ):
        width, stride = block.shape[1] * below, inner * below
        span = Span(top * stride + left * below, (block.shape[0], width), (stride, 1))
        found = digest_tensor(block, offset=span)
        plain = reference.sums(block, span).tolist()
        assert found == Digest(*(value & MASK64 for value in plain))
        total = [(a + b) & MASK64 for a, b in zip(total, found, strict=True)]
    assert Digest(*total) == digest_tensor(tensor)


class StandsForAnother(torch.Tensor):
    """A tensor without memory of its own, as a distributed one is."""

    @staticmethod
    def __new__(cls, other: torch.Tensor) -> StandsForAnother:
        return torch.Tensor._make_wrapper_subclass(cls, other.shape, dtype=other.dtype)

    @classmethod
    def __torch_dispatch__(cls, *_: object, **__: object) -> object:
        return NotImplemented


def test_a_tensor_without_memory_is_refused_and_not_read_at_address_0() -> None:
    with pytest.raises(ValueError, match="a StandsForAnother has no memory of its own to read"):
        digest_tensor(StandsForAnother(torch.ones(3)))


@given(size=st.integers(0, 50), chunk=st.integers(1, 20), offset=st.integers(0, 2**40))
def test_the_internal_chunk_size_does_not_show(size: int, chunk: int, offset: int) -> None:
    words = np.random.default_rng(size).integers(0, 2**32, size, dtype=np.uint32)
    tensor = torch.from_numpy(words.view(np.int32).copy())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "_CHUNK", chunk)
        assert digest_tensor(tensor, offset=offset) == numpy_digest(words, offset)


def test_more_elements_than_one_chunk_holds(rng: np.random.Generator) -> None:
    size = reference._CHUNK + 1234
    words = rng.integers(0, 2**16, size, dtype=np.uint16)
    tensor = torch.from_numpy(words.view(np.int16).copy()).view(torch.bfloat16)
    whole = digest_tensor(tensor)
    assert whole == numpy_digest(words)
    cut = reference._CHUNK - 7
    assert whole == digest_tensor(tensor[:cut]) + digest_tensor(tensor[cut:], offset=cut)


def test_addition_is_modulo_2_to_the_64_and_only_of_digests() -> None:
    top = Digest(MASK64, MASK64, MASK64)
    assert top + Digest(1, 2, 3) == Digest(0, 1, 2)
    with pytest.raises(TypeError):
        operator.add(top, (1, 2, 3))


def test_no_small_change_is_missed(rng: np.random.Generator) -> None:
    words = rng.integers(0, 2**32, 64, dtype=np.uint32)
    words[5] = words[9]  # a swap of equal elements is no change
    tensor = torch.from_numpy(words.view(np.int32).copy()).view(torch.float32)
    bits = tensor.view(torch.int32)
    sound = digest_tensor(tensor).h
    seen = 0

    def changed(places: list[int], masks: list[int]) -> None:
        nonlocal seen
        for place, mask in zip(places, masks, strict=True):
            bits[place] ^= reference.signed64(mask << 32) >> 32
        seen += digest_tensor(tensor).h != sound
        for place, mask in zip(places, masks, strict=True):
            bits[place] ^= reference.signed64(mask << 32) >> 32

    singles = [(i, b) for i in range(64) for b in range(32)]
    for place, bit in singles:
        changed([place], [1 << bit])
    pairs = [tuple(rng.choice(64, 2, replace=False)) for _ in range(300)]
    for a, b in pairs:
        bit = int(rng.integers(32))
        changed([int(a), int(b)], [1 << bit] * 2)
        changed([int(a), int(b)], [1 << 31] * 2)
    swaps = [(int(a), int(b)) for a, b in pairs if words[a] != words[b]]
    for a, b in swaps:
        difference = int(words[a] ^ words[b])
        changed([a, b], [difference] * 2)
    assert digest_tensor(tensor).h == sound
    assert seen == len(singles) + 2 * len(pairs) + len(swaps)
