"""Which step tensors are of that are not of the one which a checkpoint says."""

from __future__ import annotations

import pytest

from sdc_guard.archive.other_step import Named, of_other_steps
from sdc_guard.digest import Digest

Wrong = dict[str, tuple[Named, Digest]]
W, B = ("param", "w"), ("param", "b")


def digest(step: int, of: int = 0) -> Digest:
    return Digest(100 * step + of, step, of)


STEPS: dict[int, dict[Named, Digest]] = {
    step: {W: digest(step), B: digest(step, 1)} for step in range(3, 8)
}


@pytest.mark.parametrize(
    ("other", "how"), [(6, "copied while the training went on"), (4, "an older copy")]
)
def test_all_of_one_other_step(other: int, how: str) -> None:
    wrong: Wrong = {
        "m.w": (W, digest(other)),
        "m.b": (B, digest(other, 1)),
    }
    assert of_other_steps(5, wrong, STEPS) == [f"2 tensors hold step {other} (m.w first): {how}"]


def test_some_of_each_side() -> None:
    wrong: Wrong = {"m.w": (W, digest(7)), "m.b": (B, digest(4, 1))}
    assert of_other_steps(5, wrong, STEPS) == [
        "1 tensor holds step 4 (m.b first): an older copy",
        "1 tensor holds step 7 (m.w first): copied while the training went on",
    ]


def test_one_of_no_step_is_no_race() -> None:
    wrong: Wrong = {"m.w": (W, digest(6)), "m.b": (B, digest(6))}
    assert of_other_steps(5, wrong, STEPS) == []


def test_what_stays_the_same_is_of_the_nearest_step() -> None:
    same: dict[int, dict[Named, Digest]] = {step: {W: digest(9)} for step in (3, 4, 7)}
    assert of_other_steps(5, {"m.w": (W, digest(9))}, same)[0].startswith("1 tensor holds step 4 ")
