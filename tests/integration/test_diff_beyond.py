"""What `sdc-bisect diff` does not compare is never called equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from in_process import bisect

from forensics.readers.step_of import step_in_name


def saved(folder: Path, **files: dict[str, Any]) -> list[Path]:
    for name, state in files.items():
        torch.save(state, folder / f"{name}.pt")
    return [folder / f"{name}.pt" for name in files]


def quantised(value: float) -> torch.Tensor:
    whole = torch.full((4,), value)
    return torch.quantize_per_tensor(whole, 0.1, 0, torch.quint8)


@pytest.mark.filterwarnings("ignore")  # torch deprecates what it reads all the same
def test_what_is_not_evaluated_is_not_called_equal(tmp_path: Path) -> None:
    one, other = torch.ones(3), torch.zeros(3)
    a, b, c, d = saved(
        tmp_path,
        a={"q": quantised(1.0)}, b={"q": quantised(2.0)},
        c={"q": quantised(1.0), "w": one}, d={"q": quantised(2.0), "w": one, "x": other},
    )  # fmt: skip
    answer = bisect("diff", a, b)
    assert answer.code == 0
    assert answer.out.splitlines()[0] == "no tensors to compare; 1 value not compared"
    assert set(bisect("diff", a, b, "--json").json["not_evaluated"]) == {"q"}
    answer = bisect("diff", c, c)
    assert (answer.code, answer.out.splitlines()[0]) == (
        0, "what was compared: 1 tensor is equal, bit for bit; 1 value not compared"
    )  # fmt: skip
    assert bisect("diff", c, d).code == 1
    for three in ((a, b, a), (c, c, c), (c, d, c)):
        assert "no difference" not in bisect("diff", *three).out
    assert bisect("diff", c, c, c).out.splitlines()[0] == (
        "1 of 2 tensors compared, equal, bit for bit; 1 not compared"
    )


def test_names_that_nothing_shares_are_not_equal(tmp_path: Path) -> None:
    a, b = saved(tmp_path, a={"w": torch.ones(3)}, b={"x": torch.ones(3)})
    answer = bisect("diff", a, b)
    assert (answer.code, answer.out.splitlines()[0]) == (
        1, "no tensor in common: 1 only in A, 1 only in B"
    )  # fmt: skip
    answer = bisect("diff", a, b, a)
    assert answer.out.splitlines()[0] == "0 tensors in common: nothing was compared"
    assert "no difference" not in answer.out


def test_what_is_only_in_one_of_three_is_counted(tmp_path: Path) -> None:
    w = torch.ones(3)
    a, b = saved(tmp_path, a={"w": w}, b={"w": w, "x": w + 1})
    assert bisect("diff", a, b, a).out.splitlines()[0] == (
        "1 of 2 tensors compared, equal, bit for bit; 1 not compared"
    )
    assert bisect("diff", a, a, a).out.startswith("no difference: the three are equal")


@pytest.mark.filterwarnings("ignore")  # of a save without processes
def test_a_checkpoint_without_tensors_is_not_equal_to_another(tmp_path: Path) -> None:
    for name in "ab":
        dcp.save({"step": 1}, checkpoint_id=tmp_path / name, no_dist=True)
    for places in ("ab", "aba"):
        answer = bisect("diff", *[tmp_path / one for one in places])
        assert (answer.code, answer.out.splitlines()[0]) == (0, "no tensors to compare")


def test_a_name_that_only_one_ties_is_told_and_no_difference(tmp_path: Path) -> None:
    t = torch.ones(3)
    a, b, c = saved(tmp_path, a={"t1": t, "t2": t}, b={"t1": t}, c={"t1": t, "t2": t + 1})
    answer = bisect("diff", a, b)
    assert (answer.code, answer.out.splitlines()) == (0, [
        "no difference: 1 tensor is equal, bit for bit",
        "tied, and no difference: t2 is only in A (tied to t1)",
    ])  # fmt: skip
    assert bisect("diff", b, a, "--json").json["tied"] == [
        {"name": "t2", "only_in": ["B"], "tied_to": "t1"}
    ]
    assert "t2 is only in A and C (tied to t1)" in bisect("diff", a, b, a).out
    assert bisect("diff", a, a, "--json").json["tied"] == []
    assert bisect("diff", b, c).code == 1  # not tied there: a tensor that B lacks
    assert "tied" not in bisect("diff", b, c).out


def test_a_tensor_that_repeats_is_compared_as_it_is_stored(tmp_path: Path) -> None:
    large = torch.arange(3.0)[:, None].expand(3, 10**12)
    other = torch.tensor([0.0, 1.0, 2.5])[:, None].expand(3, 10**12)
    a, b = saved(tmp_path, a={"e": large}, b={"e": other})
    answer = bisect("diff", a, a)
    assert (answer.code, answer.out.splitlines()) == (
        0, ["no difference: 1 tensor is equal, bit for bit"]
    )  # fmt: skip
    assert bisect("diff", a, a, a).out.startswith("no difference: the three")
    answer = bisect("diff", a, b)
    assert (answer.code, answer.out.splitlines()[0]) == (
        1, "1 of 1 tensor differs: 1 element, 1 bit"
    )  # fmt: skip
    (single,) = saved(tmp_path, s={"e": torch.ones(1).expand(10**6, 10**6)})
    assert bisect("diff", single, single).code == 0


def test_checkpoints_of_one_step_are_told_by_their_names(tmp_path: Path) -> None:
    saved(tmp_path, step_1={"w": torch.ones(2)}, step_2={"w": torch.ones(2)})
    saved(tmp_path, last={"step": 2, "w": torch.ones(2)})
    for command in ("index", "scan"):
        lines = bisect(command, tmp_path).out.splitlines()
        assert "step_1" not in lines[0]
        assert "last.pt" in lines[1]
        assert "step_2.pt" in lines[2]


def test_a_number_too_long_for_a_step_is_none(tmp_path: Path) -> None:
    assert step_in_name("step" + "9" * 40) is None
    state = {"w": torch.ones(2)}
    saved(tmp_path, **{f"step-{'9' * 20}": state, f"step-{'0' * 20}7": state})
    first, second = bisect("index", tmp_path, "--json").json["checkpoints"]
    assert (first["step"], second["step"]) == (0, 7)
    assert first["notes"] == ["neither its name nor what it holds says its step"]
