"""What could not be read, or is in no tensor, is part of the answer."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import torch
from click.testing import CliRunner, Result

from forensics.cli import main
from forensics.readers import guard_archive
from sdc_guard.archive.compare import REWRITTEN
from sdc_guard.archive.save import STATE_FILE, save_checkpoint
from sdc_guard.errors import EXIT_ARCHIVE_INCOMPLETE, EXIT_RANGE_ONLY


def answer(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def test_a_search_that_found_nothing_names_the_file_that_it_could_not_read(tmp_path: Path) -> None:
    torch.manual_seed(0)
    for step in range(10, 70, 10):
        torch.save({"w": torch.randn(64, 64), "step": step}, tmp_path / f"ckpt-{step}.pt")
    os.truncate(tmp_path / "ckpt-40.pt", 9000)
    told = answer("run", tmp_path, "--json")
    content = json.loads(told.stdout)
    assert (told.exit_code, content["skipped"]) == (EXIT_RANGE_ONLY, [40])
    assert content["first_corrupt"] is None


def test_a_scan_of_a_guard_s_archive_sees_a_bit_that_is_in_no_tensor(tmp_path: Path) -> None:
    folder, _ = save_checkpoint(tmp_path, 1, 1, {"note": "no tensor", "step": 1}, {}, [])
    (found,) = guard_archive.READER.find(tmp_path)
    assert guard_archive.READER.check(found).damaged == {}
    path = folder / STATE_FILE
    with zipfile.ZipFile(path) as archive:
        place = archive.start_dir + 38  # attributes, which no reader looks at
    content = bytearray(path.read_bytes())
    content[place] ^= 0x80
    path.write_bytes(content)
    assert guard_archive.READER.check(found).damaged == {STATE_FILE: REWRITTEN}


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f.pt")
    assert answer("index", tmp_path / "f.pt").exit_code == EXIT_ARCHIVE_INCOMPLETE


def test_a_scan_says_that_it_did_not_look_at_values(tmp_path: Path) -> None:
    torch.save({"w": torch.full((4,), torch.nan)}, tmp_path / "ckpt-1.pt")
    told = answer("scan", tmp_path)
    assert (told.exit_code, "--statistics does" in told.stdout) == (0, True)
    told = answer("scan", tmp_path, "--statistics")
    assert (told.exit_code, "--statistics does" in told.stdout) == (1, False)
