"""The probe's question and answer: known by arithmetic, and without a trace."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from faulty_arithmetic import FaultyProducts, RoundedProducts, flip
from hypothesis import given
from hypothesis import strategies as st

from sdc_guard.detect.answers import Answer, differing, relative_difference, size_in_words
from sdc_guard.digest import digest_tensor, mix64
from sdc_guard.digest.reference import MASK64, K
from sdc_guard.inject.injector import flip_bit
from sdc_guard.signals.probe import DEVICE, HOST, KNOWN, Probe, integers_of
from sdc_guard.signals.probe_environment import built, in_force, key_of
from sdc_guard.signals.probe_model import WEIGHTS, Sizes, block

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def probe() -> Probe:
    return Probe(CPU)


def answer_of(probe: Probe) -> Answer:
    pending = probe.ask()
    return Answer(pending.rows.numpy(), pending.numbers.numpy())


@pytest.mark.parametrize("sizes", [HOST, DEVICE], ids=["host", "device"])
def test_what_is_known_follows_from_integer_arithmetic(sizes: Sizes) -> None:
    question = integers_of(sizes)
    for place, (copies, *_) in enumerate(sizes.products):
        left, right = question[f"left {place}"], question[f"right {place}"]
        # no partial sum in any order leaves the integers that float32 holds
        assert (np.abs(left) @ np.abs(right)).max() < 2**24
        product = (left @ right).astype(np.float32)
        whole = torch.from_numpy(np.broadcast_to(product, (copies, *product.shape)).copy())
        assert digest_tensor(whole).h == KNOWN[sizes].products[place]


def test_the_numbers_are_the_top_bits_of_mix64(probe: Probe) -> None:
    for index in (0, 1, 2, 1000, len(probe.numbers) - 1):
        number = (mix64(index * K & MASK64) >> 56) - 128
        assert probe.numbers[index] == max(number, -127)
    assert digest_tensor(probe.numbers).h == KNOWN[HOST].question


def test_the_backward_is_that_of_autograd() -> None:
    width, heads, tokens = 64, 4, 24
    generator = torch.Generator().manual_seed(3)
    shapes = {
        "gain": (width,), "shift": (width,), "qkv": (width, 3 * width), "out": (width, width),
        "up": (width, 4 * width), "down": (4 * width, width),
    }  # fmt: skip
    weights = {
        name: torch.randn(shapes[name], generator=generator).requires_grad_() for name in WEIGHTS
    }
    inputs = torch.randn(2, tokens, width, generator=generator)
    outputs, losses, gradients = block(inputs, weights, heads)
    assert torch.equal(losses, outputs.square().mean((1, 2)))
    expected = torch.autograd.grad(losses.sum(), list(weights.values()))
    scale = 2.0 ** -(width.bit_length() // 2)
    for name, by_autograd in zip(weights, expected, strict=True):
        own = gradients[name] * (1.0 if name in ("gain", "shift") else scale)
        torch.testing.assert_close(own, by_autograd, rtol=1e-5, atol=1e-6)


def test_an_answer_repeats_and_is_right(probe: Probe) -> None:
    first, second = answer_of(probe), answer_of(Probe(CPU))
    assert first.hash == second.hash
    assert np.array_equal(first.numbers, second.numbers)
    assert first.wrong(probe.known) == ()
    assert not first.is_constant
    assert len(first.rows) == len(probe.known.parts)


@contextlib.contextmanager
def without_mkldnn() -> Iterator[None]:
    torch.backends.mkldnn.set_flags(False)
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(True)


def states() -> list[Any]:
    return [
        torch.get_rng_state().numpy().tobytes(),
        str(np.random.get_state()),
        random.getstate(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
        torch.get_num_threads(),
    ]


MODES = {
    "plain": lambda: torch.enable_grad(),
    "no_grad": lambda: torch.no_grad(),
    "inference": lambda: torch.inference_mode(),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("mode", MODES)
def test_modes_of_the_training_neither_change_it_nor_are_changed(mode: str, probe: Probe) -> None:
    usual = answer_of(probe).hash
    with MODES[mode]():
        before = states()
        assert answer_of(probe).hash == usual
        made_here = Probe(CPU)
        assert answer_of(made_here).hash == usual
        assert states() == before
    assert answer_of(made_here).hash == usual


def test_autocasts_cache_stays(probe: Probe) -> None:
    weight = torch.randn(8, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        one = weight @ weight
        probe.ask()
        two = weight @ weight
    # the weight was cast once: autograd has one node for both products
    casts = [product.grad_fn.next_functions[0][0] for product in (one, two)]  # type: ignore[union-attr] # they have one
    assert casts[0] is casts[1]


def test_a_default_dtype_or_device_of_the_script_changes_nothing(probe: Probe) -> None:
    usual = answer_of(probe).hash
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        assert answer_of(Probe(CPU)).hash == usual
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


@given(st.integers(0, 107_807), st.integers(0, 31))
def test_one_flipped_bit_in_the_question_is_seen(index: int, bit: int) -> None:
    probe = Probe(CPU)
    flip_bit(probe.numbers, index, bit)
    assert "question" in answer_of(probe).wrong(probe.known)


@given(st.integers(0, 8), st.integers(0, 2144), st.integers(0, 31))
def test_one_flipped_bit_in_a_product_is_seen(call: int, index: int, bit: int) -> None:
    probe = Probe(CPU)
    usual = answer_of(probe)

    def spoil(calls: int, result: torch.Tensor) -> None:
        if calls == call:
            flip(result.contiguous(), index, bit)

    with FaultyProducts(spoil):
        odd = answer_of(probe)
    if call < 2:  # a product of integers: known to be wrong by itself
        assert odd.wrong(probe.known) == (f"product of integers {call + 1}",)
    assert differing(usual, odd, probe.known) or not _matters(call, index, bit)


def _matters(call: int, index: int, bit: int) -> bool:
    """A low bit of an intermediate may be lost to rounding before it reaches any output."""
    return call < 2 or bit > 12


@pytest.mark.parametrize(("bits", "words"), [(10, "precision of products"), (7, "precision")])
def test_lower_precision_is_told_by_its_size(bits: int, words: str, probe: Probe) -> None:
    usual = answer_of(probe)
    with RoundedProducts(bits):
        lower = answer_of(probe)
    assert lower.wrong(probe.known) == ()  # integers below 128 are exact in TF32 and bfloat16
    relative = relative_difference(usual.numbers, lower.numbers)
    print(f"{bits} bits: {relative}")
    assert words in size_in_words(relative)


def test_another_order_of_summation_is_told_by_its_size(probe: Probe) -> None:
    usual = answer_of(probe)
    with without_mkldnn():
        other = answer_of(probe)
    relative = relative_difference(usual.numbers, other.numbers)
    print(relative)
    assert other.wrong(probe.known) == ()
    if differing(usual, other, probe.known):  # a build may compute both alike
        assert relative < 1e-5
        assert "precision" not in size_in_words(relative)


def test_settings_that_change_bits_have_keys_of_their_own() -> None:
    before = key_of(built(CPU) | in_force(CPU))
    assert key_of(built(CPU) | in_force(CPU)) == before
    torch.set_num_threads(2)
    try:
        assert key_of(built(CPU) | in_force(CPU)) != before
    finally:
        torch.set_num_threads(1)
    with without_mkldnn():
        assert key_of(built(CPU) | in_force(CPU)) != before


def test_a_key_knows_no_serial_number_and_no_name_of_a_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = key_of(built(CPU) | in_force(CPU))
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    assert key_of(built(CPU) | in_force(CPU)) == before


def test_a_device_that_returns_zeros_is_constant(probe: Probe) -> None:
    with FaultyProducts(lambda _, result: result.zero_()):
        answer = answer_of(probe)
    assert len(answer.wrong(probe.known)) == 2
    assert not answer.is_constant  # what is added to the products is still there
    with FaultyProducts(lambda _, result: result.zero_(), names=("add", "mm", "bmm")):
        answer = answer_of(probe)
    assert answer.is_constant
