"""What `sdc-bisect diff` says first, in which order, and in which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from damaged_archives import flip_record
from in_process import bisect
from safetensors.torch import save_file


def flip(tensor: torch.Tensor, index: int, bit: int) -> torch.Tensor:
    """A float32 tensor with one flipped bit."""
    other = tensor.clone()
    mask = -(1 << 31) if bit == 31 else 1 << bit
    other.view(torch.int32).view(-1)[index] ^= mask
    return other


def training(step: int, layers: int = 20) -> dict[str, torch.Tensor]:
    """Parameters and Adam's moments that all move from step to step."""
    generator = torch.Generator().manual_seed(5)
    state: dict[str, torch.Tensor] = {}
    for layer in range(layers):
        for kind, scale in (("", 1.0), (".exp_avg", 1e-2), (".exp_avg_sq", 1e-4)):
            start, move = (torch.randn(32, 16, generator=generator) * scale for _ in range(2))
            moved = start + step * 1e-3 * move
            state[f"optim.layer{layer}{kind}" if kind else f"layer{layer}.weight"] = moved
    return state


def saved(folder: Path, **files: dict[str, Any]) -> list[Path]:
    paths = []
    for name, state in files.items():
        torch.save(state, folder / f"{name}.pt")
        paths.append(folder / f"{name}.pt")
    return paths


def test_damaged_bytes_and_nan_are_told_first(tmp_path: Path) -> None:
    state = {"w": torch.full((8,), 0.5), "v": torch.ones(4)}
    bad = {"w": state["w"], "v": torch.tensor([1.0, torch.nan, 1.0, torch.inf])}
    a, b = saved(tmp_path, a=state, b=bad)
    flip_record(a, "data/0")
    answer = bisect("diff", a, b)
    assert answer.code == 1
    lines = answer.out.splitlines()
    assert lines[0].startswith("A: CRC mismatch in record data/0")
    assert lines[0].endswith("(tensor w)")
    assert lines[1] == "B: 1 NaN and 1 infinite, the first at 1 (tensor v)"
    assert lines[2] == "2 of 2 tensors differ: 3 elements, 4 bits"
    troubles = bisect("diff", a, b, "--json").json["troubles"]
    assert [(one["checkpoint"], one["about"], one["tensor"]) for one in troubles] == [
        ("A", "bytes", "w"), ("B", "values", "v")
    ]  # fmt: skip


def test_nan_in_equal_files_is_told_and_a_mask_is_not(tmp_path: Path) -> None:
    mask = torch.tensor([0.0, -torch.inf])
    state = {"w": torch.full((3,), torch.nan), "m": mask}
    a, b = saved(tmp_path, a=state, b=state)
    answer = bisect("diff", a, b)
    assert (answer.code, answer.out.splitlines()) == (0, [
        "A: 3 NaN, the first at 0 (tensor w)",
        "B: 3 NaN, the first at 0 (tensor w)",
        "no difference: 2 tensors are equal, bit for bit",
    ])  # fmt: skip


def test_one_bit_is_one_bit(tmp_path: Path) -> None:
    state = training(0, layers=2)
    a, b = saved(
        tmp_path, a=state, b=state | {"layer1.weight": flip(state["layer1.weight"], 37, 31)}
    )
    before = state["layer1.weight"].view(-1)[37]
    word = int(before.view(torch.int32)) % 2**32
    answer = bisect("diff", a, b)
    assert answer.out.splitlines() == [
        "1 of 6 tensors differs: 1 element, 1 bit",
        "parameters: 1 of 2 differs",
        "  layer1.weight (float32): 1 of 512 elements, 1 bit: bit 31 (sign); largest change "
        f"{2 * abs(before):.3g}",
        f"      first at 37 [2, 5]: 0x{word:x} -> 0x{word ^ 1 << 31:x} "
        f"({before:.9g} -> {-before:.9g})",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["layer13.weight", "optim.layer13.exp_avg"])
