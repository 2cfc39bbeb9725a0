"""What the doctor says about a machine and a run's folder, of machines that are made up."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner, Result

from sdc_guard.cli import main
from sdc_guard.doctor import command
from sdc_guard.doctor.file_systems import file_system, places
from sdc_guard.doctor.finding import NOTE, OK, PROBLEM, WARNING, Finding, looked_at
from sdc_guard.doctor.machine import clock, cores, denormals, devices, threads
from sdc_guard.doctor.machine_code import compiled_code
from sdc_guard.doctor.mounts import mount_of, mounts, nearest
from sdc_guard.doctor.run_folder import left, times, written
from sdc_guard.doctor.space import disk_space, shared_memory
from sdc_guard.store.ring import Ring, ring_folder

# lines as a kernel writes them: optional fields, escapes, a mount over a mount
MOUNTINFO = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:50 / /data rw,relatime shared:7 master:2 - nfs4 server:/x rw,vers=4.2,addr=10.0.0.1
31 22 0:51 / /data/with\040space rw - fuse.sshfs me@there:/ rw,user_id=0
32 22 0:52 / /old rw - ext4 /dev/vdb rw
33 22 0:53 / /old rw - tmpfs tmpfs rw,size=1024k
34 22 0:54 / /fixed ro,relatime - ext4 /dev/vdc rw
35 22 0:55 / /layer rw - overlay overlay rw,lowerdir=/a:/b
36 22 0:56 / /lustre rw - lustre mds@tcp:/fs rw,lazystatfs
37 22 0:57 / /flock rw - lustre mds@tcp:/fs rw,flock
38 22 0:58 / /v3 rw - nfs server:/y rw,nolock
39 22 0:59 / /share rw - 9p host rw
40 22 0:60 / /odd rw - newfs none rw
41 22 0:61 / /image rw - squashfs /dev/loop0 rw
no line of it
"""


def of(place: str) -> list[tuple[str, str]]:
    return [(found.level, found.what) for found in file_system(Path(place), MOUNTINFO)]


def test_the_deepest_mount_holds_a_path_and_the_last_of_several() -> None:
    among = mounts(MOUNTINFO)
    assert len(among) == 13
    kinds = {
        "/home/me": "ext4", "/data/run": "nfs4", "/database": "ext4",
        "/data/with space/run": "fuse.sshfs", "/old/run": "tmpfs",
    }  # fmt: skip
    for place, kind in kinds.items():
        found = mount_of(Path(place), among)
        assert found is not None
        assert found.kind == kind
    assert mount_of(Path("/home"), among[1:]) is None


@pytest.mark.parametrize(
    ("place", "level", "words"),
    [
        ("/home", OK, "this machine's own"),
        ("/data", WARNING, "server"),
        ("/data/with space", WARNING, "FUSE"),
        ("/old", WARNING, "memory"),
        ("/layer", WARNING, "container"),
        ("/lustre", NOTE, "without flock"),
        ("/flock", NOTE, "made for checkpoints"),
        ("/v3", WARNING, "a ledger must not be shared"),
        ("/share", WARNING, "another machine's folder"),
        ("/odd", NOTE, "nothing is known"),
    ],
)
def test_what_a_file_system_means(
    place: str, level: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sdc_guard.doctor.file_systems.nearest", lambda path: path)
    ((found, what),) = of(place)
    assert found == level
    assert words in what
    assert ("without flock" in what) == (place == "/lustre")


def test_a_read_only_mount_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sdc_guard.doctor.file_systems.nearest", lambda path: path)
    assert [level for level, _ in of("/fixed")] == [PROBLEM, OK]
    assert [level for level, _ in of("/image")] == [PROBLEM, OK]  # of a kind that nobody writes to


@pytest.mark.parametrize("part", ["trace", "archive", "bisect"])
def test_a_part_of_a_run_on_another_file_system_is_told(tmp_path: Path, part: str) -> None:
    run = tmp_path.resolve() / "run"
    for name in ("trace", "archive", "bisect"):
        (run / name).mkdir(parents=True)
    text = f"1 1 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / {run}/{part} rw - nfs4 s:/x rw\n"
    (found,) = places(run, text)
    assert (found.level, found.subject) == (WARNING, f"{part}/")


def room(free: int, whole: int, files: int = 10**6, left: int = 10**6) -> SimpleNamespace:
    return SimpleNamespace(
        f_frsize=1 << 20, f_blocks=whole, f_bavail=free, f_files=files, f_favail=left
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (room(100_000, 200_000), [OK, OK]),
        (room(4_000, 200_000), [WARNING, OK]),
        (room(100, 200_000), [PROBLEM, OK]),
        (room(100_000, 200_000, left=10), [OK, PROBLEM]),
        (room(100_000, 200_000, files=0, left=0), [OK]),  # btrfs has no fixed number of them
    ],
)
def test_room_on_a_disk(given: SimpleNamespace, expected: list[str], tmp_path: Path) -> None:
    asked = []

    def ask(path: Path) -> SimpleNamespace:
        asked.append(path)
        return given

    assert [one.level for one in disk_space(tmp_path / "not" / "yet", ask)] == expected
    assert asked == [tmp_path.resolve()]


