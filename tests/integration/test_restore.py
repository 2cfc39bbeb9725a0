"""`sdc-guard restore` and `prefetch`, and loading through a cache: each byte is the training's."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from click.testing import CliRunner
from conftest import ROOT, Answer
from in_process import bisect
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from sdc_guard import Guard, load_checkpoint
from sdc_guard.archive.confirmations import AWAITED, Confirmation, add_confirmation
from sdc_guard.archive.convictions import Conviction, add_conviction
from sdc_guard.archive.manifest import Manifest
from sdc_guard.archive.sealing.seal_file import seal_of
from sdc_guard.cli import main
from sdc_guard.errors import UsageError
from sdc_guard.store.run_file import Attempt, RunFile

STEPS = (1, 2, 3)
SIZE = 10**6
FILE = {"torch": "state.pt", "dcp": "__0_0.distcp"}
State = dict[str, torch.Tensor]


def guard_says(*arguments: object, code: int = 0) -> Answer:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return Answer(done.exit_code, done.stdout, done.stderr)


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(40, 60), torch.nn.Linear(60, 2))


def trained(folder: Path, save: Callable[[Guard, Any, int], object], **options: Any) -> list[State]:
    """Train three steps and save after each; the weights that each step left."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    left = []
    options = {"policy": "record", "digest_budget": None, "first_step": 1} | options
    with Guard(model, optimizer, run=folder, **options) as guard:
        for step in STEPS:
            loss = model(torch.randn(8, 40)).square().mean()
            loss.backward()
            guard.observe(loss)
            optimizer.step()
            optimizer.zero_grad()
            save(guard, {"model": model, "optimizer": optimizer}, step)
            left.append({name: one.clone() for name, one in model.state_dict().items()})
    return left


def same(found: Any, expected: State) -> bool:
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], tensor) for name, tensor in expected.items()
    )


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[State]]]:
    folder = tmp_path_factory.mktemp("originals")
    return {
        name: (folder / name, trained(
            folder / name, lambda guard, objects, step: guard.checkpoint(objects, step),
            archive_format=name,
        )) for name in FILE
    }  # fmt: skip


@pytest.fixture(params=list(FILE))
def saved(
    request: pytest.FixtureRequest, originals: dict[str, tuple[Path, list[State]]], tmp_path: Path
) -> tuple[Path, list[State], str]:
    """A run that may be damaged, the weights that its steps left, and its large file's name."""
    original, left = originals[request.param]
    return Path(shutil.copytree(original, tmp_path / "run")), left, FILE[request.param]


@pytest.fixture
def run(originals: dict[str, tuple[Path, list[State]]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals["torch"][0], tmp_path / "run"))


def folder_of(run: Path, step: int) -> Path:
    return run / "archive" / f"step={step:06d}"


def flip(path: Path, at: int | None = None) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 4
    path.write_bytes(content)


def test_the_newest_clean_one_comes_back(
    saved: tuple[Path, list[State], str], tmp_path: Path
) -> None:
    run, left, _ = saved
    to = tmp_path / "new" / "start"
    answer = guard_says("restore", run, "--to", to, "--jobs", 3)
    assert answer.out.startswith(f"restored step 3, clean: {to}\n")
    assert same(load_checkpoint(to)["model"], left[2])
    files = {path.name for path in folder_of(run, 3).iterdir()}
    assert {path.name for path in to.iterdir()} == files
    for name in files:
        assert (to / name).read_bytes() == (folder_of(run, 3) / name).read_bytes()
    assert [path.name for path in to.parent.iterdir()] == ["start"]
    scanned = bisect("scan", to, "--json").json["checkpoints"]
    assert [one["status"] for one in scanned] == ["clean"]


def test_newer_ones_are_named_with_the_reason(
    saved: tuple[Path, list[State], str], tmp_path: Path
) -> None:
    run, left, file = saved
    flip(folder_of(run, 2) / file)
    add_conviction(run / "archive", Conviction(1, None, 3, "a wrong file", "step=000003"))
    answer = guard_says("restore", run, "--to", tmp_path / "to", "--json")
    passed = [(one["step"], one["why"]) for one in answer.json["passed_over"]]
    assert passed == [
        (3, "suspect: convicted later: a wrong file"),
        (2, f"{file}: not the bytes that were written, by the checksum of the whole file"),
    ]
    assert [line.split(",")[0] for line in answer.err.splitlines()] == [
        "sdc-guard: passed over step 3", "sdc-guard: passed over step 2",
    ]  # fmt: skip
    assert answer.json["checkpoint"]["step"] == 1
    assert same(load_checkpoint(tmp_path / "to")["model"], left[0])