def test_the_odd_one_of_many_that_moved_comes_first(name: str, tmp_path: Path) -> None:
    one, other = training(100), training(200)
    other[name] = flip(other[name], 100, 30)
    answer = bisect("diff", *saved(tmp_path, a=one, b=other))
    lines = answer.out.splitlines()
    assert lines[0].startswith("60 of 60 tensors differ: ")
    shown = [line for line in lines if line.startswith("  ") and not line.startswith("   ")]
    named = [line for line in shown if "(float32)" in line]
    assert len(named) == 12
    of_its_kind = [line for line in named if line.count("exp_avg ") == name.count("exp_avg")]
    assert f"  {name} (float32)" in of_its_kind[0]
    hidden = [int(line.split()[1]) for line in shown if line.endswith("more (--all)")]
    assert sum(hidden) == 48
    every = bisect("diff", tmp_path / "a.pt", tmp_path / "b.pt", "--all").out
    assert every.count("(float32)") == 60
    assert "--all" not in every


def test_what_cannot_be_compared_bit_by_bit_is_said(tmp_path: Path) -> None:
    wide = torch.linspace(0, 1, 12)
    a, b = saved(
        tmp_path,
        a={
            "h": wide,
            "r": wide.clone().view(3, 4),
            "gone": wide.clone(),
            "n": wide.clone(),
            "step": 3,
        },
        b={
            "h": wide.bfloat16(),
            "r": wide.clone().view(4, 3),
            "n": wide + 1,
            "new": wide.clone(),
            "step": 4,
        },
    )
    lines = bisect("diff", a, b).out.splitlines()
    assert "of another dtype: h (float32 and bfloat16; B is A, rounded)" in lines
    assert "of another shape: r ([3, 4] and [4, 3]; the same elements in the same order)" in lines
    assert "only in A: gone (float32 [12])" in lines
    assert "only in B: new (float32 [12])" in lines
    assert lines[-1] == "numbers beside the tensors: step 3 -> 4"


def test_two_formats_are_equal(tmp_path: Path) -> None:
    weights = {"emb": torch.randn(5, 3), "out": torch.arange(4)}
    save_file(weights, tmp_path / "m.safetensors", {"head": "emb"})
    torch.save(weights | {"head": weights["emb"]}, tmp_path / "m.pt")
    answer = bisect("diff", tmp_path / "m.safetensors", tmp_path / "m.pt")
    assert (answer.code, answer.out) == (0, "no difference: 2 tensors are equal, bit for bit\n")


def three(tmp_path: Path, *states: dict[str, torch.Tensor]) -> list[str]:
    paths = saved(tmp_path, **dict(zip("abc", states, strict=True)))
    answer = bisect("diff", *paths)
    assert answer.code == 0
    return answer.out.splitlines()


def test_three_of_a_healthy_training_say_nothing_of_moments(tmp_path: Path) -> None:
    lines = three(tmp_path, *(training(step) for step in (100, 200, 300)))
    assert lines == [
        "nothing that tells a damaged file from a training that goes on",
        "of 60 tensors differ between A and B 100%, B and C 100%, A and C 100%",
    ]


def test_moments_whose_elements_span_decades_do_not_jump(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(9)
    states = []
    for _ in range(3):
        spread = torch.exp(8 * torch.randn(4096, generator=generator)) * 1e-9
        states.append({"w": torch.ones(3), "state.0.exp_avg_sq": spread})
    assert len(three(tmp_path, *states)) == 2


def test_an_element_that_jumps_and_returns_is_named_with_its_values(tmp_path: Path) -> None:
    a, b, c = (training(step) for step in (100, 200, 300))
    b["layer3.weight"] = flip(b["layer3.weight"], 21, 30)
    lines = three(tmp_path, a, b, c)
    assert lines[0] == "the middle file is damaged: what came after it was not made from it"
    values = " -> ".join(f"{one['layer3.weight'].view(-1)[21].double():.6g}" for one in (a, b, c))
    assert lines[2:] == [
        "parameters:",
        "  layer3.weight: 1 element jumped in B and is back in C (the first at 21 [1, 5]: "
        f"{values})",
    ]
    assert " 0 elements" not in "\n".join(lines)


def test_a_checksum_decides_between_three(tmp_path: Path) -> None:
    paths = saved(tmp_path, **{k: training(s, 1) for k, s in zip("abc", (1, 2, 3), strict=True)})
    flip_record(paths[1], "data/0")
    lines = bisect("diff", *paths).out.splitlines()
    assert lines[0].startswith("B: CRC mismatch in record data/0")
    assert lines[1] == "the middle file is damaged: its bytes do not fit their checksums"
    flip_record(paths[1], "data/0")  # the same bit: as it was
    flip_record(paths[2], "data/0")
    lines = bisect("diff", *paths).out.splitlines()
    assert lines[1].startswith("no answer about B: C does not fit its checksums")
