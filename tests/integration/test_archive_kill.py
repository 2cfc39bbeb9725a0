"""A rank that is killed, hangs or cannot write at any moment of a save: what is left loads.

Never a LATEST that does not load, never steps mixed, and what is called clean is proven.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import preloaded
import pytest
from archive_faults import AFTER, APART, FAULTS, FAULTY, KILL, MEET, OF_RANK_0, PHASES, STALL, Case

from sdc_guard import RunReader, load_checkpoint
from sdc_guard.archive.manifest import Manifest
from sdc_guard.archive.sharded.flat import flattened

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("archive_faults.py")


def cases(seed: int, count: int, worlds: tuple[int, ...]) -> list[Case]:
    """Each phase in turn; rank 0 is killed at each step of its commit, others have any fault."""
    choose = random.Random(seed)
    phases = [*((phase, 0) for phase in OF_RANK_0), *((phase, None) for phase in PHASES)]
    choose.shuffle(phases)
    found = []
    for number in range(count):
        phase, rank = phases[number % len(phases)]
        world = choose.choice(worlds)
        # no disk is needed to meet the other ranks
        fault = KILL
        if number >= len(phases) or (number % 2 and rank is None):
            fault = choose.choice(FAULTS if phase != MEET else (STALL, APART))
        victim = len(found) // 2 % world if rank is None else rank
        found.append(Case(number, world, victim, phase, fault))
    return found


def run_all(folder: Path, which: list[Case], limit: float) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [preloaded.python(), SCRIPT, folder, *which]
    process = subprocess.Popen(
        list(map(str, command)), env=environment, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        out, _ = process.communicate(timeout=limit)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, out.decode()


def judge(folder: Path, case: Case) -> str:
    """Fails if a case left anything wrong; what became of the save with the fault."""
    run = folder / case.name
    codes = [int((folder / f"{case.name}.{rank}.code").read_text()) for rank in range(case.world)]
    printed = "\n".join(
        Path(f"{run}.{rank}.output").read_text(errors="replace") for rank in range(case.world)
    )
    happened = (folder / f"{case.name}.happened").exists()
    for rank, code in enumerate(codes):
        killed = happened and rank == case.rank and case.fault == KILL
        assert code == (-signal.SIGKILL if killed else 0), (str(case), rank, code, printed)
    archive = run / "archive"
    steps = {}
    for path in sorted(archive.glob("step=*")):
        steps[path.name] = sound(path)
    latest = (archive / "LATEST").read_text().strip()
    assert latest in steps, (str(case), latest, printed)
    assert load_checkpoint(run)["step"] in steps.values()
    committed = FAULTY in steps.values()
    told = events(run)
    survivors = [rank for rank in range(case.world) if codes[rank] == 0]
    if not committed:
        assert {rank for rank, step in told if step == FAULTY} >= set(survivors), (str(case), told)
    if not happened:  # on a slow machine the time was over before
        return "not reached"
    if case.fault not in (KILL, STALL):
        assert AFTER in steps.values(), (str(case), printed)
    elif case.fault == KILL:
        assert AFTER not in steps.values()
        assert {rank for rank, step in told if step == AFTER} == set(survivors), (str(case), told)
    return "committed" if committed else "not saved"


def sound(folder: Path) -> int:
    """The step of a committed checkpoint; fails if it does not load, or holds another's parts."""
    manifest = Manifest.read(folder)
    assert manifest.status == "clean", (folder, manifest.reasons)
    content = load_checkpoint(folder)
    leaves: dict[str, Any] = {name: leaf for name, (_, leaf) in flattened(content).items()}
    for name, leaf in leaves.items():
        if name.startswith("marks") or name == "split":
            assert bool((leaf == manifest.step).all()), (folder, name)
    counted = {float(leaf) for name, leaf in leaves.items() if name.endswith(".step")}
    assert counted == {manifest.step + 1.0}
    assert content["step"] == manifest.step
    return manifest.step


def events(run: Path) -> list[tuple[int, int]]:
    with RunReader(run) as reader:
        rows = reader.rows(
            "SELECT rank, step, detail FROM every.events WHERE kind = 'checkpoint not saved'"
        )
    assert all(json.loads(detail)["reason"] for _, _, detail in rows)
    return [(rank, step) for rank, step, _ in rows]


def campaign(folder: Path, which: list[Case], limit: float) -> None:
    run_all(folder, which, limit)
    told = [judge(folder, case) for case in which]
    print({str(case): became for case, became in zip(which, told, strict=True)})
    assert told.count("not reached") <= len(told) / 2
    for case, became in zip(which, told, strict=True):
        if case.fault == KILL and case.phase not in ("latest", "renamed"):
            assert became != "committed", str(case)


def test_whatever_happens_to_a_rank_leaves_a_checkpoint_that_loads(
    tmp_path: Path, seed: int
) -> None:
    campaign(tmp_path, cases(seed, 13, (2,)), 120)


@pytest.mark.slow
def test_whatever_happens_to_a_rank_two_hundred_times(tmp_path: Path, seed: int) -> None:
    campaign(tmp_path, cases(seed, 200, (2, 4)), 1500)