def test_a_tensor_without_its_digest_is_not_taken(
    saved: tuple[Path, list[State], str], tmp_path: Path
) -> None:
    run, left, _ = saved
    known = Manifest.read(folder_of(run, 3))
    entry = known.tensors["model.0.weight"]
    other = replace(entry, s1=f"{int(entry.s1, 16) ^ 1:016x}")
    replace(known, tensors=known.tensors | {"model.0.weight": other}).write(folder_of(run, 3))
    answer = guard_says("restore", run, "--to", tmp_path / "to")
    assert "passed over step 3, model.0.weight: bytes differ from the recorded" in answer.out
    assert same(load_checkpoint(tmp_path / "to")["model"], left[1])


def test_what_is_lost_is_passed_over_and_none_left_is_told(run: Path, tmp_path: Path) -> None:
    (folder_of(run, 3) / "manifest.json").write_text("{")
    (folder_of(run, 2) / "state.pt").unlink()
    (folder_of(run, 1) / "state.pt").write_bytes(b"short")
    answer = guard_says("restore", run, "--to", tmp_path / "to", code=5)
    assert "passed over step 3, incomplete: manifest.json cannot be read" in answer.out
    assert "passed over step 2, state.pt: missing" in answer.out
    assert "passed over step 1, state.pt: truncated (5 of" in answer.out
    assert answer.err == (
        "sdc-guard: no clean checkpoint among 3 (name one with --step to look at it all the same)\n"
    )
    assert not any("to" in path.name for path in tmp_path.iterdir())


def test_superseded_attempts_do_not_count(run: Path, tmp_path: Path) -> None:
    known = RunFile.read(run)
    replace(known, attempts=(*known.attempts, Attempt(2, 2, time.time()))).write(run)
    answer = guard_says("restore", run, "--to", tmp_path / "to")
    assert answer.out.count("superseded by a later attempt") == 2
    assert "restored step 1, clean" in answer.out
    answer = guard_says("restore", run, "--to", tmp_path / "named", "--step", 3)
    assert "superseded" in answer.err


def test_a_run_without_its_description_comes_back_all_the_same(run: Path, tmp_path: Path) -> None:
    (run / "run.json").unlink()
    answer = guard_says("restore", run, "--to", tmp_path / "to")
    assert "incidents are not known" in answer.err
    assert "restored step 3, clean" in answer.out
    guard_says("restore", tmp_path / "nothing", "--to", tmp_path / "other", code=2)


def test_one_that_was_confirmed_is_clean_in_its_copy_too(run: Path, tmp_path: Path) -> None:
    known = Manifest.read(folder_of(run, 3))
    replace(known, status="untested", reasons=(AWAITED,)).write(folder_of(run, 3))
    assert "passed over step 3, untested: " in guard_says(
        "restore", run, "--to", tmp_path / "x", "--dry-run"
    ).out  # fmt: skip
    one = Confirmation("step=000003", 3, 1, "shadow", "equal", known.created + 1)
    add_confirmation(run / "archive", one)
    assert "step 3, clean" in guard_says("restore", run, "--to", tmp_path / "to").out
    assert Manifest.read(tmp_path / "to").status == "clean"


def test_one_that_is_named_is_taken_or_nothing(run: Path, tmp_path: Path) -> None:
    to = tmp_path / "to"
    answer = guard_says("restore", run, "--to", to, "--step", 7, code=5)
    assert "no checkpoint of step 7 (there are 3, 2, 1)" in answer.err
    flip(folder_of(run, 3) / "state.pt")
    answer = guard_says("restore", run, "--to", to, "--step", 3, code=5)
    assert "the checkpoint of step 3 cannot be restored, state.pt: not the bytes" in answer.err
    answer = guard_says("restore", run, "--to", to, "--step", 3, "--even-if-not-clean", code=5)
    assert not to.exists()
    guard_says("restore", run, "--to", to, "--checkpoint", folder_of(run, 2))
    assert load_checkpoint(to)["step"] == 2
    guard_says("restore", run, "--to", "x", "--checkpoint", tmp_path, code=5)
    guard_says("restore", run, "--to", "x", "--even-if-not-clean", code=2)
    guard_says("restore", run, "--to", "x", "--checkpoint", to, "--step", 2, code=2)


def test_a_doubted_one_needs_consent_and_stays_doubted(run: Path, tmp_path: Path) -> None:
    add_conviction(run / "archive", Conviction(1, 2, 3, "other weights", session="s1"))
    to = tmp_path / "to"
    answer = guard_says("restore", run, "--to", to, "--step", 3, code=5)
    assert "is suspect: a replay proved step 3 wrong" in answer.err
    assert "--even-if-not-clean" in answer.err
    answer = guard_says("restore", run, "--to", to, "--step", 3, "--even-if-not-clean")
    assert "WARNING: the checkpoint of step 3 is NOT CLEAN" in answer.err
    assert Manifest.read(to).status == "suspect"  # where no convictions.jsonl is beside it
    assert bisect("scan", to, "--json").json["checkpoints"][0]["status"] == "suspect"


