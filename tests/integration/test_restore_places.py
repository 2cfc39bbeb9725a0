"""`sdc-guard restore` and `prefetch`: where to, from what, and stopped on the way."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from sdc_guard import Guard, load_checkpoint
from sdc_guard.archive.cache.cache import Cache
from sdc_guard.archive.cache.place import CachedPlace
from sdc_guard.archive.manifest import Manifest
from sdc_guard.archive.recovery import copying, new_folder
from sdc_guard.cli import main
from sdc_guard.errors import CheckpointMismatch

# of a process that is the only one
pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.distributed is (disabled|unavailable):UserWarning"
)
SIZE = 10**6


def guard_says(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture(scope="module", params=["torch", "dcp"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps in one of the formats."""
    run = tmp_path_factory.mktemp(request.param) / "run"
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 60), torch.nn.Linear(60, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    with Guard(
        model, optimizer, run=run, policy="record", first_step=1, probe_every=None,
        archive_format=request.param,
    ) as guard:  # fmt: skip
        for step in (1, 2, 3):
            model(torch.randn(4, 40)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            guard.checkpoint({"model": model, "optimizer": optimizer}, step)
    return run


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def folder_of(run: Path, step: int) -> Path:
    return run / "archive" / f"step={step:06d}"


def test_where_nothing_may_be_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(run.rglob("*"))
    for to in ("step=000099", "step=000003/copy", "new"):
        told = guard_says("restore", run, "--to", run / "archive" / to, code=2)
        assert "DIR lies in the archive" in told
    (tmp_path / "link").symlink_to(run)
    guard_says("restore", run, "--to", tmp_path / "link" / "archive" / "new", code=2)
    cache = ("--cache", run / "archive" / "cache", "--cache-size", "1MB")
    assert "the cache lies in the archive" in guard_says("prefetch", run, *cache, code=2)
    guard_says("restore", run, "--to", tmp_path / "to", *cache, code=2)
    assert sorted(run.rglob("*")) == before
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert "that is the folder one is in: ." in guard_says("restore", run, "--to", ".", code=2)
    assert "lies in a run, and is none" in (told := guard_says(
        "restore", run / "archive", "--to", tmp_path / "to", code=2
    ))  # fmt: skip
    assert f"give {run}" in told
    told = guard_says("restore", run, "--to", run / "run.json" / "x", code=2)
    assert "what is above it is a file" in told
    monkeypatch.setattr(new_folder.os.path, "ismount", lambda path: Path(path).name == "empty")
    monkeypatch.chdir(tmp_path)
    assert "a disk is mounted there" in guard_says("restore", run, "--to", "empty", code=2)


@pytest.mark.parametrize("name", ["n" * 250, "zwölf\n*[x] ü", "ü" * 120])
def test_names_of_every_kind(run: Path, tmp_path: Path, name: str) -> None:
    old = tmp_path / f"{new_folder._hidden(tmp_path / name)}abc.partial"
    old.mkdir()
    os.utime(old, (0, 0))
    guard_says("restore", run, "--to", tmp_path / name)
    assert load_checkpoint(tmp_path / name)["step"] == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "run"])


def test_an_error_of_writing_says_where_and_what_to_do(tmp_path: Path) -> None:
    to = tmp_path / "to"
    for number, remedy in (
        (errno.ENOSPC, "make room"), (errno.EFBIG, "ulimit -f"), (errno.EROFS, "may be written"),
        (errno.EIO, "name another folder"),
    ):  # fmt: skip
        for name in (None, str(tmp_path), str(tmp_path / ".to.123.partial" / "state.pt")):
            told = new_folder.unwritten(to, OSError(number, os.strerror(number), name))
            assert told is not None
            assert (told.where, remedy in told.next_step) == (str(to), True)
            assert os.strerror(number) in told.what
    for name in (tmp_path / "run/archive/step=000001/manifest.json", tmp_path / "tool"):
        assert new_folder.unwritten(to, OSError(errno.EIO, "x", str(name))) is None


def test_the_file_in_its_folder_is_that_checkpoint(run: Path, tmp_path: Path) -> None:
    (inside,) = (
        path for path in folder_of(run, 2).iterdir() if path.name in ("state.pt", ".metadata")
    )
    guard_says("restore", run, "--to", tmp_path / "to", "--checkpoint", inside)
    assert load_checkpoint(tmp_path / "to")["step"] == 2


