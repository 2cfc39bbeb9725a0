"""The injector: one bit, the right one, once, and on the record."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sdc_guard import Injector
from sdc_guard.digest import digest_tensor, find_change
from sdc_guard.digest.reference import words
from sdc_guard.errors import InjectionError
from sdc_guard.inject.fault import Draw, Fault, InjectionRecord, Touched
from sdc_guard.inject.injector import flip_bit, read_journal
from sdc_guard.inject.journal import JOURNAL, append_journal

DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint16, torch.uint32, torch.uint64, torch.bool,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]  # fmt: skip


def word_of(record: InjectionRecord) -> Touched:
    """The one word that a fault touched."""
    (word,) = record.touched
    return word


def place_of(record: InjectionRecord) -> tuple[int, list[int]]:
    """Its index and the bits that changed."""
    return word_of(record).index, word_of(record).bits


def raw(tensor: torch.Tensor) -> bytes:
    """The whole memory of a tensor's storage."""
    return bytes(tensor.untyped_storage().tolist())


def made(dtype: torch.dtype, fill: bytes | None = None) -> torch.Tensor:
    """Six elements, 3 by 2, of random or given bits."""
    size = 6 * dtype.itemsize
    content = fill or bytes(torch.randint(0, 2 if dtype == torch.bool else 256, (size,)).tolist())
    return torch.frombuffer(bytearray(content), dtype=dtype).reshape(3, 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_exactly_one_bit_changes_and_twice_restores(dtype: torch.dtype, transposed: bool) -> None:
    base = made(dtype)
    tensor = base.t() if transposed else base
    row = words(tensor)
    width = 8 * row.element_size()
    for index in range(row.numel()):
        for bit in range(width):
            sound = raw(base)
            # by hand: the word's place in memory, then the bit's byte, little end first
            word, part = divmod(index, row.numel() // 6)
            line, column = divmod(word, tensor.shape[1])
            element = line * tensor.stride(0) + column * tensor.stride(1)
            wrong = bytearray(sound)
            wrong[element * dtype.itemsize + part * width // 8 + bit // 8] ^= 1 << bit % 8
            before, after = flip_bit(tensor, index, bit)
            assert raw(base) == wrong
            assert before ^ after == 1 << bit
            assert flip_bit(tensor, index, bit) == (after, before)
            assert raw(base) == sound


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fill", [0x00, 0xFF, 0x7F, 0x80, 0x01])
def test_bits_that_a_copy_of_the_value_would_lose(dtype: torch.dtype, fill: int) -> None:
    tensor = made(dtype, bytes([fill]) * 6 * dtype.itemsize)
    width = 8 * words(tensor).element_size()
    for bit in range(width):
        before, after = flip_bit(tensor, 1, bit)
        assert before == int.from_bytes(bytes([fill]) * (width // 8), "little")
        assert int(words(tensor)[1]) & (2**width - 1) == after
        flip_bit(tensor, 1, bit)


def test_a_signalling_nan_keeps_its_bits() -> None:
    tensor = torch.tensor([0x7FC00000], dtype=torch.int32).view(torch.float32)
    flip_bit(tensor, 0, 0)
    assert flip_bit(tensor, 0, 22) == (0x7FC00001, 0x7F800001)


def test_scalars_slices_and_shared_memory() -> None:
    scalar = torch.tensor(1.0)
    assert flip_bit(scalar, 0, 31) == (0x3F800000, 0xBF800000)
    assert scalar == -1
    base = torch.zeros(4, 6)
    flip_bit(base[1::2, ::3], 3, 30)
    assert base.nonzero().tolist() == [[3, 3]]
    assert base[3, 3] == 2


def test_a_parameter_is_flipped_without_a_trace_in_autograd() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    loss = (weight * weight).sum()
    version = weight._version
    flip_bit(weight, 1, 31)
    assert weight._version == version
    loss.backward()
    assert weight.tolist() == [1, -1, 1]


@pytest.mark.parametrize(("index", "bit"), [(6, 0), (-1, 0), (0, 32), (0, -1), (10**9, 0)])
def test_no_such_element_or_bit(index: int, bit: int) -> None:
    tensor = torch.zeros(3, 2)
    with pytest.raises(InjectionError, match="outside"):
        flip_bit(tensor, index, bit)
    assert not tensor.any()


def test_lazily_negated_tensors_are_refused() -> None:
    with pytest.raises(InjectionError, match="lazily"):
        flip_bit(torch._neg_view(torch.ones(2)), 0, 0)
    with pytest.raises(InjectionError, match="lazily"):
        flip_bit(torch.ones(2, dtype=torch.complex64).conj(), 0, 0)


def test_the_digest_locates_what_was_flipped(seed: int) -> None:
    random_ = random.Random(seed)
    for dtype in DTYPES:
        tensor = made(dtype)
        row = words(tensor)
        index = random_.randrange(row.numel())
        bit = random_.randrange(8 * row.element_size())
        before = digest_tensor(tensor)
        old, new = flip_bit(tensor, index, bit)
        found = find_change(words(tensor), before, digest_tensor(tensor))
        assert found is not None
        assert (found.index, found.before, found.after) == (index, old, new)


# --- drawing


def test_a_draw_depends_on_its_key_alone() -> None:
    numbers = [Draw(3, "weight", 87, 0).below(1000, what) for what in ("index", "bit")]
    state = torch.get_rng_state()
    torch.rand(5)
    random.random()
    np.random.rand()
    again = [Draw(3, "weight", 87, 0).below(1000, what) for what in ("index", "bit")]
    assert numbers == again
    torch.set_rng_state(state)
    Draw(3, "weight", 87, 0).by_size([5, 6], "tensor")
    assert torch.equal(torch.get_rng_state(), state)
    keys = [(3, "weight", 87, 0), (4, "weight", 87, 0), (3, "exp_avg", 87, 0),
            (3, "weight", 88, 0), (3, "weight", 87, 1)]  # fmt: skip
    drawn = {Draw(*key).below(2**60, "index") for key in keys}
    assert len(drawn) == len(keys)


def test_the_draw_is_blake2b_of_the_key() -> None:
    # hashlib.blake2b(b"0/weight/1/0/index", digest_size=8), little end first
    assert Draw(0, "weight", 1, 0).below(2**64, "index") == KNOWN_DRAW
    assert Draw(0, "weight", 1, 0).below(10, "index") == KNOWN_DRAW % 10


KNOWN_DRAW = 10435218315124046094


def test_numbers_are_drawn_evenly() -> None:
    counts = Counter(Draw(seed, "weight", 1, 0).below(8, "bit") for seed in range(4000))
    chi_squared = sum((counts[n] - 500) ** 2 / 500 for n in range(8))
    assert chi_squared < 24.3  # 99.9 % of the distribution with 7 degrees of freedom


def test_a_tensor_is_drawn_by_its_size() -> None:
    sizes = [100, 0, 1, 299]
    counts = Counter(Draw(seed, "weight", 1, 0).by_size(sizes, "tensor") for seed in range(4000))
    assert counts[1] == 0
    for place, size in enumerate(sizes):
        expected = 4000 * size / 400
        assert abs(counts[place] - expected) <= 4 * math.sqrt(expected) + 1
    assert Draw(1, "weight", 1, 0).by_size([0, 0, 7], "tensor") == 2


# --- the injector in a training


class Training:
    """A few steps of a small model, with an injector."""

    def __init__(self, run: Path, *, seed: int = 5, first_step: int = 0, steps: int = 0) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        for _ in range(steps):
            self._plain_step()
        self.injector = Injector(
            self.model, self.optimizer, seed=seed, run=run, first_step=first_step
        )

    def _plain_step(self) -> None:
        self.model(torch.ones(2, 4)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self) -> int:
        """Run a step; how many faults fired in it."""
        before = len(self.injector.records)
        with torch.no_grad():
            self.model(torch.ones(2, 4))
        assert len(self.injector.records) == before, "fired without a gradient"
        self._plain_step()
        return len(self.injector.records) - before

    def state(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def test_a_fault_fires_once_at_its_step(tmp_path: Path) -> None:
    training = Training(tmp_path, first_step=10)
    training.injector.add(Fault("weight", 12, "1.weight", 4, bit=30))
    assert [training.step() for _ in range(5)] == [0, 0, 1, 0, 0]
    (record,) = training.injector.records
    assert (record.step, record.tensor, *place_of(record)) == (12, "1.weight", 4, [30])
    assert word_of(record).before ^ word_of(record).after == 1 << 30
    assert read_journal(tmp_path) == [record]


def test_a_fault_of_a_step_that_is_over_does_not_fire(tmp_path: Path) -> None:
    training = Training(tmp_path, first_step=10)
    training.injector.add(Fault("weight", 9))
    assert [training.step() for _ in range(2)] == [0, 0]


def test_only_the_named_bit_changes_before_the_forward_pass(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.injector.add(Fault("weight", 0, "0.weight", 7, bit=22))
    sound = training.state()
    outputs: list[torch.Tensor] = []
    training.model.register_forward_hook(lambda *a: outputs.append(a[2].detach()))
    training.model(torch.ones(1, 4))
    wrong = training.state()
    for name, old, new in zip(
        ["0.weight", "0.bias", "1.weight", "1.bias"], sound, wrong, strict=True
    ):
        difference = (words(old) ^ words(new)).nonzero().flatten().tolist()
        assert difference == ([7] if name == "0.weight" else [])
    with torch.no_grad():
        reference = torch.nn.functional.linear(
            torch.nn.functional.linear(torch.ones(1, 4), wrong[0], wrong[1]), wrong[2], wrong[3]
        )
    assert torch.equal(outputs[0], reference)


@pytest.mark.parametrize("site", ["exp_avg", "exp_avg_sq"])
def test_moments(tmp_path: Path, site: Any) -> None:
    training = Training(tmp_path, steps=2)
    training.injector.add(Fault(site, 0, "0.bias", 1, bit=20))
    moment = training.optimizer.state[training.model[0].bias][site]
    old = int(moment.view(torch.int32)[1])
    training.model(torch.ones(1, 4))
    assert int(moment.view(torch.int32)[1]) == old ^ 1 << 20


def test_a_moment_that_is_not_there_yet(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.injector.add(Fault("exp_avg", 0))
    assert training.step() == 0
    (missed,) = training.injector.missed
    assert "keeps no exp_avg at step 0" in missed.reason
    assert (missed.fault, missed.step) == (0, 0)


def test_open_faults_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    records = []
    for number, seed in enumerate((5, 5, 6)):
        training = Training(tmp_path / str(number), seed=seed)
        torch.manual_seed(number)
        training.injector.add(Fault("weight", 1)).add(Fault("weight", 2))
        training.step()
        training.step()
        training.step()
        records.append([asdict(r) for r in training.injector.records])
    assert records[0] == records[1]
    assert records[0] != records[2]
    assert len(records[0]) == 2


def test_the_training_generator_is_left_alone(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.injector.add(Fault("weight", 0))
    state = torch.get_rng_state()
    training.step()
    assert len(training.injector.records) == 1
    assert torch.equal(torch.get_rng_state(), state)


def test_several_bits_of_one_step(tmp_path: Path) -> None:
    training = Training(tmp_path)
    for index, bit in ((3, 1), (3, 2), (5, 1)):
        training.injector.add(Fault("weight", 0, "0.weight", index, bit))
    sound = words(training.model[0].weight).clone()
    training.model(torch.ones(1, 4))
    assert len(training.injector.records) == 3
    assert {
        place: int(change)
        for place, change in enumerate(words(training.model[0].weight) ^ sound)
        if change
    } == {3: 6, 5: 2}


def test_a_resumed_run_is_not_hit_twice(tmp_path: Path) -> None:
    plan = [
        Fault("weight", 1), Fault("weight", 1, "0.weight", 3, bit=4), Fault("weight", 2, "1.bias"),
    ]  # fmt: skip
    first = Training(tmp_path)
    for fault in plan:
        first.injector.add(fault)
    assert [first.step() for _ in range(2)] == [0, 2]
    again = Training(tmp_path, first_step=1)
    new = [Fault("weight", 1, "0.weight", 3, bit=5), Fault("weight", 1, "0.weight", 2, bit=4)]
    for fault in (*plan, *new, Fault("exp_avg", 1, "0.weight")):
        again.injector.add(fault)
    assert again.step() == 2
    assert "keeps no exp_avg" in again.injector.missed[0].reason
    assert [place_of(r) for r in again.injector.records] == [(3, [5]), (2, [4])]
    assert [again.step() for _ in range(2)] == [1, 0]
    other_seed = Training(tmp_path, seed=6)
    other_seed.injector.add(plan[0])
    assert [other_seed.step() for _ in range(2)] == [0, 1]
    assert len(read_journal(tmp_path)) == 6


def test_ranks_are_hit_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        training = Training(tmp_path)
        training.injector.add(Fault("weight", 0))
        assert training.step() == 1
        records += training.injector.records
    assert [record.rank for record in records] == [0, 1]
    assert (records[0].tensor, place_of(records[0])) != (records[1].tensor, place_of(records[1]))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault("cache", 1), "no site 'cache'"),  # type: ignore[arg-type] # because this is tested
        (Fault("weight", 1, "2.weight"), "no parameter named '2.weight'"),
        (Fault("weight", 1, "0.weight", 12), r"index 12 is outside 0\.weight of shape \[3, 4\]"),
        (Fault("weight", 1, "0.weight", -1), "index -1 is outside"),
        (
            Fault("weight", 1, "0.weight", 0, bit=32),
            r"bit 32 is outside 0\.weight of torch\.float32",
        ),
        (Fault("weight", 1, "0.weight", 0, bit=-1), "bit -1 is outside"),
        (Fault("weight", 1, None, None, bit=64), "bit 64 is outside"),
        (Fault("weight", 1, None, 10**6), "index 1000000 is outside"),
        (Fault("weight", -1), "no step -1"),
    ],
    ids=str,
)
def test_what_cannot_be_injected(tmp_path: Path, fault: Fault, message: str) -> None:
    training = Training(tmp_path)
    with pytest.raises(InjectionError, match=message) as caught:
        training.injector.add(fault)
    assert "\n" not in str(caught.value)
    assert [training.step() for _ in range(2)] == [0, 0]
    assert read_journal(tmp_path) == []


def test_a_fault_and_its_double_would_undo_each_other(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.injector.add(Fault("weight", 0, "0.bias"))
    with pytest.raises(InjectionError, match="planned already"):
        training.injector.add(Fault("weight", 0, "0.bias"))
    assert training.step() == 1


def test_a_model_without_parameters(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    injector = Injector(torch.nn.ReLU(), optimizer, seed=0, run=tmp_path)
    with pytest.raises(InjectionError, match="no parameter to inject into"):
        injector.add(Fault("weight", 0))


def test_after_removal_nothing_fires(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.injector.add(Fault("weight", 0))
    training.injector.remove()
    assert training.step() == 0


# --- the journal


def record(step: int) -> InjectionRecord:
    return InjectionRecord(0, "weight", step, 0, 1, "w", (Touched(2, 2**64 - 1, 0),))


def test_the_journal_survives_a_kill_in_the_middle_of_a_line(tmp_path: Path) -> None:
    assert read_journal(tmp_path) == []
    append_journal(tmp_path, record(1))
    path = tmp_path / JOURNAL
    line = path.read_bytes()
    for size in range(1, len(line) - 1):
        path.write_bytes(line + line[:size])
        assert read_journal(tmp_path) == [record(1)]
    append_journal(tmp_path, record(2))
    assert read_journal(tmp_path) == [record(1), record(2)]


@pytest.mark.parametrize("line", ['{"site": }', '{"site": "weight"}', '{"a": 1}'])
def test_a_damaged_journal_is_one_line_of_error(tmp_path: Path, line: str) -> None:
    append_journal(tmp_path, record(1))
    with (tmp_path / JOURNAL).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InjectionError, match="line 2 of the injection journal"):
        read_journal(tmp_path)


def test_journal_lines_are_json(tmp_path: Path) -> None:
    append_journal(tmp_path, record(4))
    (line,) = (tmp_path / JOURNAL).read_text().splitlines()
    assert json.loads(line)["touched"][0]["before"] == 2**64 - 1