@pytest.mark.parametrize("there", ["file", "folder", "link"])
def test_nothing_is_overwritten(there: str, run: Path, tmp_path: Path) -> None:
    to = tmp_path / "to"
    if there == "file":
        to.write_text("mine")
    elif there == "link":
        to.symlink_to(tmp_path / "nowhere")
    else:
        to.mkdir()
        (to / "mine").write_text("mine")
    answer = guard_says("restore", run, "--to", to, code=2)
    assert "there is something already" in answer.err
    kept = to / "mine" if there == "folder" else to
    assert kept.is_symlink() if there == "link" else kept.read_text() == "mine"


def test_a_full_disk_leaves_nothing(
    saved: tuple[Path, list[State], str], tmp_path: Path,
    no_space: Callable[[int], AbstractContextManager[None]],
) -> None:  # fmt: skip
    run, _, _ = saved
    with no_space(5000):
        answer = guard_says("restore", run, "--to", tmp_path / "to", code=2)
    assert f"File too large: {tmp_path / 'to'} (lift the limit on files" in answer.err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def _dcp(folder: Path, state: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # because it warns that this is one process
        dcp.save(state, storage_writer=FileSystemWriter(folder), no_dist=True)


def _huggingface(folder: Path, state: dict[str, Any]) -> None:
    folder.mkdir()
    save_file(state["model"], folder / "model.safetensors")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 3}))
    torch.save(state["optimizer"], folder / "optimizer.pt")


