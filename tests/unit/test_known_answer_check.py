"""The known answer beside a training: faults of the arithmetic are seen, the training is not."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from faulty_arithmetic import FaultyProducts, flip
from torch import nn

from sdc_guard import Alert, Guard, RunReader
from sdc_guard.checks.answers import known_answer
from sdc_guard.checks.answers.known_answer import KnownAnswer
from sdc_guard.ranks import Ranks
from sdc_guard.signals.probe import Probe
from sdc_guard.store import known_answers
from sdc_guard.store.known_answers import FOLDER, all_recorded, first_recorded


def net() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))


def train(run: Path | None, steps: int = 9, **options: Any) -> tuple[nn.Module, list[Alert], Guard]:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    alerts: list[Alert] = []
    guard = None
    if run is not None:
        options = {"policy": "record", "probe_every": 2} | options
        guard = Guard(model, optimizer, run=run, on_alert=alerts.append, **options)
    for _ in range(steps):
        loss = model(torch.randn(4, 6)).square().mean()
        loss.backward()
        if guard is not None:
            guard.observe(loss)
        optimizer.step()
        optimizer.zero_grad()
    if guard is not None:
        guard.close()
        assert guard.health.errors == 0, guard.health.last_error
    return model, alerts, guard  # type: ignore[return-value] # None without a run


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[FaultyProducts | None]:
    """What the arithmetic of the n-th question is disturbed by; None or missing: nothing."""
    faults: list[FaultyProducts | None] = []
    ask, count = Probe.ask, iter(range(10_000))

    def disturbed(probe: Probe) -> Any:
        place = next(count)
        fault = faults[place] if place < len(faults) else None
        if fault is None:
            return ask(probe)
        with fault:
            return ask(probe)

    monkeypatch.setattr(Probe, "ask", disturbed)
    return faults


def one_bit(call: int, bit: int = 15) -> FaultyProducts:
    """One bit of one element of one product."""

    def spoil(calls: int, result: torch.Tensor) -> None:
        if calls == call:
            flip(result, 7, bit)

    return FaultyProducts(spoil)


def test_a_sound_device_raises_nothing_and_its_answer_is_recorded(tmp_path: Path) -> None:
    _, alerts, _ = train(tmp_path)
    assert alerts == []
    ((key, recorded),) = all_recorded(tmp_path).items()
    with RunReader(tmp_path) as reader:
        ((detail,),) = reader.rows("SELECT detail FROM events WHERE kind = 'known answer'")
    assert json.loads(detail) == {
        "device": "cpu in float32",
        "environment": key,
        "hash": recorded.answer.hash,
        "recorded": None,
    }
    assert recorded.environment["threads"] == torch.get_num_threads()


def test_one_bit_of_one_product_at_the_third_probe_is_seen(
    asked: list[FaultyProducts | None], tmp_path: Path
) -> None:
    asked += [None, None, None, one_bit(call=4)]  # the first probe asks twice
    _, alerts, _ = train(tmp_path)
    assert [(alert.detector, alert.severity, alert.step) for alert in alerts] == [
        ("known_answer", "proven", 4)
    ]
    assert alerts[0].detail["course"] == "intermittent"
    with RunReader(tmp_path) as reader:
        assert reader.rows("SELECT step, detector FROM alerts") == [(4, "known_answer")]
        assert reader.rows("SELECT count(*) FROM incidents")[0][0] >= 1


def test_an_answer_that_stays_wrong_is_one_alert(
    asked: list[FaultyProducts | None], tmp_path: Path
) -> None:
    asked += [None, None, None, *(one_bit(call=0) for _ in range(9))]
    _, alerts, _ = train(tmp_path)
    assert [(alert.step, alert.detail["course"]) for alert in alerts] == [(4, "persistent")]
    assert alerts[0].detail["parts"] == ["product of integers 1"]


def test_training_bits_and_generators_are_those_without_the_probe(tmp_path: Path) -> None:
    def state() -> Any:
        return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()

    plain, _, _ = train(None)
    expected = state()
    probed, _, _ = train(tmp_path, probe_every=1)
    assert state() == expected
    for one, other in zip(plain.parameters(), probed.parameters(), strict=True):
        assert one.detach().numpy().tobytes() == other.detach().numpy().tobytes()


def test_another_machines_answer_is_compared_and_suspected(tmp_path: Path) -> None:
    train(tmp_path)
    (path,) = (tmp_path / FOLDER).iterdir()
    content = json.loads(path.read_bytes())
    same = dict(content, host="other")
    path.write_text(json.dumps(same))
    _, alerts, _ = train(tmp_path, first_step=9)
    assert alerts == []  # a second attempt, on another machine of the same kind
    with RunReader(tmp_path) as reader:
        details = reader.rows("SELECT detail FROM events WHERE kind = 'known answer' AND step = 9")
    assert json.loads(details[0][0])["recorded"]["host"] == "other"

    (recorded,) = all_recorded(tmp_path).values()
    rows = recorded.answer.rows.copy()
    rows[-1] += 1
    numbers = recorded.answer.numbers * (1 + 1e-3)
    changed = type(recorded.answer)(rows, numbers)
    same |= {
        "rows": rows.tolist(),
        "numbers": [x.hex() for x in numbers.tolist()],
        "hash": changed.hash,
    }
    path.write_text(json.dumps(same))
    _, alerts, _ = train(tmp_path, first_step=18)
    assert [(alert.severity, alert.detail["kind"]) for alert in alerts] == [
        ("suspect", "differs from recorded")
    ]
    assert "TF32" in alerts[0].detail["text"]
    assert "other" in alerts[0].detail["text"]


def test_of_two_that_record_at_once_the_first_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path / "run")
    ((key, mine),) = all_recorded(tmp_path / "run").items()
    theirs = replace(mine, host="other")
    publish = known_answers.publish

    def late(*given: Any, **options: Any) -> None:
        monkeypatch.setattr(known_answers, "publish", publish)
        assert first_recorded(tmp_path, key, theirs) is theirs
        publish(*given, **options)

    monkeypatch.setattr(known_answers, "publish", late)
    assert first_recorded(tmp_path, key, mine).host == "other"
    assert all_recorded(tmp_path)[key].host == "other"


@pytest.mark.parametrize("content", ["", "{}", '{"schema": 3}', "[1, 2]", "null"])
def test_a_damaged_record_is_told_and_the_training_goes_on(content: str, tmp_path: Path) -> None:
    train(tmp_path)
    (path,) = (tmp_path / FOLDER).iterdir()
    path.write_text(content)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    with Guard(model, optimizer, run=tmp_path, first_step=9, policy="record") as guard:
        model(torch.randn(4, 6)).mean().backward()
        optimizer.step()
    assert guard.health.errors == 1
    assert "cannot be read" in guard.health.last_error
    assert str(path) in guard.health.last_error
    assert path.read_text() == content


def test_settings_that_change_bits_begin_a_reference_of_their_own(tmp_path: Path) -> None:
    train(tmp_path)
    torch.set_num_threads(2)
    try:
        _, alerts, _ = train(tmp_path, first_step=9)
    finally:
        torch.set_num_threads(1)
    assert alerts == []
    assert len(all_recorded(tmp_path)) == 2


class Told:
    """Takes what a check tells."""

    def __init__(self) -> None:
        self.alerts: list[Alert] = []

    def report(self, alerts: list[Alert]) -> None:
        self.alerts += alerts

    def event(self, step: int, kind: str, detail: str) -> None:
        del step, kind, detail


class Later:
    """A copy to the host that arrives when `arrived` says so."""

    arrived = False

    def __init__(self, values: torch.Tensor) -> None:
        self._values = values

    def ready(self) -> bool:
        return self.arrived

    def array(self) -> Any:
        return self._values.numpy()


def test_answers_that_never_arrive_are_bounded_and_nothing_waits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(known_answer, "HostCopy", Later)
    monkeypatch.setattr(Later, "arrived", False)
    told = Told()
    check = KnownAnswer(told, net(), Ranks(tmp_path), tmp_path, 1)
    for step in range(40):
        check.step_ended(step)
    assert len(check._asked) == known_answer._WAITING
    monkeypatch.setattr(Later, "arrived", True)
    check.step_ended(40)
    assert len(check._asked) == 0
    check.close()
    assert told.alerts == []
    assert all_recorded(tmp_path)


def test_settings_that_keep_changing_do_not_make_memory_grow(tmp_path: Path) -> None:
    check = KnownAnswer(Told(), net(), Ranks(tmp_path), tmp_path, 1)
    for step in range(3 * known_answer._ASKERS):
        check._built[torch.device("cpu")] = {"attempt": step}
        check._probes.setdefault(torch.device("cpu"), {"float32": Probe(torch.device("cpu"))})
        check.step_ended(step)
    assert len(check._askers) == known_answer._ASKERS
    check.close()
    assert not check._lookups
    assert len(all_recorded(tmp_path)) == known_answer._ASKERS
