"""What a guard does with checkpoints by itself, and what it leaves alone in a replay."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from sdc_guard import Guard, guard_archive
from sdc_guard.guard_archive import GuardArchive
from sdc_guard.moment import Moment
from sdc_guard.shadow_gate import SEVERAL
from sdc_guard.store.writer import Health


class Made:
    """A guard's archive, and what it is made of, which only notes what it is asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.parts = {
            name: Mock(name=name) for name in ("Keeper", "Checkpoints", "Seals", "ShadowGate")
        }
        for name, part in self.parts.items():
            monkeypatch.setattr(guard_archive, name, part)
        self.health = Health()
        world_size = options.pop("world_size", 1)
        place: Any = SimpleNamespace(rank=0, world_size=world_size)
        given: dict[str, Any] = {
            "warn": False, "replayed": False, "shadow": ("batch", max), "verify_archive": 4,
            "keep": (12, 24), "archive_format": "dcp", **options,
        }  # fmt: skip
        self.archive = GuardArchive(
            Path("/run"), torch.nn.Linear(1, 1), place, Mock(), Mock(), self.health, Mock(), **given
        )

    def is_made(self, name: str) -> bool:
        return bool(self.parts[name].called)

    def __getattr__(self, name: str) -> Mock:
        """The one that was made of `Keeper`, `Checkpoints` and so on, in small letters."""
        found: Mock = {key.lower(): part for key, part in self.parts.items()}[name].return_value
        return found


def now(rank: int = 0) -> Any:
    return Moment(7, 7, SimpleNamespace(rank=rank), Mock())  # type: ignore[arg-type]


def test_a_replay_saves_and_neither_seals_nor_compares_nor_deletes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training, replay = Made(monkeypatch), Made(monkeypatch, replayed=True)
    assert (training.archive.seals, replay.archive.seals) == (True, False)
    assert not replay.is_made("Keeper")
    assert not replay.is_made("ShadowGate")
    assert replay.parts["Checkpoints"].call_args.kwargs["keeper"] is None
    assert training.parts["Keeper"].call_args.args == (Path("/run"), 12, 24)
    assert training.parts["Checkpoints"].call_args.kwargs == {
        "warn": False, "keeper": training.keeper, "archive_format": "dcp",
    }  # fmt: skip
    assert training.parts["Seals"].call_args.kwargs == {"warn": False}
    replay.archive.save({}, now(), wait=True)
    assert replay.checkpoints.save.called


def test_what_a_replaying_guard_is_asked_to_seal_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDC_GUARD_RUN", str(tmp_path / "replay"))
    model = torch.nn.Linear(2, 1)
    with Guard(model, torch.optim.SGD(model.parameters()), run=tmp_path / "run") as guard:
        torch.save(model.state_dict(), tmp_path / "step-0.pt")
        assert guard.seal(tmp_path / "step-0.pt", 0, wait=True) is None
    assert not list(tmp_path.glob("*.sdc-seal.json"))
    assert not (tmp_path / "run").exists()


def test_checkpoints_of_several_ranks_are_not_compared_and_that_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Made(monkeypatch, world_size=2)
    assert not made.is_made("ShadowGate")
    assert made.archive.untold == [SEVERAL]
    for options in ({"shadow": None}, {"verify_archive": None}):
        other = Made(monkeypatch, world_size=2, **options)
        assert other.archive.untold == []


def test_what_was_saved_is_compared_and_a_failure_of_that_is_counted_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Made(monkeypatch)
    made.checkpoints.save.return_value = folder = Path("/run/archive/step=000007")
    made.shadowgate.compare_if_due.side_effect = RuntimeError("no memory")
    objects: dict[str, Any] = {"model": 1}
    moment = now()
    assert made.archive.save(objects, moment, wait=False) == folder
    made.checkpoints.save.assert_called_once_with(objects, moment, wait=False)
    assert made.shadowgate.compare_if_due.call_args.args[:2] == (folder, objects)
    assert made.health.errors == 1
    made.checkpoints.save.return_value = None  # it is not written yet
    assert made.archive.save(objects, moment, wait=False) is None
    assert made.shadowgate.compare_if_due.call_count == 1


def test_rank_0_seals_and_the_others_say_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(monkeypatch)
    first, second = now(0), now(1)
    assert made.archive.seal(Path("/x"), first, wait=True) is made.seals.seal.return_value
    made.seals.seal.assert_called_once_with(Path("/x"), first, wait=True)
    assert not made.seals.announce.called
    assert made.archive.seal(Path("/x"), second, wait=True) is None
    made.seals.announce.assert_called_once_with(second)
    assert made.seals.seal.call_count == 1


def test_what_is_under_way_is_collected_waited_for_and_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Made(monkeypatch)
    made.archive.step_ended()
    made.seals.collect.assert_called_once_with()
    assert made.archive.written(3.0) is made.checkpoints.wait.return_value
    made.checkpoints.wait.assert_called_once_with(3.0)
    assert not made.checkpoints.close.called
    made.archive.close()
    assert made.checkpoints.close.called
    assert made.seals.close.called
