"""Which bits differ, counted by hand; what three checkpoints say; seals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from forensics.archive_health import clock_troubles, file_system, is_local
from forensics.bit_diff import BitDiff, bit_diff
from forensics.checkpoint_diff import TensorDiff, tensor_diffs
from forensics.content import Content, StoredTensor
from forensics.diff_order import by_unusual
from forensics.index import index
from forensics.jumps import jumps_of
from forensics.oracles.integrity import IntegrityOracle
from forensics.sealing import sealed
from forensics.state_kinds import FIRST, OTHER, PARAMETERS, SECOND, kind_of
from forensics.three_checkpoints import FILE_BAD, NOTHING, WITHIN_THE_RUN, three_way
from sdc_guard.archive.nonfinite import NonFinite, nonfinite


def content(**tensors: torch.Tensor) -> Content:
    return Content({
        name: StoredTensor(one.dtype, tuple(one.shape), (), lambda one=one: one)
        for name, one in tensors.items()
    })  # fmt: skip


def test_one_flipped_bit_of_each_part_of_a_float32() -> None:
    one = torch.full((3, 5), 1.5)
    other = one.clone()
    other.view(torch.int32)[1, 2] ^= (1 << 30) | (1 << 3)
    other.view(torch.int32)[2, 4] ^= -(1 << 31)
    found = bit_diff(one, other)
    assert (found.numel, found.changed, found.bits) == (15, 2, 3)
    assert found.by_bit == {3: 1, 30: 1, 31: 1}
    assert found.by_part == {"sign": 1, "exponent": 1, "mantissa": 1}
    assert (found.index, found.before, found.after) == (7, 0x3FC00000, 0x7FC00008)
    assert (found.before_value, found.after_value) == ("1.5", "nan")
    assert found.largest == 3.0  # of the element that is finite in both


@pytest.mark.parametrize(
    ("dtype", "sign", "exponent"),
    [(torch.float64, 63, 52), (torch.float16, 15, 10), (torch.bfloat16, 15, 7)],
)
def test_parts_of_other_formats(dtype: torch.dtype, sign: int, exponent: int) -> None:
    words = {8: torch.int64, 2: torch.int16}[dtype.itemsize]
    one = torch.ones(4, dtype=dtype)
    for bit, part in ((sign, "sign"), (exponent, "exponent"), (exponent - 1, "mantissa")):
        other = one.clone()
        other.view(words)[3] ^= -(1 << sign) if bit == sign else 1 << bit
        found = bit_diff(one, other)
        assert (found.by_bit, found.by_part, found.index) == ({bit: 1}, {part: 1}, 3)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)), min_size=1))
def test_counts_are_those_of_python(pairs: list[tuple[int, int]]) -> None:
    one, other = (
        torch.tensor([pair[i] - 2**31 for pair in pairs], dtype=torch.int32) for i in (0, 1)
    )
    found = bit_diff(one, other)
    assert found.changed == sum(a != b for a, b in pairs)
    assert found.bits == sum((a ^ b).bit_count() for a, b in pairs)


def test_tensors_of_one_side_other_dtypes_and_shapes_are_told() -> None:
    one = content(w=torch.ones(2), gone=torch.ones(1), t=torch.ones(3), s=torch.ones(2, 2))
    other = content(w=torch.ones(2), new=torch.ones(1), t=torch.ones(3).half(), s=torch.ones(4))
    kinds = {found.name: found.kind for found in tensor_diffs(one, other)}
    assert kinds == {
        "w": "same", "gone": "only in A", "new": "only in B", "t": "dtype", "s": "shape"
    }  # fmt: skip


def moving() -> tuple[Content, Content, Content]:
    torch.manual_seed(3)
    weights = [torch.randn(50, 20)]
    for _ in range(2):
        weights.append(weights[-1] + 0.01 * torch.randn(50, 20))
    a, b, c = ({"w": x, "v": 2 * x} for x in weights)
    return content(**a), content(**b), content(**c)


def test_an_element_that_jumps_and_returns_is_a_damaged_file() -> None:
    a, b, c = moving()
    assert three_way(a, b, c).meaning == NOTHING
    b.tensors["w"].read()[3, 3] = 1e9
    found = three_way(a, b, c)
    assert (found.meaning, found.shares) == (FILE_BAD, (1.0, 1.0, 1.0))
    assert (found.jumps["w"].returned, found.jumps["w"].stayed) == (1, 0)
    assert found.jumps["w"].first == 63
    c.tensors["w"].read()[3, 3] = 1e9 + 5
    assert three_way(a, b, c).meaning == WITHIN_THE_RUN


def test_checkpoints_that_should_be_equal_speak_by_what_differs() -> None:
    plain = {f"w{i}": torch.full((4,), float(i)) for i in range(20)}
    bad = {**plain, "w3": plain["w3"] + 1}
    assert three_way(content(**plain), content(**bad), content(**plain)).meaning == FILE_BAD
    assert three_way(content(**plain), content(**bad), content(**bad)).meaning == WITHIN_THE_RUN


def test_nan_is_a_jump() -> None:
    a, b, c = (torch.linspace(0, 1, 30) + 0.01 * i for i in range(3))
    b[4] = torch.nan
    found = jumps_of(a, b, c)
    assert found is not None
    assert (found.returned, found.stayed, found.first) == (1, 0, 4)


def test_a_seal_proves_what_the_format_cannot(tmp_path: Path) -> None:
    path = tmp_path / "step-3.safetensors"
    save_file({"w": torch.arange(64.0)}, path)
    (one,) = index(tmp_path)
    assert IntegrityOracle().judge(one).verdict == "untestable"
    before = path.read_bytes()
    assert sealed(one).done
    assert path.read_bytes() == before
    assert [x.path for x in index(tmp_path)] == [path]
    assert IntegrityOracle().judge(one).verdict == "clean"
    damaged = bytearray(before)
    damaged[-3] ^= 1
    path.write_bytes(damaged)
    judgement = IntegrityOracle().judge(one)
    assert (judgement.verdict, judgement.stored_bytes) == ("corrupt", True)
    assert judgement.reason == (
        "step-3.safetensors: not the bytes that were sealed; "
        "w: not the bits that were sealed (element 63, bits [8])"
    )
    assert sealed(one).what == "sealed already: step-3.safetensors.sdc-seal.json"
    assert sealed(one, again=True).done
    assert IntegrityOracle().judge(one).verdict == "clean"


def test_what_a_doctor_tells(tmp_path: Path) -> None:
    for step in (1, 2):
        save_file({"w": torch.ones(2)}, tmp_path / f"step-{step}.safetensors")
    found = index(tmp_path)
    assert clock_troubles(found, now=0.0) == [
        "modified in the future by this machine's clock: step 1, 2"
    ]
    mounts = "/dev/a / ext4 rw\nserver:/x /data nfs4 rw\n"
    assert file_system(Path("/data/run"), mounts) == "nfs4"
    assert file_system(Path("/home"), mounts) == "ext4"
    assert is_local("ext4")
    assert not is_local("nfs4")


def test_elements_of_complex_numbers_are_counted_once() -> None:
    one = torch.zeros(4, dtype=torch.complex64)
    other = one.clone()
    other[1] = 1 + 1j  # both words
    other[3] = 2j
    found = bit_diff(one, other)
    assert (found.numel, found.changed, found.index, found.last) == (4, 2, 1, 3)
    assert (found.half, found.by_part) == ("real", {"exponent": 7 + 7 + 1})
    assert bit_diff(one, one + 3j).half == "imaginary"


WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@pytest.mark.parametrize(
    ("dtype", "parts"),
    [
        (torch.float8_e4m3fn, {2: "mantissa", 3: "exponent", 6: "exponent", 7: "sign"}),
        (torch.float8_e5m2, {1: "mantissa", 2: "exponent", 7: "sign"}),
        (torch.float8_e4m3fnuz, {2: "mantissa", 7: "sign"}),
        (torch.float8_e8m0fnu, {0: "exponent", 7: "exponent"}),
        (torch.int8, {7: None}),
        (torch.uint16, {15: None}),
        (torch.int64, {63: None, 0: None}),
        (torch.bool, {0: None}),
    ],
)
def test_bits_of_small_formats_and_of_integers(
    dtype: torch.dtype, parts: dict[int, str | None]
) -> None:
    words = WORDS[dtype.itemsize]
    one = torch.zeros(6, dtype=words).view(dtype)
    for bit, part in parts.items():
        other = one.clone()
        mask = -(1 << bit) if bit == 8 * dtype.itemsize - 1 and dtype.itemsize > 1 else 1 << bit
        other.view(words)[2] ^= mask
        found = bit_diff(one, other)
        assert (found.by_bit, found.index, found.changed) == ({bit: 1}, 2, 1)
        assert found.by_part == ({} if part is None else {part: 1})
        assert (found.before, found.after) == (0, 1 << bit)


def test_the_largest_change_is_found_where_it_is() -> None:
    one = torch.zeros(3_000_000)
    other = one.clone()
    other[7], other[2_500_000], other[2_900_000] = 1.0, -5.0, torch.nan
    found = bit_diff(one, other)
    assert (found.index, found.farthest, found.largest) == (7, 2_500_000, 5.0)


def test_the_typical_change_is_the_median() -> None:
    one = torch.zeros(5, dtype=torch.float64)
    found = bit_diff(one, torch.tensor([1.0, 2, 3, 4, 500], dtype=torch.float64))
    assert (found.typical, found.largest, found.last) == (3.0, 500.0, 4)


def test_nan_and_infinities_are_counted() -> None:
    values = torch.tensor([1.0, torch.inf, 2.0, torch.nan, -torch.inf])
    assert nonfinite(values) == NonFinite(1, 2, 1)
    assert nonfinite(values.bfloat16()) == NonFinite(1, 2, 1)
    assert nonfinite(torch.full((9,), 3e38)) == NonFinite()  # whose sum overflows
    assert nonfinite(torch.tensor([0x7F, 0], dtype=torch.uint8).view(torch.float8_e4m3fn)).nan == 1
    assert nonfinite(torch.tensor([1j, complex("nan")])) == NonFinite(1, 0, 1)
    assert nonfinite(torch.ones(3, dtype=torch.int64)) == NonFinite()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.blocks.0.weight", PARAMETERS),
        ("optimizer.state.3.exp_avg", FIRST),
        ("optimizer.state.3.exp_avg_sq", SECOND),
        ("optim.state.w.momentum_buffer", FIRST),
        ("optimizer.state.3.step", OTHER),
        ("model.bn.running_mean", OTHER),
        ("rng", OTHER),
    ],
)
def test_kinds_of_state_by_name(name: str, kind: str) -> None:
    assert kind_of(name, torch.float32) == kind


def test_what_jumps_and_goes_on_to_somewhere_else_says_nothing() -> None:
    a, b, c = (torch.linspace(0, 1, 30) + 0.01 * i for i in range(3))
    b[4], c[4] = 1e6, -5e6
    assert jumps_of(a, b, c) is None


def ranked(role: str, name: str, largest: float, typical: float = 1.0) -> TensorDiff:
    bits = BitDiff(100, 100, {0: 100}, largest=largest, typical=typical)
    return TensorDiff(name, "bits", bits=bits, role=role)


def test_each_tensor_is_measured_by_its_own_kind() -> None:
    # second moments: 2 to 6 decades as a rule; parameters four, but for one of five
    moments = [ranked(SECOND, f"v{i}", 10.0**i) for i in (2, 3, 4, 5, 6)]
    weights = [ranked(PARAMETERS, f"w{i}", 10.0**4) for i in range(5)]
    odd = ranked(PARAMETERS, "odd", 10.0**5)
    order = [one.name for one in by_unusual([*moments, *weights, odd])]
    assert order[:2] == ["odd", "v6"]
    assert order.index("w0") < order.index("v3")  # as its kind is, before what is below it
