"""Tied weights of two checkpoints: one name where both tie, all names where one does not."""

from __future__ import annotations

from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st
from made_safetensors import by_hand, entry
from safetensors.torch import save_file, save_model

from forensics.aliases import same_names
from forensics.content import Content, StoredTensor
from forensics.readers.safetensors_file import open_file
from forensics.readers.torch_part import open_part
from sdc_guard.digest.reference import words


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(7, 4)
        self.body = torch.nn.Linear(4, 4)
        self.head = torch.nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight


def equal(one: Content, other: Content) -> bool:
    assert list(one.tensors) == list(other.tensors)
    return all(
        torch.equal(words(tensor.read()), words(other.tensors[name].read()))
        for name, tensor in one.tensors.items()
    )


def test_the_same_model_in_both_formats(tmp_path: Path) -> None:
    model = Tied()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    save_model(model, str(tmp_path / "model.safetensors"))
    both, once = open_part(tmp_path / "model.pt"), open_file(tmp_path / "model.safetensors")
    assert both.aliases == {"head.weight": "embedding.weight"}
    for one, other in ((both, once), (once, both)):
        left, right = same_names(one, other)
        assert equal(left, right)
        assert len(left.tensors) == 3
        assert set(left.aliases) < {"head.weight", "embedding.weight"}
        assert left.aliases == right.aliases
    with torch.no_grad():
        model.head.weight[3, 1] += 1
    save_model(model, str(tmp_path / "later.safetensors"))
    left, right = same_names(both, open_file(tmp_path / "later.safetensors"))
    assert not equal(left, right)


def test_a_tie_that_is_not_written_down(tmp_path: Path) -> None:
    model = Tied()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    state = model.state_dict()
    for gone in ("head.weight", "embedding.weight"):
        save_file({name: one for name, one in state.items() if name != gone}, tmp_path / "w")
        left, right = same_names(open_part(tmp_path / "model.pt"), open_file(tmp_path / "w"))
        assert equal(left, right)
        assert len(left.tensors) == 3


def test_one_that_only_the_other_ties_is_compared_under_each_name(tmp_path: Path) -> None:
    model = Tied()
    copies = {name: one.clone() for name, one in model.state_dict().items()}
    copies["head.weight"][0, 0] += 1  # no longer the same
    save_file(copies, tmp_path / "untied")
    torch.save(model.state_dict(), tmp_path / "model.pt")
    left, right = same_names(open_part(tmp_path / "model.pt"), open_file(tmp_path / "untied"))
    assert list(left.tensors) == list(right.tensors)
    differ = [
        name
        for name in left.tensors
        if not torch.equal(left.tensors[name].read(), right.tensors[name].read())
    ]
    assert differ == ["head.weight"]


def test_a_tensor_that_is_missing_stays_missing(tmp_path: Path) -> None:
    path = by_hand(tmp_path / "a", {"a": entry(0, 4, [1]), "b": entry(4, 8, [1])}, bytes(8))
    other = by_hand(tmp_path / "b", {"a": entry(0, 4, [1]), "c": entry(4, 8, [1])}, bytes(8))
    left, right = same_names(open_file(path), open_file(other))
    assert list(left.tensors) == ["a", "b"]
    assert list(right.tensors) == ["a", "c"]
    assert left.aliases == {}


def made(groups: list[set[int]], stored_once: bool) -> Content:
    """A checkpoint whose tensors have these names; each group is tied."""

    def tensor(value: int) -> StoredTensor:
        return StoredTensor(torch.int64, (), (), lambda: torch.tensor(value))

    tensors, aliases = {}, {}
    for number, group in enumerate(groups):
        first, *rest = (f"n{name}" for name in sorted(group))
        tensors[first] = tensor(number)
        for name in rest:
            if stored_once:
                aliases[name] = first
            else:
                tensors[name] = tensor(number)
    return Content(tensors, aliases)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=6), st.booleans(), st.booleans()
)  # fmt: skip
def test_the_same_ties_in_any_form_compare_equal(
    tied_to: list[int], first: bool, second: bool
) -> None:
    groups = [{at for at, one in enumerate(tied_to) if one == number} for number in set(tied_to)]
    one, other = made(groups, first), made(groups, second)
    left, right = same_names(one, other)
    assert equal(left, right)
    names = {name for content in (one, other) for name in (*content.tensors, *content.aliases)}
    assert {*left.tensors, *left.aliases} == names
    if first and second:
        assert len(left.tensors) == len(groups)
