"""Small files that made readers work without an end, or ended a scan of sound ones."""

from __future__ import annotations

import os
import pickle
import struct
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from click.testing import CliRunner
from hostile_pickles import with_pickle

from forensics.cli import main
from forensics.index import index
from forensics.readers.known import reader_of
from forensics.readers.tracker import with_tracker
from forensics.scanning import scanned
from forensics.sessions.mark import content_of
from sdc_guard.archive.inert_pickle import InertUnpickler
from sdc_guard.archive.regular_file import open_regular, open_unbuffered, read_regular
from sdc_guard.archive.walk import leaves
from sdc_guard.errors import CheckpointUnreadable

_START = b"\x80\x02"
_LEVELS = 40  # of doubling: 2 ** 40 paths


def put(index: int) -> bytes:
    return b"r" + struct.pack("<I", index)


def get(index: int) -> bytes:
    return b"j" + struct.pack("<I", index)


def text(word: str) -> bytes:
    return b"X" + struct.pack("<I", len(word)) + word.encode()


def doubled(first: bytes, form: bytes, start: int) -> bytes:
    """What holds the one before it twice, again and again, kept under numbers from `start` on."""
    content = first + put(start) + b"0"
    for at in range(start, start + _LEVELS):
        content += form.replace(b"@", get(at) * 2) + put(at + 1) + b"0"
    return content


