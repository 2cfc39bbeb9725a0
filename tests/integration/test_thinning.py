"""`sdc-guard keep --weights`: copies of old checkpoints' weights, from files of both kinds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import preloaded
import pytest
import torch
from click.testing import CliRunner
from in_process import bisect

from forensics.interval import asked, from_bracket
from forensics.readers import guard_archive
from forensics.readers.known import reader_of
from sdc_guard import Guard, load_checkpoint
from sdc_guard.archive.compare import check_bytes
from sdc_guard.archive.gate import examine
from sdc_guard.archive.manifest import FILE, WEIGHTS_SCHEMA, Manifest
from sdc_guard.archive.restore import checkpoints
from sdc_guard.cli import main
from sdc_guard.digest import digest_tensor
from sdc_guard.errors import ArchiveIncomplete, CheckpointMismatch

# of a process that is the only one
pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.distributed is (disabled|unavailable):UserWarning"
)
# `keep` on copies of a run: the first is not killed and counts its changes of files; each other one
# kills itself at one of them: at all, or at as many as are asked for, chosen by a seed, and those
# at which the copy gets its name and the whole one loses its own, with those after them
KILLED = """
import os, random, shutil, signal, sys
from pathlib import Path
import torch
from sdc_guard.archive.compare import check_bytes
from sdc_guard.archive.manifest import Manifest
from sdc_guard.archive.retention.inventory import Inventory
from sdc_guard.cli import main
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree", "os.link"}
made, (count, seed), options = Path(sys.argv[1]), map(int, sys.argv[2:4]), sys.argv[4:]
torch.set_num_threads(1)
Inventory(made).look(0.0)  # loads what would be loaded in each process
for folder in (made / "archive").glob("step=*"):
    check_bytes(folder, Manifest.read(folder))

def kept(run, number, note=lambda line: None):
    shutil.copytree(made, run)
    pid = os.fork()
    if not pid:
        left = number
        def changes(event, found):
            global left
            write = event == "open" and (found[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if str(run) in str(found[:1]) and (event in CHANGES or write):
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
                note(event)
        globals()["left"] = left
        sys.addaudithook(changes)
        main(["keep", str(run), *options], standalone_mode=False)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

events = made.with_name("events")
with events.open("a", buffering=1) as file:
    assert kept(made.with_name("whole"), -1, lambda line: print(line, file=file)) == 0
shutil.rmtree(made.with_name("whole"))
seen = events.read_text().split()
moments = range(len(seen))
if count < len(seen):
    names = [at for at, event in enumerate(seen) if event == "os.rename"][-2:]
    chosen = {at + beside for at in names for beside in (0, 1)}
    moments = sorted(chosen | {*random.Random(seed).sample(moments, count)})
for number in moments:
    code = kept(made.with_name(f"killed-{number}"), number)
    assert code in (0, -9), code
"""
OPTIONS = ("--count", "2", "--weights", "2", "--policy", "keep-last", "--apply")


class Net(torch.nn.Module):
    """With a buffer and tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.head = torch.nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.norm(self.embed(x)))
        return out


def trained(run: Path, steps: int, archive_format: str) -> dict[int, dict[str, torch.Tensor]]:
    """The model's state after each step, which was saved with an optimizer and more."""
    torch.manual_seed(3)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    states = {}
    options: Any = {"policy": "record", "probe_every": None, "archive_format": archive_format}
    with Guard(model, optimizer, run=run, **options) as guard:
        for step in range(steps):
            loss = model(torch.randint(11, (8,))).square().mean()
            loss.backward()
            guard.observe(loss)
            optimizer.step()
            optimizer.zero_grad()
            objects = {"model": model, "optimizer": optimizer, "rng": torch.get_rng_state()}
            guard.checkpoint(objects | {"note": {"epoch": 1}}, step)
            states[step] = {k: v.detach().clone() for k, v in model.state_dict().items()}
    return states


@pytest.fixture(scope="module", params=["torch", "dcp"])
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[int, dict[str, torch.Tensor]]]:
    """A run of six steps, saved in one of the formats, and its states."""
    run = tmp_path_factory.mktemp(request.param) / "run"
    states = trained(run, 6, request.param)
    assert [one.clean for one in checkpoints(run / "archive")] == [True] * 6
    return run, states


@pytest.fixture
def run(made: tuple[Path, Any], tmp_path: Path) -> Path:
    return Path(shutil.copytree(made[0], tmp_path / "run"))


def keep(run: Path, *options: str) -> str:
    done = CliRunner().invoke(main, ["keep", str(run), *options])
    assert done.exit_code == 0, done.output
    return done.output


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "archive").glob("[sw]*=*"))


LEFT = ["step=000004", "step=000005", "weights=000002", "weights=000003"]


