"""PLAN.toml: what is read, and each mistake in one line with its place."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from sdc_guard.errors import InjectionError
from sdc_guard.inject.fault import Fault
from sdc_guard.inject.plan_file import _KINDS, read_plan

SOUND = """\
seed = 3

[[fault]]
site = "weight"
step = 100
tensor = "blocks.*.weight"
bits = [30, 3]

[[fault]]
site = "activation"
step = 5
index = [2, 4]
change = "scale"
exponent = -3
recurrence = "intermittent"
probability = 0.25
"""


def plan(folder: Path, text: str) -> Path:
    path = folder / "plan.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_plan_is_a_seed_and_faults(tmp_path: Path) -> None:
    found = read_plan(plan(tmp_path, SOUND))
    assert found.seed == 3
    assert found.faults == (
        Fault("weight", 100, "blocks.*.weight", bits=(30, 3)),
        Fault(
            "activation", 5, index=(2, 4), change="scale", exponent=-3,
            recurrence="intermittent", probability=0.25,
        ),
    )  # fmt: skip
    assert read_plan(plan(tmp_path, SOUND.replace("seed = 3\n", ""))).seed == 0


def test_every_field_of_a_fault_is_a_key() -> None:
    assert set(_KINDS) == {field.name for field in fields(Fault)}


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("seed = 3", "sed = 3", 1, "no key 'sed'"),
        ("seed = 3", "seed = true", 1, "seed = True"),
        ("step = 5", "stp = 5", 11, "no key 'stp' of a fault"),
        ("step = 5", "step = 5.5", 11, r"step = 5\.5.*a whole number"),
        ("step = 5", "step = -1", 11, "no step -1"),
        ("step = 5\n", "", 9, "a fault without step"),
        ('"weight"', '"weigth"', 4, "no site 'weigth'.*one of weight, buffer"),
        ("bits = [30, 3]", "bits = [30, 'x']", 7, "bits = .*a list of whole numbers"),
        ("bits = [30, 3]", "bits = []", 7, r"bits \[\]"),
        ("bits = [30, 3]", "bits = [30]\nbit = 30", 7, "both bit and bits"),
        ("0.25", "2.5", 16, r"no probability 2\.5"),
        ('"scale"', '"sale"', 13, "no change 'sale'.*one of flip, stuck_at_0"),
        ("seed = 3", "seed = ", None, "no TOML: .*line 1"),
        ("seed = 3", "seed = " + "[" * 100_000, None, "no TOML: nested too deep"),
        ("step = 5", "step = " + "9" * 5000, None, "no TOML: Exceeds the limit"),
        ("exponent = -3", "value = " + "9" * 400, 14, "value 9{40}….*a number that a float can"),
        (SOUND, "seed = 3\n", None, "no fault.*with a site and a step"),
        (SOUND, "fault = 3\n", None, "no fault"),
    ],
    ids=lambda x: str(x)[:40],
)
def test_a_mistake_is_one_line_with_its_place(
    tmp_path: Path, old: str, new: str, line: int | None, message: str
) -> None:
    assert SOUND.count(old) >= 1
    path = plan(tmp_path, SOUND.replace(old, new))
    with pytest.raises(InjectionError, match=message) as caught:
        read_plan(path)
    assert "\n" not in str(caught.value)
    assert str(path) in caught.value.where
    if line is not None:
        assert caught.value.where == f"{path} line {line}"


def test_no_file_and_no_text(tmp_path: Path) -> None:
    with pytest.raises(InjectionError, match="the plan cannot be read: No such file"):
        read_plan(tmp_path / "nothing.toml")
    (tmp_path / "plan.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InjectionError, match="no TOML"):
        read_plan(tmp_path / "plan.toml")


def test_a_mark_before_the_text_is_no_mistake(tmp_path: Path) -> None:
    path = plan(tmp_path, "\ufeff" + SOUND)
    assert read_plan(path) == read_plan(plan(tmp_path, SOUND))