def tensor(key: bytes = text("0"), shape: bytes = b"K\x04\x85", numel: bytes = b"K\x04") -> bytes:
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n(("
        + text("storage") + b"ctorch\nFloatStorage\n" + key + text("cpu") + numel + b"tQK\x00"
        + shape + b"K\x01\x85\x89ccollections\nOrderedDict\n)RtR"
    )  # fmt: skip


LISTS = doubled(b"]", b"](@e", 100)
PLACEHOLDERS = doubled(b"ca\nB\n", b"ca\nB\n(@tR", 100)
SETS = doubled(b"(K\x01\x91", b"(@\x85\x91", 100) + doubled(b"(K\x01\x91", b"(@\x85\x91", 200)
LAST = get(100 + _LEVELS)
HUGE = b"\x8b" + struct.pack("<i", 100_000) + b"\x7f" * 100_000
WIDE = b"](" + b"K\x01" * 1000 + b"e" + put(1) + b"0](" + get(1) * 1000 + b"e" + put(2) + b"0"
W = text("w") + tensor() + b"u."
UNREADABLE = {
    "storage key": LISTS + b"}(" + text("a") + tensor(LAST) + b"u.",
    "placeholder key": PLACEHOLDERS + b"}(" + text("a") + tensor(LAST) + b"u.",
    "lists": LISTS + b"}(" + text("a") + LAST + W,
    "wide": WIDE + b"](" + get(2) * 1000 + b"e" + put(3) + b"0}(" + text("a") + get(3) + W,
    "shape of 64 bits": b"}(" + text("a") + tensor(shape=b"\x8a\x09" + b"\xff" * 8 + b"\0\x85") + W,
    "shape of 100 kB": HUGE + put(5) + b"0}(" + text("a") + tensor(shape=get(5) + b"\x85") + W,
    "numel of 64 bits": b"}(" + text("a") + tensor(numel=b"\x8a\x09" + b"\xff" * 8 + b"\0") + W,
}
SOUND = {
    "sets as keys": SETS + b"}(" + LAST + b"K\x01" + get(200 + _LEVELS) + b"K\x02" + W,
    "placeholder as key": PLACEHOLDERS + b"}(" + LAST + b"K\x01" + W,
    "huge number": HUGE + put(5) + b"0}(" + text("step") + get(5) + W,
    "tensor as key": tensor() + put(5) + b"0}(" + (get(5) + b"K\x01") * 3000 + W,
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_has_no_end_is_unreadable(tmp_path: Path, name: str) -> None:
    with_pickle(tmp_path / "step-1.pt", _START + UNREADABLE[name], **{"0": bytes(16)})
    torch.save({"w": torch.ones(3)}, tmp_path / "step-2.pt")
    first, second = scanned(index(tmp_path))
    assert (first.readable, second.status) == (False, "clean")
    assert first.reasons[0].startswith("unreadable: the structure of the file is damaged")
    assert "digits" not in first.reasons[0]  # no words of Python's own


@pytest.mark.parametrize("name", SOUND)
def test_odd_keys_are_no_damage(tmp_path: Path, name: str) -> None:
    with_pickle(tmp_path / "step-1.pt", _START + SOUND[name], **{"0": bytes(16)})
    (one,) = scanned(index(tmp_path))
    assert (one.status, one.intact) == ("clean", ("w",))


def test_keys_keep_their_names(tmp_path: Path) -> None:
    keys: list[Any] = ["a", 3, 2.5, True, None, b"b", (1, "x"), ((1, 2), 3), 2**70]
    torch.save({key: torch.ones(1) for key in keys}, tmp_path / "step-1.pt")
    (one,) = scanned(index(tmp_path))
    assert (one.status, list(one.intact)) == ("clean", [str(key) for key in keys])


def test_one_budget_for_all_pickles_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sdc_guard.archive.pickle_machine.MOST_OPERATIONS", 10_000)
    machine = InertUnpickler((b"N0" * 1_500 + b"N.") * 4)
    for _ in range(3):
        machine.load()
    with pytest.raises(pickle.UnpicklingError, match="10,000 operations"):
        machine.load()


def test_a_structure_without_sharing_is_never_too_large() -> None:
    root = [[True] * 1_000 for _ in range(500)]  # a byte for each, the least that there is
    assert sum(1 for _ in leaves(root, len(pickle.dumps(root)))) == 500_000
    shared = [[[1] * 1_000] * 1_000] * 1_000
    with pytest.raises(RecursionError, match="more values"):
        list(leaves(shared, 12_000))


def test_what_nobody_foresaw_stays_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        torch.save({"w": torch.ones(step)}, tmp_path / f"step-{step}.pt")
    from forensics.readers import torch_zip

    sound = torch_zip.check_records

    def breaks(records: Any, found: Any) -> Any:
        if records.path.name == "step-2.pt":
            raise ZeroDivisionError
        return sound(records, found)

    monkeypatch.setattr(torch_zip, "check_records", breaks)
    told = CliRunner().invoke(main, ["scan", str(tmp_path), "--jobs", "1"])
    assert told.exit_code == 5
    assert "2  unreadable  unreadable: reading it failed (ZeroDivisionError in " in told.output
    assert "3 checkpoints: 2 clean, 1 unreadable" in told.output
    with pytest.raises(CheckpointUnreadable):
        reader_of("torch").check(index(tmp_path)[1])
    monkeypatch.setattr("forensics.scanning._joined", lambda *_: 1 // 0)
    (one,) = scanned(index(tmp_path)[:1])
    assert one.reasons[0].startswith("unreadable: judging it failed (ZeroDivisionError in ")
    assert one.reasons[0].endswith("; a fault of sdc-bisect, please report it)")


def quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch: they are on their way out
        return torch.quantize_per_tensor(torch.arange(4.0), 0.1, 0, torch.quint8)


def save_dcp(state: dict[str, torch.Tensor], folder: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch: no process group
        dcp.save(state, checkpoint_id=folder, no_dist=True)
    return folder


def test_quantized_tensors_in_dcp(tmp_path: Path) -> None:
    save_dcp({"w": torch.ones(3), "q": quantized()}, tmp_path / "both" / "step-1")
    save_dcp({"q": quantized()}, tmp_path / "alone" / "step-1")
    (both,), (alone,) = (scanned(index(tmp_path / name)) for name in ("both", "alone"))
    assert (both.status, both.intact, both.readable) == ("untested", ("w",), True)
    assert both.foreign == {"q": "a tensor of torch.quint8"}
    assert (alone.status, alone.readable) == ("untested", True)
    assert alone.reasons[0] == "none of its tensors can be evaluated"
    sealing = CliRunner().invoke(main, ["seal", str(tmp_path / "alone")])
    assert (sealing.exit_code, "1  sealed" in sealing.output) == (0, True), sealing.output


def test_damage_to_a_quantized_tensor_is_told(tmp_path: Path) -> None:
    folder = save_dcp({"w": torch.ones(3), "q": quantized()}, tmp_path / "step-1")
    shard = folder / "__0_0.distcp"
    content = bytearray(shard.read_bytes())
    content[content.index(bytes(quantized().int_repr().tolist()))] ^= 4
    shard.write_bytes(content)
    (one,) = scanned(index(tmp_path))
    assert (one.status, list(one.damaged), one.intact) == ("corrupt", ["q"], ("w",))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="because there are no pipes here")
def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "latest"
    os.mkfifo(pipe)
    for opening in (open_regular, open_unbuffered, read_regular):
        with pytest.raises(OSError, match="not a file"):
            opening(pipe)
    torch.save({"w": torch.ones(1)}, tmp_path / "step-1.pt")
    found = index(tmp_path)
    assert with_tracker(found, pipe) == found
    assert content_of(tmp_path) == content_of(tmp_path) is not None
