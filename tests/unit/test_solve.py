"""From two digests to the one element that changed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sdc_guard.digest import (
    Digest,
    SingleChange,
    confirm_change,
    digest_tensor,
    find_change,
    solve_single,
)
from sdc_guard.digest.reference import MASK64, signed64
from sdc_guard.digest.solve import solve_places

_INT = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
WIDTHS = sorted(_INT)


def row_of(values: list[int], width: int) -> torch.Tensor:
    """Unsigned words as the integer tensor that `words` would give."""
    if width > 8:
        values = [value - 2**width if value >> (width - 1) else value for value in values]
    return torch.tensor(values, dtype=_INT[width])


@st.composite
def words_lists(draw: st.DrawFn, least: int = 1) -> tuple[int, list[int]]:
    width = draw(st.sampled_from(WIDTHS))
    word = st.one_of(
        st.integers(0, 2**width - 1), st.sampled_from([0, 1, 2**width - 1, 2 ** (width - 1)])
    )
    return width, draw(st.lists(word, min_size=least, max_size=40))


@given(content=words_lists(), data=st.data())
def test_every_change_of_one_element_is_solved_and_proven(
    content: tuple[int, list[int]], data: st.DataObject
) -> None:
    width, values = content
    index = data.draw(st.integers(0, len(values) - 1))
    mask = data.draw(
        st.one_of(st.integers(0, width - 1).map(lambda bit: 1 << bit), st.integers(1, 2**width - 1))
    )
    before = digest_tensor(row_of(values, width))
    wrong = list(values)
    wrong[index] ^= mask
    row = row_of(wrong, width)
    after = digest_tensor(row)
    expected = SingleChange(index, values[index], wrong[index])
    assert find_change(row, before, after) == expected
    assert expected.bits == [bit for bit in range(width) if mask >> bit & 1]
    if width < 64:  # then the sums alone are enough
        solved = solve_single(before, after, numel=len(values), width=width)
        assert solved == (index, wrong[index] - values[index])
        assert confirm_change(before, after, *solved, bits_after=wrong[index]) == expected


@pytest.mark.parametrize("bit", [0, 51, 52, 60, 61, 62, 63])
@pytest.mark.parametrize("index", [0, 1, 2, 6, 255, 256, 999])
def test_the_high_bits_of_a_64_bit_element(bit: int, index: int) -> None:
    tensor = torch.linspace(-3, 5, 1000, dtype=torch.float64)
    before = digest_tensor(tensor)
    row = tensor.view(torch.int64)
    old = int(row[index]) & MASK64
    row[index] ^= signed64(1 << bit)
    found = find_change(row, before, digest_tensor(tensor))
    assert found == SingleChange(index, old, old ^ 1 << bit)
    assert found.bits == [bit]


def test_several_fitting_places_are_not_one() -> None:
    tensor = torch.zeros(8, dtype=torch.float64)
    before = digest_tensor(tensor)
    tensor[3] = -0.0  # the change is 2**63: even and odd places are all that S2 can tell
    after = digest_tensor(tensor)
    solved = solve_places(before, after, numel=8, width=64)
    assert solved is not None
    assert list(solved[0]) == [1, 3, 5, 7]
    assert solve_single(before, after, numel=8, width=64) is None
    assert solve_single(before, after, numel=3, width=64) == (1, -(2**63))


def test_h_alone_does_not_choose_the_place() -> None:
    tensor = torch.linspace(-3, 5, 100, dtype=torch.float64)
    before = digest_tensor(tensor)
    tensor[3] = -tensor[3]
    after = digest_tensor(tensor)
    row = tensor.view(torch.int64)
    found = find_change(row, before, after)
    assert found is not None
    assert found.index == 3
    # by this S2 it is one of the places 0, 2, 4, … and by H it is not
    assert find_change(row, before, after._replace(s2=after.s2 ^ 1 << 63)) is None


@given(content=words_lists(least=2), data=st.data())
def test_a_change_of_two_elements_is_never_called_one(
    content: tuple[int, list[int]], data: st.DataObject
) -> None:
    width, values = content
    places = data.draw(st.permutations(range(len(values))))[:2]
    before = digest_tensor(row_of(values, width))
    wrong = list(values)
    for place in places:
        wrong[place] ^= data.draw(st.integers(1, 2**width - 1))
    row = row_of(wrong, width)
    after = digest_tensor(row)
    assert find_change(row, before, after) is None
    solved = solve_single(before, after, numel=len(values), width=width)
    if solved is not None:
        bits = wrong[solved[0]]
        assert confirm_change(before, after, *solved, bits_after=bits) is None


def test_two_changes_that_look_like_one_to_the_sums_are_refused_by_h() -> None:
    # +1 at places 1 and 3 is +2 at place 2, to S1 and S2
    before = digest_tensor(torch.tensor([5, 5, 5], dtype=torch.int32))
    row = torch.tensor([6, 5, 6], dtype=torch.int32)
    after = digest_tensor(row)
    assert solve_single(before, after, numel=3, width=32) == (1, 2)
    assert confirm_change(before, after, 1, 2, bits_after=5) is None
    assert find_change(row, before, after) is None


def test_a_tensor_too_short_for_the_place_is_refused() -> None:
    tensor = torch.arange(10, dtype=torch.int32)
    before = digest_tensor(tensor)
    tensor[7] += 3
    after = digest_tensor(tensor)
    assert solve_single(before, after, numel=8, width=32) == (7, 3)
    assert solve_single(before, after, numel=7, width=32) is None


def test_a_change_wider_than_the_element_is_refused() -> None:
    before, after = Digest(0, 0, 0), Digest(1, 256, 256)
    assert solve_single(before, after, numel=4, width=8) is None
    assert solve_single(before, after, numel=4, width=16) == (0, 256)


def test_equal_digests_have_no_change() -> None:
    digest = digest_tensor(torch.randn(6))
    assert solve_single(digest, digest, numel=6, width=32) is None


def test_the_change_is_found_from_the_sound_tensor_too() -> None:
    sound = torch.randn(50)
    wrong = sound.clone()
    wrong.view(torch.int32)[33] ^= 1 << 20
    right, bad = digest_tensor(sound), digest_tensor(wrong)
    found = find_change(sound.view(torch.int32), bad, right)
    assert found is not None
    old, new = (int(t.view(torch.int32)[33]) & 0xFFFFFFFF for t in (sound, wrong))
    assert found == SingleChange(33, new, old)


@given(
    index=st.integers(0, 2**40), before=st.integers(0, 2**32 - 1), mask=st.integers(1, 2**32 - 1)
)
def test_places_far_into_a_huge_tensor(index: int, before: int, mask: int) -> None:
    after = before ^ mask
    one = torch.tensor([signed64(before << 32) >> 32], dtype=torch.int32)
    old = digest_tensor(one, offset=index)
    one[0] = signed64(after << 32) >> 32
    new = digest_tensor(one, offset=index)
    solved = solve_places(old, new, numel=2**41, width=32)
    assert solved is not None
    places, change = solved
    assert index in places
    assert change == after - before
    assert confirm_change(old, new, index, change, bits_after=after) == SingleChange(
        index, before, after
    )
