"""Whether files hold what a step left, from digests alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sdc_guard.archive.sealing.judged import Key, Left, compared, judgement
from sdc_guard.archive.sealing.seal_file import SealedTensor
from sdc_guard.digest import Digest, digest_tensor

LAYERS = {"a.weight": (3, 2), "a.bias": (3,), "b.weight": (3, 2)}


def values(seed: int) -> dict[Key, torch.Tensor]:
    """A state of three layers with Adam's moments."""
    generator = torch.Generator().manual_seed(seed)
    return {
        (kind, name): torch.randn(shape, generator=generator)
        for kind in ("param", "exp_avg", "exp_avg_sq")
        for name, shape in LAYERS.items()
    }


def left_by(state: dict[Key, torch.Tensor]) -> dict[Key, Left]:
    return {
        key: Left(digest_tensor(one), tuple(one.shape), "float32" if key[0] == "param" else "")
        for key, one in state.items()
    }


def sealed(tensors: dict[str, torch.Tensor]) -> dict[str, SealedTensor]:
    return {
        name: SealedTensor(
            str(one.dtype).removeprefix("torch."), tuple(one.shape), digest_tensor(one)
        )
        for name, one in tensors.items()
    }


def saved(state: dict[Key, torch.Tensor], prefix: str = "model.") -> dict[str, torch.Tensor]:
    """As torch.save of two state dicts names them."""
    names = list(LAYERS)
    return {
        prefix + name if kind == "param" else f"optimizer.state.{names.index(name)}.{kind}": one
        for (kind, name), one in state.items()
    }


def judge(
    tensors: dict[str, torch.Tensor], state: dict[Key, torch.Tensor], other: int | None = None
) -> tuple[str, list[str]]:
    found, left = sealed(tensors), left_by(state)
    return judgement(compared(found, left), left, found, 500, lambda _: other)


@pytest.mark.parametrize("prefix", ["", "model.", "module.", "model._orig_mod.", "rank0/model."])
def test_what_a_step_left_is_found_whatever_is_before_its_name(prefix: str) -> None:
    state = values(0)
    tensors = saved(state, prefix)
    tensors["generator"] = torch.arange(5, dtype=torch.uint8)
    assert judge(tensors, state) == ("clean", [])
    matched = compared(sealed(tensors), left_by(state)).matched
    assert matched.keys() == tensors.keys() - {"generator"}
    assert set(matched.values()) == state.keys()


def test_the_tensor_that_differs_is_named() -> None:
    state = values(0)
    tensors = saved(state)
    tensors["model.a.bias"] = tensors["model.a.bias"].nextafter(torch.tensor(9.0))
    why = "a.bias: bytes differ from what step 500 left"
    assert judge(tensors, state) == ("suspect", [why])
    tensors = saved(state)
    tensors["optimizer.state.2.exp_avg_sq"] = torch.zeros(3, 2)
    why = "exp_avg_sq of b.weight: bytes differ from what step 500 left"
    assert judge(tensors, state) == ("suspect", [why])


def test_bytes_of_another_parameter_under_a_name_are_not_clean() -> None:
    state = values(0)
    tensors = saved(state)
    swapped = tensors["model.b.weight"], tensors["model.a.weight"]
    tensors["model.a.weight"], tensors["model.b.weight"] = swapped
    status, reasons = judge(tensors, state)
    assert (status, len(reasons)) == ("suspect", 2)
    assert {reason.partition(":")[0] for reason in reasons} == {"a.weight", "b.weight"}


@pytest.mark.parametrize(("other", "how"), [(501, "overtaken"), (499, "an older state")])
def test_the_step_that_the_files_hold_instead_is_told(other: int, how: str) -> None:
    status, (reason,) = judge(saved(values(1)), values(0), other)
    assert status == "suspect"
    assert reason.startswith(f"holds step {other}, not step 500: ")
    assert how in reason


def test_weights_alone_are_clean_and_a_part_of_them_is_not() -> None:
    state = values(0)
    weights = {name: one for name, one in saved(state).items() if name.startswith("model.")}
    assert judge(weights, state) == ("clean", [])
    del weights["model.a.bias"]
    assert judge(weights, state) == ("untested", ["not in it: a.bias"])
    frozen = left_by(state)
    frozen["param", "a.bias"] = Left(Digest(1, 2, 3), (3,), "float32", trained=False)
    found = sealed(weights)
    assert judgement(compared(found, frozen), frozen, found, 1, lambda _: None)[0] == "clean"


def test_half_precision_is_not_compared_and_nothing_is_not_clean() -> None:
    state = values(0)
    halves = {name: one.half() for name, one in saved(state).items() if "model" in name}
    status, (reason,) = judge(halves, state)
    assert (status, reason) == (
        "untested",
        "saved in another dtype, so not compared: a.weight, a.bias, b.weight",
    )
    other = {"x": torch.ones(2)}
    assert judge(other, state) == ("untested", ["it holds no parameter that step 500 left"])
    assert judge({}, {}) == ("untested", ["no digests of what step 500 left"])


def test_moments_that_are_all_zero_are_each_found() -> None:
    state = values(0)
    for name, shape in LAYERS.items():
        state["exp_avg", name] = torch.zeros(shape)
        state["exp_avg_sq", name] = torch.zeros(shape)
    assert judge(saved(state), state) == ("clean", [])
    matched = compared(sealed(saved(state)), left_by(state)).matched
    assert sorted(matched.values()) == sorted(state)


@given(st.sampled_from(sorted(saved(values(0)))), st.integers(0, 2), st.integers(0, 31))
def test_any_flipped_bit_is_suspect(name: str, index: int, bit: int) -> None:
    state = values(0)
    tensors = {key: one.clone() for key, one in saved(state).items()}
    words = tensors[name].view(-1).view(torch.int32)
    words[index] ^= torch.tensor(1 << bit if bit < 31 else -(1 << 31), dtype=torch.int32)
    status, reasons = judge(tensors, state)
    assert (status, len(reasons)) == ("suspect", 1)
