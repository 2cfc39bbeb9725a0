"""From a sound tensor's bytes and two digests to the element that was wrong."""

from __future__ import annotations

import pytest
import torch

from forensics.locate import _solve, _word_dtype, value_of
from sdc_guard.digest import digest_tensor
from sdc_guard.digest.reference import words
from sdc_guard.inject.injector import flip_bit


@pytest.mark.parametrize(
    ("dtype", "index", "bit"),
    [
        (torch.float32, 17, 30),
        (torch.bfloat16, 0, 15),
        (torch.float64, 23, 63),  # the sums alone fit any odd place
        (torch.float64, 6, 2),
        (torch.complex64, 41, 31),  # a word of an imaginary part
        (torch.uint8, 5, 7),
    ],
)
def test_the_wrong_element_is_found_from_the_sound_tensor(
    dtype: torch.dtype, index: int, bit: int, seed: int
) -> None:
    torch.manual_seed(seed)
    sound = torch.randn(4, 6).mul(50).to(dtype)
    content = words(sound).numpy().tobytes()
    wrong = sound.clone()
    before, after = flip_bit(wrong, index, bit)
    name = _word_dtype(str(dtype).removeprefix("torch."), len(content), sound.numel())
    found = _solve(content, name, digest_tensor(sound), digest_tensor(wrong))
    assert found is not None
    assert (found.index, found.before, found.after, found.bits) == (index, before, after, [bit])
    assert value_of(found.before, name) is not None


def test_two_wrong_elements_are_not_taken_for_one() -> None:
    sound = torch.arange(24.0)
    wrong = sound.clone()
    flip_bit(wrong, 3, 4)
    flip_bit(wrong, 9, 4)
    content = words(sound).numpy().tobytes()
    assert _solve(content, "float32", digest_tensor(sound), digest_tensor(wrong)) is None


def test_bytes_that_are_no_whole_elements_locate_nothing() -> None:
    digest, other = digest_tensor(torch.ones(3)), digest_tensor(torch.zeros(3))
    for content in (b"", b"\0" * 11):
        assert _solve(content, "float32", digest, other) is None


@pytest.mark.parametrize(
    ("layer", "size", "expected"),
    [
        ("bfloat16", 2 * 24, "bfloat16"),
        ("bfloat16", 4 * 24, "float32"),  # a moment kept in more digits than its parameter
        ("float32", 8 * 24, "float64"),
        ("complex64", 8 * 24, "float32"),
        ("complex128", 16 * 24, "float64"),
    ],
)
def test_the_words_of_a_tensor(layer: str, size: int, expected: str) -> None:
    assert _word_dtype(layer, size, 24) == expected