def test_shared_memory_of_a_container_of_a_machine_and_of_none(tmp_path: Path) -> None:
    def first(**given: int) -> Finding:
        return next(iter(shared_memory(tmp_path, lambda _: room(**given))))

    assert first(free=64, whole=64).level == WARNING
    assert "--shm-size" in first(free=64, whole=64).next_step
    assert first(free=8_000, whole=8_000).level == OK
    assert first(free=9, whole=8_000).level == WARNING
    assert next(iter(shared_memory(tmp_path / "none"))).level == NOTE


def test_the_clock() -> None:
    assert [next(clock(at, state)).level for at, state in ((2e9, 0), (2e9, 5), (9.0, 0))] == [
        OK, NOTE, PROBLEM,
    ]  # fmt: skip


def test_cores_and_threads() -> None:
    assert cores("max 100000\n", 8) == 8
    assert cores("250000 100000\n", 8) == 2.5
    assert cores("1600000 100000\n", 8) == 8
    assert next(threads(2, 2.0, {})).level == OK
    over = next(threads(8, 2.5, {}))
    assert (over.level, over.next_step) == (WARNING, "OMP_NUM_THREADS=2")
    four = next(threads(4, 8.0, {"LOCAL_WORLD_SIZE": "4"}))
    assert (four.level, four.next_step) == (WARNING, "OMP_NUM_THREADS=2")
    assert next(threads(1, 0.5, {})).level == OK  # there is no fewer


def test_a_driver_without_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert next(devices((tmp_path / "no",))).level == OK
    found = next(devices((tmp_path,)))
    assert found.level == WARNING
    assert "CUDA_VISIBLE_DEVICES=''" in found.what


def test_flushed_denormals_are_seen() -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("because this processor cannot flush them")
    try:
        assert next(denormals()).level == WARNING
    finally:
        torch.set_flush_denormal(False)
    assert next(denormals()).level == OK


def test_where_machine_code_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert next(compiled_code(str(tmp_path / "made" / "later"))).level == OK
    assert next(compiled_code("")).level == WARNING
    monkeypatch.setattr(os, "access", lambda _, mode: mode == os.R_OK)
    assert "cannot be written" in next(compiled_code(str(tmp_path))).what


def test_a_runs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [one.level for one in written(tmp_path / "later")] == [OK, OK]
    assert "not there yet" in next(written(tmp_path / "later")).what
    ring = Ring(ring_folder(tmp_path), 0, 0)
    assert list(left(tmp_path)) == []  # in use
    ring.leave()
    assert [one.level for one in left(tmp_path)] == [NOTE]
    assert (NOTE, "ring") in [(one.level, one.subject) for one in command.examine(tmp_path)]
    (tmp_path / "run.json").touch()
    at = (tmp_path / "run.json").stat().st_mtime
    assert list(times(tmp_path, at - 30)) == []
    assert [one.level for one in times(tmp_path, at - 100)] == [WARNING]
    segment = tmp_path / "trace" / "steps" / "rank=00000" / "seg-00000000.parquet"
    segment.parent.mkdir(parents=True)
    segment.touch()
    os.utime(segment, (at + 200, at + 200))
    assert [one.level for one in times(tmp_path, at)] == [WARNING]
    monkeypatch.setattr(os, "access", lambda _, mode: mode == os.R_OK)
    assert [one.level for one in written(tmp_path)] == [PROBLEM]


def test_a_probe_that_fails_is_a_note_and_the_others_are_asked() -> None:
    def broken() -> Iterator[Finding]:
        yield Finding(OK, "a", "half of it")
        raise OSError(5, "Input/output error")

    found = list(looked_at([("a", broken), ("b", lambda: [Finding(OK, "b", "fine")])]))
    assert [(one.level, one.subject) for one in found] == [(NOTE, "a"), (OK, "b")]
    assert "could not be looked at: OSError" in found[0].what


def doctor(*words: object) -> Result:
    return CliRunner().invoke(main, ["doctor", *map(str, words)])


def test_the_command_changes_nothing_and_its_code_says_whether_there_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    answer = doctor(run, "--json")
    told = json.loads(answer.stdout)
    assert told["schema"] == {"name": "sdc-guard.doctor", "version": 1}
    assert {"file system", "disk space", "clock", "threads", "CUDA", "denormals", "run"} <= {
        one["subject"] for one in told["findings"]
    }
    levels = [one["level"] for one in told["findings"]]
    assert answer.exit_code == told["exit_code"] == int(PROBLEM in levels)
    assert not run.exists()
    bad = [Finding(OK, "a", "fine"), Finding(PROBLEM, "b", "bad", "mend it")]
    monkeypatch.setattr(command, "examine", lambda _: bad)
    answer = doctor("--quiet")
    assert (answer.exit_code, answer.stdout) == (1, "problem  b: bad (mend it)\n")
    monkeypatch.setattr(command, "examine", lambda _: bad[:1])
    assert doctor().exit_code == 0


def test_no_probe_can_break_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> Iterator[Finding]:
        raise RuntimeError("broken")

    for name in ("owners", "resolved", "file_system", "disk_space", "clock", "devices", "threads"):
        monkeypatch.setattr(command, name, broken)
    answer = doctor()
    assert answer.exit_code == 0
    assert answer.stdout.count("could not be looked at: RuntimeError: broken") == 7


def test_a_file_in_the_place_of_a_run_is_a_wrong_use(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    answer = doctor(tmp_path / "run")
    assert answer.exit_code == 2
    assert "not a folder" in answer.output
    assert doctor("ducklake:x").exit_code == 2
    assert nearest(tmp_path / "a" / "b") == tmp_path.resolve()