def test_copies_of_weights_are_passed_over_and_restored_when_named(
    run: Path, tmp_path: Path
) -> None:
    options = ("--count", 1, "--weights", 2, "--policy", "keep-last")
    guard_says("keep", run, *options, "--apply")
    copies = sorted(path.name for path in (run / "archive").glob("weights=*"))
    assert copies == ["weights=000001", "weights=000002"]
    assert "passed over" not in guard_says("restore", run, "--to", tmp_path / "newest")
    told = guard_says("restore", run, "--to", tmp_path / "to", "--step", 2, code=5)
    assert "of step 2 there are the weights alone" in told
    assert str(run / "archive" / "weights=000002") in told
    shutil.rmtree(folder_of(run, 3))
    cache = ("--cache", tmp_path / "cache", "--cache-size", "1MB")
    for words in (("restore", run, "--to", tmp_path / "to"), ("prefetch", run, *cache)):
        told = guard_says(*words, code=5)
        assert told.count("weights alone, without the optimizer: nothing resumes from it") == 2
        assert "no clean checkpoint among 2" in told
    named = run / "archive" / "weights=000002"
    told = guard_says("restore", run, "--to", tmp_path / "to", "--checkpoint", named)
    assert "restored step 2, weights alone" in told
    assert load_checkpoint(tmp_path / "to").keys() == {"model", "step"}


def test_a_dry_run_says_what_thinning_frees(run: Path) -> None:
    options = ("--count", 1, "--weights", 2, "--policy", "keep-last", "--json")
    foretold = json.loads(guard_says("keep", run, *options))["bytes_by_thinning"]
    done = json.loads(guard_says("keep", run, *options, "--apply"))
    freed = sum(one["bytes"] for one in done["thinned"])
    copies = (run / "archive").glob("weights=*/*")
    overhead = sum(path.stat().st_size for path in copies) - 2 * 4 * (40 * 60 + 60 + 60 * 2 + 2)
    assert foretold == freed + overhead
    assert foretold > 0


def stopped_after(pieces: list[int]) -> threading.Thread:
    """Ctrl-C, once the second piece is written."""

    def stop() -> None:
        until = time.monotonic() + 30
        while pieces[0] < 2 and time.monotonic() < until:
            time.sleep(0.002)
        main_thread = threading.main_thread().ident
        assert main_thread is not None
        signal.pthread_kill(main_thread, signal.SIGINT)

    thread = threading.Thread(target=stop)
    thread.start()
    return thread


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pieces of 512 bytes take 20 ms each: a file of it takes a second and more."""
    write, pieces = copying._write, [0]

    def slowly(*given: object) -> None:
        pieces[0] += 1
        time.sleep(0.02)
        write(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(copying, "_write", slowly)
    monkeypatch.setattr(copying, "PIECE", 512)
    return pieces


@pytest.mark.parametrize("command", ["restore", "prefetch", "load"])
def test_ctrl_c_leaves_nothing_and_waits_for_no_file(
    run: Path, tmp_path: Path, slow: list[int], command: str
) -> None:
    to, cache = tmp_path / "to", tmp_path / "cache"
    all_pieces = sum(path.stat().st_size for path in folder_of(run, 3).iterdir()) // 512
    thread = stopped_after(slow)
    if command == "load":
        with pytest.raises(KeyboardInterrupt):
            load_checkpoint(run, cache=cache, cache_size=SIZE)
    elif command == "restore":
        assert "stopped by Ctrl-C" in guard_says("restore", run, "--to", to, code=130)
    else:
        words = ("prefetch", run, "--cache", cache, "--cache-size", "1MB", "--jobs", 2)
        guard_says(*words, code=130)
    thread.join()
    assert slow[0] < all_pieces / 2
    assert not to.exists()
    assert not list(tmp_path.glob(".to.*"))
    assert not list(cache.glob("partial/*"))


def test_trouble_of_a_cache_is_told_once(run: Path, tmp_path: Path) -> None:
    told: list[str] = []
    cache = Cache(tmp_path / "cache", SIZE, told.append)
    folder = folder_of(run, 3)
    manifest = Manifest.read(folder)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch, CachedPlace(folder, manifest, cache) as place:
        patch.setattr("sdc_guard.archive.cache.cache.copy_into", full)
        names = [one.name for one in manifest.files] or [manifest.file]
        place.ready(names)
        assert [place.file(name) for name in names] == [folder / name for name in names]
    assert len(told) == 1
    assert "No space left on device" in told[0]


def test_one_file_is_looked_at_as_it_is_loaded(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that changes between its checksum and the load is not taken."""
    folder = folder_of(run, 3)
    path = folder / "state.pt"
    if not path.exists():
        return
    weight = load_checkpoint(folder)["model"]["0.weight"].numpy().tobytes()
    content = path.read_bytes()
    changed = bytearray(content)
    changed[content.index(weight) + 7] ^= 1
    whole = torch.load

    def later(file: Path, **options: object) -> object:
        path.write_bytes(changed)
        with contextlib.suppress(OSError):
            return whole(file, **options)  # type: ignore[arg-type]
        return None

    monkeypatch.setattr(torch, "load", later)
    with pytest.raises(CheckpointMismatch, match=r"model\.0\.weight: bytes differ"):
        load_checkpoint(folder)
