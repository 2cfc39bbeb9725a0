"""A run's folder with checkpoints whose manifests are true and whose content is of no interest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from segment_writers import SegmentWriter

from sdc_guard.archive.manifest import Manifest, Status
from sdc_guard.archive.save import LATEST
from sdc_guard.cli import main
from sdc_guard.store.run_file import Attempt, RunFile

T0 = 1_700_000_000.0
SIX_HOURS = 21600.0


class MadeRun:
    """Checkpoints every 100 steps and six hours."""

    def __init__(self, folder: Path, *attempts: tuple[int, int]) -> None:
        self.folder, self.archive = folder, folder / "archive"
        self.archive.mkdir(parents=True)
        self.started(*(attempts or ((1, 0),)))
        SegmentWriter(folder, "w").steps(0, 1)

    def started(self, *attempts: tuple[int, int]) -> None:
        """Write run.json with these (attempt, first step)."""
        RunFile("run", 1, (), tuple(Attempt(*one, T0) for one in attempts)).write(self.folder)

    def save(
        self, step: int, *, attempt: int = 1, status: Status = "clean", name: str | None = None,
        latest: bool = True, **changes: Any,
    ) -> Path:  # fmt: skip
        """One checkpoint, and LATEST on it."""
        folder = self.archive / (name or f"step={step:06d}")
        folder.mkdir()
        (folder / "state.pt").write_bytes(b"x" * 50)
        created = T0 + step / 100 * SIX_HOURS
        values = {"file": "state.pt", "bytes": 50, "tensors": {}, "created": created} | changes
        Manifest(step, step, attempt, status, (), **values).write(folder)
        if latest:
            (self.archive / LATEST).write_text(folder.name + "\n")
        return folder

    def saves(self, count: int) -> MadeRun:
        """Steps 0, 100, and so on."""
        for number in range(count):
            self.save(100 * number)
        return self

    @property
    def steps(self) -> list[int]:
        """Of the checkpoints that are there."""
        return sorted(int(path.name[5:11]) for path in self.archive.glob("step=*"))

    def incident(self, opened: int, closed: int | None = None, *, attempt: int = 1) -> None:
        """A row of a statistic's incident."""
        evidence = json.dumps({"last_step": opened, "proven": False})
        SegmentWriter(self.folder, f"w{attempt}", attempt=attempt).write(
            "incidents", [opened if closed is None else closed], incident=[1], opened=[opened],
            closed=[closed], verdict=["undetermined"], evidence=[evidence],
        )  # fmt: skip

    def search(self, *events: dict[str, Any], marked: bool = True) -> Path:
        """A session 0001 of a search with this journal."""
        folder = self.folder / "bisect" / "0001"
        folder.mkdir(parents=True)
        lines = [{"event": "start", "asked": {}}, *events]
        journal = folder / "journal.jsonl"
        journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
        if marked:
            (folder.parent / "open").write_text("0001\n")
        return journal


def keep(run: MadeRun, *options: object, code: int = 0) -> Result:
    """`sdc-guard keep` on it, which must end with this code."""
    done = CliRunner().invoke(main, ["keep", str(run.folder), *map(str, options)])
    assert done.exit_code == code, done.output
    return done


def apply(run: MadeRun, count: int = 2, *options: object) -> dict[str, Any]:
    """Keep the newest ones and no suspect, and delete; what --json says."""
    policy = ("--policy", "keep-last", "--suspects", 0)
    done = keep(run, "--count", count, *policy, "--apply", "--json", *options)
    found: dict[str, Any] = json.loads(done.stdout)
    return found
