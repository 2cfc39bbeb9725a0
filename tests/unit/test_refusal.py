"""What is said where another program holds a seal, also one whose number nobody here can see."""

from __future__ import annotations

import fcntl
import struct
from pathlib import Path

import duckdb
import pytest
from segment_writers import SegmentWriter, delete

from sdc_guard import RunReader
from sdc_guard.store.refusal import reason
from sdc_guard.store.sealing import seal_run

HELD = 'IO Error: Could not set lock on file "/nfs/x.duckdb": Conflicting lock is held in '
MORE = ". See also https://duckdb.org/docs/current/connect/concurrency"


def test_of_a_process_with_a_number_duckdbs_own_words_are_told() -> None:
    for holder in ("/usr/bin/python3.11 (PID 12118)", "PID 10", "PID 12"):
        said = f"{HELD}{holder}{MORE}"
        assert reason(duckdb.IOException(f"{said}\nmore")) == said
    assert reason(duckdb.CatalogException("it holds no table")) == "it holds no table"


@pytest.mark.parametrize("number", ["0", "-1"])
def test_of_one_without_a_number_is_said_where_it_may_be_and_what_to_do(number: str) -> None:
    told = reason(duckdb.IOException(f"{HELD}PID {number}{MORE}"))
    assert told.startswith(f"{HELD}PID {number}, a process of another container or machine")
    assert told.endswith("read a copy of the run on a local disk")
    assert "See also" not in told


def test_a_seal_that_an_unseen_process_holds_costs_itself_and_is_told(empty_run: Path) -> None:
    one = SegmentWriter(empty_run, "first")
    one.steps(0, 9)
    seal_run(empty_run, at_least=1)
    delete((empty_run / "trace").rglob("seg-*"))
    one.steps(10, 14)
    (seal,) = (empty_run / "trace" / "steps").rglob("seal-*")
    with seal.open("r+b") as file:
        # a lock of an open file: it keeps out this process, too, and F_GETLK names no holder
        whole = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, whole)
        with RunReader(empty_run) as reader:
            assert reader.rows("SELECT min(step), count(*) FROM steps") == [(10, 5)]
            (trouble,) = [one for one in reader.troubles() if one.kind == "damaged files"]
    assert f"{seal.name} (IO Error: Could not set lock on file" in trouble.text
    assert "read a copy of the run on a local disk" in trouble.text
    with RunReader(empty_run) as reader:
        assert reader.rows("SELECT min(step), count(*) FROM steps") == [(0, 15)]