def test_a_copy_has_the_weights_and_nothing_else(run: Path, made: tuple[Path, Any]) -> None:
    states = made[1]
    before = names(run)
    dry = keep(run, *OPTIONS[:-1])
    assert names(run) == before
    assert "2 kept, 2 to thin to their weights, 2 to delete" in dry
    done = keep(run, *OPTIONS)
    assert "2 deleted, 2 thinned to their weights, " in done
    assert names(run) == LEFT
    assert not list((run / "archive").glob(".step*"))
    for step in (2, 3):
        folder = run / "archive" / f"weights={step:06d}"
        original = Manifest.read(made[0] / "archive" / f"step={step:06d}")
        manifest = Manifest.read(folder)
        assert json.loads((folder / FILE).read_text())["schema"] == WEIGHTS_SCHEMA
        assert manifest.created == original.created
        assert manifest.origin["format"] == original.format
        assert check_bytes(folder, manifest).sound
        loaded = load_checkpoint(folder)
        assert set(loaded) == {"model", "step"}
        assert loaded["step"] == step
        assert loaded["model"].keys() == states[step].keys()
        for name, tensor in states[step].items():
            assert torch.equal(loaded["model"][name], tensor), name
            entry = manifest.tensors[f"model.{name}"]
            assert entry.digest == digest_tensor(tensor) == original.tensors[f"model.{name}"].digest
    assert [one.status for one in examine(run)] == ["clean"] * 4
    again = keep(run, *OPTIONS)
    assert "2 kept" not in again
    assert "4 kept, nothing to delete" in keep(run, *OPTIONS[:-1])


def test_loading_does_not_resume_from_one(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    keep(run, *OPTIONS)
    assert load_checkpoint(run)["step"] == 5
    folder = run / "archive" / "weights=000003"
    model = Net()
    load_checkpoint(folder, into={"model": model})
    assert torch.equal(
        model.state_dict()["norm.weight"], load_checkpoint(folder)["model"]["norm.weight"]
    )
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(CheckpointMismatch, match="weights alone, without 'optimizer'"):
        load_checkpoint(folder, into={"optimizer": optimizer})
    for step in (4, 5):
        shutil.rmtree(run / "archive" / f"step=00000{step}")
    with pytest.raises(ArchiveIncomplete, match="2 of weights alone, without the optimizer, are "):
        load_checkpoint(run)


def test_the_forensics_read_it(run: Path) -> None:
    keep(run, *OPTIONS)
    found = guard_archive.find(run)
    assert [(one.step, one.resumable) for one in sorted(found, key=lambda x: x.step)] == [
        (2, False), (3, False), (4, True), (5, True),
    ]  # fmt: skip
    archive = run / "archive"
    assert all(
        one["status"] == "clean" for one in bisect("scan", archive, "--json").json["checkpoints"]
    )
    assert [one["step"] for one in bisect("index", archive, "--json").json["checkpoints"]] == [
        2,
        3,
        4,
        5,
    ]
    by_step = {one.step: one for one in found}
    content = reader_of("sdc-guard").open(by_step[3])
    assert "model.norm.running_mean" in {*content.tensors, *content.aliases}
    answer = bisect("run", run, "--json").json
    assert (answer["last_clean"], answer["first_corrupt"]) == (5, None)
    candidates = sorted(found, key=lambda one: one.step)
    with pytest.raises(ArchiveIncomplete, match="of step 3 there are the weights alone"):
        asked(candidates, 3, 5)
    whole = [by_step[2].__class__(1, by_step[2].path, "sdc-guard", "clean"), *candidates]
    assert from_bracket(whole, 3, 4).start.step == 1  # the whole one before


def test_one_that_rotted_stays_whole_and_a_rotten_copy_is_found(run: Path) -> None:
    folder = run / "archive" / "step=000002"
    largest = max(folder.iterdir(), key=lambda path: path.stat().st_size)
    if largest.suffix != ".pt":
        (largest,) = folder.glob("*.distcp")
    weight = load_checkpoint(folder)["model"]["norm.weight"].numpy().tobytes()
    content = bytearray(largest.read_bytes())
    content[content.index(weight) + 3] ^= 1
    largest.write_bytes(content)
    said = keep(run, *OPTIONS)
    assert "step=000002 stays whole: " in said
    assert names(run) == ["step=000002", "step=000004", "step=000005", "weights=000003"]
    copy = run / "archive" / "weights=000003" / "weights.pt"
    content = bytearray(copy.read_bytes())
    content[len(content) // 2] ^= 1
    copy.write_bytes(content)
    assert {one.step: one.status for one in examine(run)}[3] == "corrupt"


def killed(folder: Path, count: int, seed: int) -> None:
    """Kill `keep` at so many moments; each time there is the whole one, the copy, or both."""
    trained(folder / "made", 4, "torch")
    options = ("--count", "2", "--weights", "1", "--policy", "keep-last", "--apply")
    given = (str(folder / "made"), str(count), str(seed), *options)
    done = subprocess.run(
        [preloaded.python(), "-c", KILLED, *given], env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False, timeout=150, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    runs = sorted(folder.glob("killed-*"), key=lambda path: int(path.name[7:]))
    assert len(runs) > min(count, 12)
    seen = set()
    for run in runs:
        whole, copy = (run / "archive" / f"{kind}=000001" for kind in ("step", "weights"))
        seen.add((whole.exists(), copy.exists()))
        for one in (whole, copy):
            assert not one.exists() or check_bytes(one, Manifest.read(one)).sound, (run, one)
        assert load_checkpoint(run)["step"] == 3
        keep(run, *options)
        assert names(run) == ["step=000002", "step=000003", "weights=000001"], run
    assert seen == {(True, False), (True, True), (False, True)}  # and never neither


def test_killed_at_some_moments(tmp_path: Path, seed: int) -> None:
    killed(tmp_path, 3, seed)


@pytest.mark.slow
def test_killed_at_any_moment(tmp_path: Path, seed: int) -> None:
    killed(tmp_path, 10**6, seed)
