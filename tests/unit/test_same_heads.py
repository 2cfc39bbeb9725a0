"""Beginnings of tensors, which tell most differences, tell none that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from forensics.content import StoredTensor
from forensics.readers.torch_zip import open_file
from forensics.same_bits import all_same


def opened(path: Path, tensors: dict[str, torch.Tensor]) -> dict[str, StoredTensor]:
    """The tensors as a file of torch.save holds them."""
    torch.save(tensors, path)
    return dict(open_file(path).tensors)


@pytest.mark.parametrize("place", [0, 5, 79_999])
def test_the_layout_of_equal_tensors_is_no_difference(place: int, tmp_path: Path) -> None:
    whole = torch.arange(80_000.0).view(200, 400)
    turned = whole.T.contiguous().T  # the same elements, in another order of memory
    one = opened(tmp_path / "one.pt", {"w": whole, "part": whole[3:7], "none": whole[:0]})
    other = opened(tmp_path / "other.pt", {"w": turned, "part": turned[3:7], "none": turned[:0]})
    heads = [one[name].head for name in ("w", "part")]
    assert heads[0] is not None
    assert heads[1] is not None
    assert heads[0]() == whole.numpy().tobytes()[:16384]
    assert heads[1]() == whole[3:7].numpy().tobytes()
    assert other["w"].head is None
    assert all_same(one, other)
    changed = whole.clone()
    changed.view(-1)[place] += 0.5
    third = opened(tmp_path / "third.pt", {"w": changed, "part": whole[3:7], "none": whole[:0]})
    assert not all_same(one, third)
