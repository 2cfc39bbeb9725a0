"""Runs that no guard recorded: their log of losses against a replay's."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import preloaded
import pytest
from conftest import bisect

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import bisect_campaign as campaign
from bisect_training import EVERY, STEPS, Plan, train

from forensics.foreign_losses import read_losses
from forensics.index import index
from forensics.interval import asked
from forensics.journal import Session
from forensics.loss_verify import LossVerifier
from forensics.result import Result
from sdc_guard.errors import CommandFailed, NotReproducible
from sdc_guard.inject.fault import Fault

SCRIPT = Path(campaign.__file__).with_name("bisect_training.py")
PLAN = Plan(seed=2)
FAULT = Fault("weight", 15, "middle.weight", 7, 28)


@dataclass(frozen=True)
class Plain:
    """Replays in this process, with a log and no guard, or with a guard."""

    plan: Plan
    guarded: bool = False

    def inputs(self) -> dict[str, Any]:
        return {}

    def replay(self, checkpoint: Any, until: int, target: Path, capture: Any = None) -> Path:
        target.mkdir(parents=True)
        log = None if self.guarded else target / "losses.csv"
        train(target, self.plan, until, checkpoint.path, log=log)
        return target


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Plan], Path]:
    """The folder of a run without a guard: torch.save files and losses.csv."""
    trained: dict[str, Path] = {}

    def one(plan: Plan) -> Path:
        if repr(plan) not in trained:
            folder = tmp_path_factory.mktemp("plain")
            train(folder, plan, log=folder / "losses.csv")
            trained[repr(plan)] = folder
        return trained[repr(plan)]

    return one


def verified(folder: Path, log: Path, command: Plain, start: int = EVERY) -> Result:
    told = read_losses(log)
    interval = asked(index(folder), start, None, max(told.losses))
    verifier = LossVerifier(
        told.losses, told.notes, command, Session.new(folder), lambda line: None
    )
    return verifier.verify(interval.start, interval.until, interval.earlier, interval.after)


def rounded(log: Path, target: Path, decimals: int) -> Path:
    with log.open() as file:
        head, *rows = csv.reader(file)
    with target.open("w", newline="") as file:
        csv.writer(file).writerows([head, *((s, round(float(x), decimals)) for s, x in rows)])
    return target


@pytest.mark.parametrize("guarded", [False, True])
def test_a_clean_run_replays_as_logged(plain: Callable[[Plan], Path], guarded: bool) -> None:
    folder = plain(PLAN)
    found = verified(folder, folder / "losses.csv", Plain(PLAN, guarded))
    assert (found.first_corrupt, found.last_clean, found.exit_code) == (None, STEPS, 0)
    assert not found.exact
    assert not found.proven
    text = " ".join(found.evidence)
    assert "the losses of 18 steps replay as they were logged" in text
    assert "a loss does not show bits that it does not depend on" in text


@pytest.mark.parametrize("start", [6, 12])
def test_a_fault_is_a_range_up_to_the_first_loss_that_differs(
    plain: Callable[[Plan], Path], start: int
) -> None:
    folder = plain(replace(PLAN, faults=(FAULT,)))
    found = verified(folder, folder / "losses.csv", Plain(PLAN), start)
    assert (found.last_clean, found.first_corrupt) == (start, 15)
    assert (found.exact, found.proven, found.exit_code) == (False, True, 3)
    assert (found.kind, found.verdict, found.tensors) == ("unknown", "undetermined", ())
    assert found.evidence[0].startswith("step 15 is the first whose loss differs: logged ")


def test_a_rounded_log_says_so(plain: Callable[[Plan], Path], tmp_path: Path) -> None:
    folder = plain(PLAN)
    log = rounded(folder / "losses.csv", tmp_path / "rounded.csv", 4)
    found = verified(folder, log, Plain(PLAN))
    assert found.first_corrupt is None
    assert "losses rounded to 4 decimals: no smaller difference shows" in found.evidence
    low = replace(PLAN, faults=(replace(FAULT, bit=2),))  # far below the fourth decimal
    folder = plain(low)
    assert verified(folder, folder / "losses.csv", Plain(PLAN)).first_corrupt is not None
    log = rounded(folder / "losses.csv", tmp_path / "low.csv", 2)
    assert verified(folder, log, Plain(PLAN), 12).first_corrupt is None


@pytest.mark.parametrize("forget", ["generator", "position"])
def test_an_inexact_resume_is_not_reproducible(plain: Callable[[Plan], Path], forget: str) -> None:
    folder = plain(PLAN)
    with pytest.raises(NotReproducible, match="generators, buffers or the data position"):
        verified(folder, folder / "losses.csv", Plain(replace(PLAN, forget=(forget,))), 12)


def test_a_replay_without_losses_is_told(plain: Callable[[Plan], Path]) -> None:
    class Silent(Plain):
        def replay(self, checkpoint: Any, until: int, target: Path, capture: Any = None) -> Path:
            target.mkdir(parents=True)
            return target

    folder = plain(PLAN)
    with pytest.raises(CommandFailed, match="left no losses"):
        verified(folder, folder / "losses.csv", Silent(PLAN))


def test_the_command(plain: Callable[[Plan], Path]) -> None:
    folder = plain(replace(PLAN, faults=(FAULT,)))
    resume = [preloaded.python(), SCRIPT, "{run}", "--resume", "{ckpt}", "--until", "{step}"]
    answer = bisect(
        "verify", folder, "--losses", folder / "losses.csv", "--from", 12, "--to", 16, "--json",
        "--", *resume, "--seed", 2, "--log", "{run}/losses.csv",
    )  # fmt: skip
    assert answer.code == 3, answer.err
    assert (answer.json["last_clean"], answer.json["first_corrupt"]) == (12, 15)