def _read_dcp(folder: Path) -> Any:
    found: dict[str, Any] = {"model": network().state_dict()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # because it warns that this is one process
        dcp.load(found, checkpoint_id=folder, no_dist=True)
    return found["model"]


OTHERS: dict[str, tuple[str, Callable[[Path, Any], None], Callable[[Path], Any]]] = {
    "file": ("step-{}.pt", lambda path, state: torch.save(state, path),
             lambda path: torch.load(path, weights_only=True)["model"]),
    "lightning": ("step={}.ckpt", lambda path, state: torch.save(
        {"global_step": 3, "state_dict": state["model"]}, path),
        lambda path: torch.load(path, weights_only=True)["state_dict"]),
    "huggingface": ("checkpoint-{}", _huggingface, lambda p: load_file(p / "model.safetensors")),
    "dcp": ("dcp-{}", _dcp, _read_dcp),
}  # fmt: skip


@pytest.mark.parametrize("kind", list(OTHERS))
def test_what_other_programs_wrote_comes_back_with_its_seal(kind: str, tmp_path: Path) -> None:
    name, write, load = OTHERS[kind]

    def save(guard: Guard, objects: Any, step: int) -> None:
        path = tmp_path / name.format(step)
        write(path, {key: one.state_dict() for key, one in objects.items()})
        seal = guard.seal(path, step, wait=True)
        assert seal is not None

    left = trained(tmp_path / "run", save)
    newest = tmp_path / name.format(3)
    flip(newest if newest.is_file() else max(newest.iterdir(), key=lambda f: f.stat().st_size))
    to = tmp_path / "to"
    answer = guard_says("restore", tmp_path / "run", "--to", to, "--json")
    assert [one["step"] for one in answer.json["passed_over"]] == [3]
    copied = Path(answer.json["load"])
    assert copied == to / name.format(2)
    assert seal_of(copied).read_bytes() == seal_of(tmp_path / name.format(2)).read_bytes()
    assert same(load(copied), left[1])
    assert answer.json["tensors"] >= 4
    scanned = bisect("scan", to, "--json").json["checkpoints"]
    assert [one["status"] for one in scanned] == ["clean"]


def test_a_cache_spares_the_archive(saved: tuple[Path, list[State], str], tmp_path: Path) -> None:
    run, left, _ = saved
    cache = ("--cache", tmp_path / "cache", "--cache-size", "1MB")
    answer = guard_says("prefetch", run, *cache, "--json").json
    assert [one["step"] for one in answer["cached"]] == [3]
    assert 0 < answer["cache_bytes"] == answer["cached"][0]["bytes_read"]
    again = guard_says("prefetch", run, *cache, "--json").json
    assert again["cached"][0]["bytes_read"] == 0
    for path in folder_of(run, 3).iterdir():
        if path.name != "manifest.json":
            path.unlink()  # whoever reads them fails
    kept: dict[str, Any] = {"cache": tmp_path / "cache", "cache_size": SIZE}
    assert same(load_checkpoint(run, **kept)["model"], left[2])
    fresh = network()
    load_checkpoint(run, into={"model": fresh}, **kept)
    assert same(fresh.state_dict(), left[2])
    answer = guard_says("restore", run, "--to", tmp_path / "to", *cache, "--json").json
    assert answer["bytes_from_cache"] == answer["bytes"]
    assert same(load_checkpoint(tmp_path / "to")["model"], left[2])


def test_damage_in_the_cache_is_told_and_no_matter(
    saved: tuple[Path, list[State], str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, left, file = saved
    kept: dict[str, Any] = {"cache": tmp_path / "cache", "cache_size": SIZE}
    assert same(load_checkpoint(run, **kept)["model"], left[2])
    size = (folder_of(run, 3) / file).stat().st_size

    def entry() -> Path:
        (found,) = (tmp_path / "cache" / "entries").glob(f"*-{size}")
        return found

    whole = entry().read_bytes()
    weights = whole.index(left[2]["0.weight"].numpy().tobytes())
    flip(entry(), weights + 7)
    fresh = network()
    load_checkpoint(run, into={"model": fresh}, **kept)
    assert same(fresh.state_dict(), left[2])
    assert f"{file}: the bytes in the cache are other ones" in caplog.text
    load_checkpoint(run, **kept)
    assert entry().read_bytes() == whole
    flip(entry())
    words = ("--cache", tmp_path / "cache", "--cache-size", "1MB")
    answer = guard_says("restore", run, "--to", tmp_path / "to", *words)
    assert "the bytes in the cache are other ones" in answer.err
    assert same(load_checkpoint(tmp_path / "to")["model"], left[2])
    flip(entry())
    assert "other ones" in guard_says("prefetch", run, *words).err
    assert entry().read_bytes() == whole


def test_only_what_a_rank_needs_is_cached(
    originals: dict[str, tuple[Path, list[State]]], tmp_path: Path
) -> None:
    run, left = originals["dcp"]
    fresh = network()
    known = Manifest.read(folder_of(run, 3))
    load_checkpoint(run, into={"model": fresh}, cache=tmp_path / "cache", cache_size=SIZE)
    assert same(fresh.state_dict(), left[2])
    there = {path.name.partition("-")[0] for path in (tmp_path / "cache" / "entries").iterdir()}
    read = {file.xxh3 for file in known.files if file.name != ".metadata"}  # which nobody reads
    assert there == read


def test_what_does_not_fit_goes_past(
    saved: tuple[Path, list[State], str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, left, _ = saved
    assert same(load_checkpoint(run, cache=tmp_path / "c", cache_size=99)["model"], left[2])
    assert "do not fit into the cache of 99" in caplog.text
    assert not any((tmp_path / "c" / "entries").iterdir())
    words = ("--cache", tmp_path / "c", "--cache-size")
    assert "larger --cache-size" in guard_says("prefetch", run, *words, "99B", code=2).err
    guard_says("restore", run, "--to", tmp_path / "to", *words, "99B")
    one = Manifest.read(folder_of(run, 3)).bytes
    answer = guard_says("prefetch", run, *words, f"{2 * one + 5000}B", "--last", 3, "--json").json
    assert [row["step"] for row in answer["cached"]] == [3, 2]
    with pytest.raises(UsageError, match="belong together"):
        load_checkpoint(run, cache=tmp_path / "c")


def test_a_damaged_archive_is_no_fault_of_the_cache(
    saved: tuple[Path, list[State], str], tmp_path: Path
) -> None:
    run, _, file = saved
    flip(folder_of(run, 3) / file)
    words = ("--cache", tmp_path / "c", "--cache-size", "1MB")
    answer = guard_says("prefetch", run, *words)
    assert f"passed over step 3, {file}: not the bytes" in answer.out
    assert "cached step 2" in answer.out
    answer = guard_says("restore", run, "--to", tmp_path / "to", *words, "--json")
    assert answer.json["checkpoint"]["step"] == 2
    assert answer.json["bytes_from_cache"] == answer.json["bytes"]


@pytest.mark.parametrize("name", ["restore", "prefetch"])
def test_the_help_says_what_a_page_of_a_manual_does(name: str) -> None:
    text = guard_says(name, "--help").out
    assert "Exit codes: 0" in text
    examples = [line for line in text.splitlines() if line.strip().startswith("sdc-guard")]
    assert len(examples) > 1
    for line in examples:
        program, called, *words = shlex.split(line)
        assert (program, called) == ("sdc-guard", name)
        main.commands[name].make_context(name, words)


def test_the_commands_of_the_document_are_understood() -> None:
    text = (ROOT / "docs" / "recovery.md").read_text(encoding="utf-8")
    found = re.findall(r"^(?:\*/10 .*)?sdc-guard (restore|prefetch) (.*)$", text, re.MULTILINE)
    assert len(found) == 4
    for name, words in found:
        main.commands[name].make_context(name, shlex.split(words))
