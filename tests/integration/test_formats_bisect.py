"""Archives that each format's own library made: a fault at every third checkpoint is located."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import made_by_libraries as made
import pytest
from in_process import bisect

from forensics.checkpoint import Checkpoint
from forensics.index import index
from forensics.readers.known import READERS, reader_of
from forensics.tensor_roles import weights_of

FAULTS = range(2, made.COUNT, 3)
FEW = (FAULTS[0], FAULTS[4], FAULTS[-1])
# format, who makes it, and whether it keeps a checksum of each weight
FORMATS = (
    ("torch", made.torch_zip, True),
    ("torch-legacy", made.torch_legacy, False),
    ("lightning", made.lightning, True),
    ("hf-trainer", made.hf_trainer, False),
    ("safetensors", made.safetensors, False),
    ("safetensors-sharded", made.safetensors_shards, False),
    ("dcp", made.dcp_folders, True),
    ("dcp-hf", made.dcp_hf, False),
    ("dcp", made.torchtitan, True),
    ("sdc-guard", made.guard, True),
)


def flip(checkpoint: Checkpoint) -> None:
    """Flip the highest bit of the exponent of one weight, in the file; twice is not at all."""
    tensors = weights_of(reader_of(checkpoint.format).open(checkpoint))
    stored = list(tensors.values())[-1]
    content = stored.read().clone()
    element = content.view(-1)[5]
    element_bytes = content.numpy().tobytes()[4 * 4 : 4 * 8]  # it and its neighbours
    assert element == content.view(-1)[5]
    for file in stored.files:
        text = bytearray(file.read_bytes())
        if (place := text.find(element_bytes)) > 0:
            text[place + 4 + 3] ^= 0x40
            file.write_bytes(text)
            return
    raise AssertionError("its bytes are in no file")


@contextmanager
def damaged(checkpoints: Sequence[Checkpoint]) -> Iterator[None]:
    for one in checkpoints:
        flip(one)
    yield
    for one in checkpoints:
        flip(one)


of_each_format = pytest.mark.parametrize(
    ("format", "make", "checksums"), FORMATS, ids=[make.__name__ for _, make, _ in FORMATS]
)


@of_each_format
def test_the_first_a_middle_and_the_last_checkpoint(
    format: str, make: Callable[[Path], Path], checksums: bool, tmp_path: Path
) -> None:
    located(format, make(tmp_path), checksums, FEW)


@pytest.mark.parametrize("make", [made.torch_zip, made.safetensors])
def test_every_third_checkpoint(make: Callable[[Path], Path], tmp_path: Path) -> None:
    ((format, _, checksums),) = [one for one in FORMATS if one[1] == make]
    located(format, make(tmp_path), checksums, FAULTS)


@pytest.mark.slow
@of_each_format
def test_every_third_checkpoint_of_each_format(
    format: str, make: Callable[[Path], Path], checksums: bool, tmp_path: Path
) -> None:
    located(format, make(tmp_path), checksums, FAULTS)


def located(format: str, path: Path, checksums: bool, faults: Sequence[int]) -> None:
    """Nothing is found in the archive, and each fault where it is."""
    found = index(path)
    assert [one.step for one in found] == list(range(1, made.COUNT + 1))
    assert {one.format for one in found} == {format}
    assert all(one.readable and not one.reasons for one in found)
    answer = bisect("run", path, "--json")
    assert answer.code == 0, answer.out
    assert answer.json["first_corrupt"] is None
    for place in faults:
        # one file rots; what no checksum shows has to last to be found by halves
        with damaged(found[place : place + 1] if checksums else found[place:]):
            answer = bisect("run", path, "--json")
        assert answer.code == 1, answer.out
        said = answer.json
        assert (said["last_clean"], said["first_corrupt"]) == (place, place + 1)
        assert said["exact"]
        assert said["proven"] == checksums
        assert said["class"] == ("stored bytes" if checksums else None)


def test_each_format_has_one_reader_and_the_manifest_comes_first() -> None:
    names = [reader.format for reader in READERS]
    assert len(set(names)) == len(names)
    assert {format for format, _, _ in FORMATS} < set(names)
    assert names[0] == "sdc-guard"
    assert names.index("hf-trainer") < names.index("safetensors")
    assert names.index("dcp-hf") < names.index("safetensors-sharded") < names.index("safetensors")
    assert names.index("lightning") < names.index("torch")
    assert all(reader_of(name).format == name for name in names)
