"""The parts of a checkpoint of several ranks: names, pieces, who writes what, who is where."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import HashStore
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from sdc_guard import Guard, RunReader, load_checkpoint, sharded_checkpoints
from sdc_guard.archive.compare import ByteCheck, check_bytes
from sdc_guard.archive.manifest import Manifest, TensorEntry
from sdc_guard.archive.save import NOT_COMPARED
from sdc_guard.archive.sharded import protocol
from sdc_guard.archive.sharded.ack import Ack, Written
from sdc_guard.archive.sharded.assign import assigned
from sdc_guard.archive.sharded.flat import flattened, nested
from sdc_guard.archive.sharded.meeting import Arrival, Meeting, NotSaved
from sdc_guard.archive.sharded.pieces import Piece
from sdc_guard.archive.sharded.staging import Stager
from sdc_guard.digest import Digest, digest_tensor
from sdc_guard.digest.reference import MASK64
from sdc_guard.errors import CheckpointMismatch, CheckpointUnreadable, UsageError

LEAVES = st.one_of(st.integers(), st.text(max_size=3), st.just(torch.ones(1)), st.just(()))
PAYLOADS = st.dictionaries(
    st.text("abc", min_size=1, max_size=2),
    st.recursive(
        LEAVES,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3),
            st.dictionaries(st.integers(0, 9), inner, max_size=3),
        ),
        max_leaves=8,
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=150, deadline=None)
@given(PAYLOADS)
def test_a_payload_comes_back_from_its_leaves(payload: dict[str, Any]) -> None:
    leaves = flattened(payload)
    assert nested(leaves) == payload


@settings(max_examples=150, deadline=None)
@given(PAYLOADS)
def test_names_are_those_of_dcp(payload: dict[str, Any]) -> None:
    expected, _ = flatten_state_dict(payload)  # type: ignore[arg-type]
    leaves = flattened(payload)
    empty = {name for name, (_, leaf) in leaves.items() if leaf == {} and isinstance(leaf, dict)}
    assert set(leaves) - empty == set(expected)


def test_two_leaves_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match=r"two values of the checkpoint have the name 'a\.b'"):
        flattened({"a.b": 1, "a": {"b": 2}})
    with pytest.raises(UsageError, match="neither text nor a whole number"):
        flattened({"a": {(1, 2): 3}})


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.data(),
    st.sampled_from([torch.float32, torch.complex64, torch.int8]),
)
def test_the_digests_of_boxes_add_up(
    shape: list[int], data: st.DataObject, dtype: torch.dtype
) -> None:
    whole = (torch.randn(shape, generator=torch.Generator().manual_seed(3)) * 50).to(dtype)
    dimension = data.draw(st.integers(0, len(shape) - 1))
    cut = data.draw(st.integers(0, shape[dimension]))
    total = [0, 0, 0]
    for first, length in ((0, cut), (cut, shape[dimension] - cut)):
        offsets, sizes = [0] * len(shape), list(shape)
        offsets[dimension], sizes[dimension] = first, length
        name = str(dtype).removeprefix("torch.")
        piece = Piece("x", name, tuple(shape), tuple(offsets), tuple(sizes))
        part = whole.narrow(dimension, first, length).contiguous()
        total = [(a + b) & MASK64 for a, b in zip(total, piece.digest_of(part), strict=True)]
    assert Digest(*total) == digest_tensor(whole)


def piece(name: str, value: int = 0, *, size: int = 4, kind: str | None = "param") -> Piece:
    entry = TensorEntry.of(Digest(value, value, value), kind, kind and name)
    return Piece(name, "float32", (size,), (0,), (size,), entry)


def test_each_piece_is_written_once_by_whoever_has_least() -> None:
    plans = {rank: [piece(f"x{n}", size=2**n) for n in range(9)] for rank in range(3)}
    found = assigned(plans)
    assert sorted(place for places in found.places.values() for place in places) == list(range(9))
    assert found.places[0] == [8]  # larger than all the others together
    assert (found.reasons, found.notes) == ((), ())


def test_copies_that_differ_are_told_and_the_first_is_taken() -> None:
    plans = {
        rank: [
            piece("x", rank == 2),
            replace(piece("rng", rank, kind=None), own=True),
            Piece("lr"),
            piece("momentum", rank, kind=None),
        ]
        for rank in range(3)
    }
    found = assigned(plans)
    assert found.places == {0: [0, 1, 2, 3], 1: [], 2: []}
    told = "is not the same on ranks"
    assert found.reasons == (
        f"x {told} 0, 2: saved is that of rank 0",
        f"momentum {told} 0, 1, 2: saved is that of rank 0",
    )
    assert found.notes == (f"rng {told} 0, 1, 2: saved is that of rank 0",)


def meet(arrivals: list[Arrival | None], patience: float = 5.0) -> list[str]:
    """What each rank is told: rank 0's name for the save, or why there is none."""
    store = HashStore()
    store.set_timeout(timedelta(seconds=30))
    told = [""] * len(arrivals)

    def one(rank: int, arrival: Arrival) -> None:
        meeting = Meeting(rank, len(arrivals), lambda: store, lambda name: name)
        try:
            told[rank] = meeting.agree(arrival, patience)
        except NotSaved as error:
            told[rank] = error.what

    threads = [
        threading.Thread(target=one, args=(rank, arrival))
        for rank, arrival in enumerate(arrivals)
        if arrival is not None
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


def at(step: int, newest: int | None = None, **more: Any) -> Arrival:
    return Arrival(step, step if newest is None else newest, 1, **more)


def test_ranks_that_agree_have_rank_0s_name() -> None:
    assert meet([at(5, save="here"), at(5, save="there"), at(5)]) == ["here"] * 3


@pytest.mark.parametrize(
    ("arrivals", "said"),
    [
        ([at(500), at(499), at(500), at(499), at(500)],
         "ranks 1, 3 are at step 499, the others at step 500"),
        ([at(500), at(499)], "rank 0 is at step 500; rank 1 is at step 499"),
        ([at(7), at(7, 6), at(7)],
         "rank 1 is at step 7, and recorded 6, the others at step 7, and recorded 7"),
        ([at(7), at(7), at(7, trouble="MemoryError: no room")], "rank 2: MemoryError: no room"),
        ([at(7, busy=6), at(7, busy=6), at(7)], "ranks 0, 1 still write that of step 6"),
    ],
)  # fmt: skip
def test_ranks_that_do_not_agree_are_named(arrivals: list[Arrival | None], said: str) -> None:
    assert meet(arrivals) == [said] * len(arrivals)


def test_ranks_that_do_not_come_are_named() -> None:
    told = meet([at(3), None, at(3), None], patience=0.2)
    assert told[0] == told[2]
    assert told[0].startswith("ranks 1, 3 did not come to guard.checkpoint of step 3 within 0.2 s")
    told = meet([None, at(3), at(3)], patience=0.2)
    assert told[1].startswith("rank 0 did not come to guard.checkpoint of step 3 within 0.2 s")


def test_after_one_that_did_not_come_the_others_wait_less() -> None:
    waited: list[float] = []

    def heard(_client: Any, key: str, end: float) -> Any:
        waited.append(end - time.monotonic())
        return None if len(waited) == 1 else {"step": 3, "newest": 3, "attempt": 1}

    meeting = Meeting(0, 2, HashStore, lambda name: name)
    with mock.patch("sdc_guard.archive.sharded.meeting._heard", heard):
        with pytest.raises(
            NotSaved, match="within 60 s: call it on every rank, or on rank 0 alone"
        ):
            meeting.agree(at(3, save="x"), 60.0)
        assert meeting.agree(at(3, save="y"), 60.0) == "y"
        assert meeting.agree(at(3, save="z"), 60.0) == "z"
    assert [round(seconds, -1) for seconds in waited] == [60, 10, 60]


def test_what_a_rank_says_is_read_as_it_was_written(tmp_path: Path) -> None:
    held = (piece("x", 2**64 - 1), Piece("lr"), piece("buffer", kind=None))
    written = (Written(held[0], "__1_0.distcp", 5, 100, 64, "ab" * 16),)
    ways = {"x": (("d", "a"), ("i", 7), ("l", 0))}
    ack = Ack(1, 5, 2, ".step", held, written, (), ways, {"x": "(Shard(dim=0),)"}, ("why",))
    ack.publish(tmp_path / "ack")
    assert Ack.read(tmp_path / "ack") == ack
    text = (tmp_path / "ack").read_text()
    for wrong in (
        text.replace("__1_0", "../__1_0"), text.replace("float32", "load"), text[:-20],
        text.replace("[4]", "[-4]", 1), text.replace("ack/1", "ack/2"), "[1]", "",
    ):  # fmt: skip
        assert wrong != text
        (tmp_path / "ack").write_text(wrong)
        with pytest.raises(CheckpointUnreadable, match="damaged, or of a newer version"):
            Ack.read(tmp_path / "ack")


class Run:
    """One process that saves in the format of several."""

    def __init__(self, folder: Path, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        options = {"policy": "record", "archive_format": "dcp"} | options
        self.guard = Guard(self.model, self.optimizer, run=folder, **options)
        self.step = -1

    def train(self) -> None:
        self.step += 1
        loss = self.model(torch.randn(4, 6)).square().mean()
        loss.backward()
        self.guard.observe(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def save(self, **options: Any) -> Path | None:
        objects = {"model": self.model, "optimizer": self.optimizer, "odd": ODD}
        return self.guard.checkpoint(objects, self.step, **options)


ODD = {
    "nothing": torch.empty(0, 3), "half": torch.arange(3.0).to(torch.bfloat16),
    "turned": torch.arange(6.0).view(2, 3).t(), "complex": torch.ones(2, dtype=torch.complex64),
    "bool": torch.tensor([True, False]), "float8": torch.ones(3).to(torch.float8_e4m3fn),
    "sparse": torch.eye(2).to_sparse(), "scalar": torch.tensor(5), "empty": {}, 3: (1, "two"),
}  # fmt: skip


@pytest.mark.parametrize("wait", [True, False])
def test_one_process_saves_and_loads_in_this_format(tmp_path: Path, *, wait: bool) -> None:
    run = Run(tmp_path / "run")
    run.train()
    folder = run.save(wait=wait)
    expected = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    if not wait:
        assert folder is None
        run.train()
        folder = run.guard.checkpoint_written()
    run.guard.close()
    assert folder == tmp_path / "run" / "archive" / "step=000000"
    assert run.guard.health.errors == 0
    loaded = load_checkpoint(tmp_path / "run")
    for name, tensor in expected.items():
        assert torch.equal(loaded["model"][name], tensor)
    for name, value in ODD.items():
        found = loaded["odd"][name]
        if not isinstance(value, torch.Tensor):
            assert found == value
        elif value.is_sparse:
            assert torch.equal(found.to_dense(), value.to_dense())
        else:
            assert (found.dtype, found.shape) == (value.dtype, value.shape)
            assert found.tolist() == value.tolist() if value.itemsize > 1 else True
    fresh = Run(tmp_path / "fresh")
    load_checkpoint(folder, into={"model": fresh.model, "optimizer": fresh.optimizer})
    assert all(torch.equal(fresh.model.state_dict()[n], t) for n, t in expected.items())
    moments = fresh.optimizer.state_dict()["state"]
    assert {tuple(state) for state in moments.values()} == {("step", "exp_avg", "exp_avg_sq")}
    other = torch.nn.Linear(2, 2)
    with pytest.raises(CheckpointMismatch, match=r"another model: .*weight is not in it"):
        load_checkpoint(folder, into={"model": other})
    fresh.guard.close()


def test_a_disk_that_refuses_leaves_the_older_checkpoint(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.train()
    assert run.save() is not None
    run.train()
    with mock.patch.object(protocol, "write_pieces", side_effect=OSError(28, "No space left")):
        run.save(wait=False)
        assert run.guard.checkpoint_written() is None
        assert run.save() is None
    assert "No space left" in run.guard.health.last_error
    run.guard.close()
    assert sorted(path.name for path in (tmp_path / "archive").iterdir()) == [
        "LATEST", "step=000000"
    ]  # fmt: skip
    with RunReader(tmp_path) as reader:
        told = reader.rows("SELECT detail FROM events WHERE kind = 'checkpoint not saved'")
    assert len(told) == 2
    assert all("No space left" in detail for (detail,) in told)
    assert load_checkpoint(tmp_path)["step"] == 0


def test_one_that_is_still_written_at_the_end_is_waited_for_once(tmp_path: Path) -> None:
    go_on = threading.Event()
    inner = protocol.write_pieces

    def stuck(*given: Any) -> Any:
        assert go_on.wait(30.0)
        return inner(*given)

    run = Run(tmp_path)
    run.train()
    with (
        mock.patch.object(protocol, "write_pieces", stuck),
        mock.patch.object(sharded_checkpoints, "AT_END", 0.1),
    ):
        run.save(wait=False)
        run.guard.close()
        with RunReader(tmp_path) as reader:
            told = reader.rows("SELECT detail FROM events WHERE kind = 'checkpoint not saved'")
        go_on.set()
        run.guard.checkpoint_written(30.0)
    assert len(told) == 1
    assert "the training ended before it was written" in told[0][0]


def test_a_flipped_bit_of_a_copy_is_named(tmp_path: Path) -> None:
    class Flipping(Stager):
        def stage(self, tensors: Any, values: Any) -> Any:
            staged = super().stage(tensors, values)
            staged.tensors["model.0.weight", (0, 0)].view(torch.int32)[2, 3] ^= 1 << 20
            return staged

    run = Run(tmp_path, digest_budget=None)
    run.train()
    with mock.patch.object(sharded_checkpoints, "Stager", Flipping):
        folder = run.save()
    run.guard.close()
    assert folder is not None
    manifest = Manifest.read(folder)
    (reason,) = manifest.reasons
    check = check_bytes(folder, manifest)  # the files are those that were written
    (found,) = check.mismatches
    assert check == ByteCheck((found,))
    assert (found.name, found.kind, found.layer) == ("model.0.weight", "param", "0.weight")
    assert found.change is not None
    assert (found.change.index, list(found.change.bits)) == (15, [20])
    assert check.reasons() == [reason]
    what = "model.0.weight: bytes differ from the recorded digest (element 15, bits [20])"
    assert (manifest.status, reason) == ("suspect", what)
    with pytest.raises(CheckpointMismatch, match=re.escape(what)):
        load_checkpoint(folder)


@pytest.mark.parametrize("archive_format", ["dcp", "torch"])
def test_copies_alone_are_untested(tmp_path: Path, archive_format: str) -> None:
    run = Run(tmp_path, archive_format=archive_format)
    run.train()
    copies = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    folder = run.guard.checkpoint({"model": copies}, 0)
    other = run.guard.checkpoint({"model": copies, "optimizer": run.optimizer}, 0)
    text = run.guard.checkpoint({"note": "no tensor"}, 0)
    run.guard.close()
    assert folder is not None
    assert other is not None
    assert text is not None
    manifest = Manifest.read(folder)
    assert (manifest.status, manifest.reasons) == ("untested", (NOT_COMPARED,))
    assert Manifest.read(other).status == Manifest.read(text).status == "clean"


def test_what_is_not_finite_is_suspect(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.train()
    with torch.no_grad():
        run.model[0].bias[1] = float("inf")
    run.guard.refresh()
    run.train()
    folder = run.save()
    run.guard.close()
    assert folder is not None
    assert any("not finite" in reason for reason in Manifest.read(folder).reasons)


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no archive_format 'tar' \(use one of auto, torch, dcp"):
        Run(tmp_path, archive_format="tar")
