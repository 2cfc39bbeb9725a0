"""The known answer and the self-test's copies on a CUDA device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_cuda import waiting_is_an_error

from sdc_guard import Alert, Guard
from sdc_guard.detect.answers import Answer
from sdc_guard.inject.injector import flip_bit
from sdc_guard.selftest import copies, replay
from sdc_guard.selftest.line import Bench, tried
from sdc_guard.selftest.patterns import KB, MB
from sdc_guard.selftest.ways import there_and_back
from sdc_guard.signals.probe import Probe, probes_of
from sdc_guard.store.known_answers import all_recorded

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda", 0)


def answer_of(probe: Probe) -> Answer:
    pending = probe.ask()
    return Answer(pending.rows.cpu().numpy(), pending.numbers.cpu().numpy())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_answer_is_right_and_repeats(dtype: str) -> None:
    probe = probes_of(CUDA)[dtype]
    answers = [answer_of(probe) for _ in range(50)]
    assert {answer.wrong(probe.known) for answer in answers} == {()}
    assert len({answer.hash for answer in answers}) == 1
    assert not answers[0].is_constant


def test_integers_are_exact_in_tf32_too() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        probe = Probe(CUDA)
        assert answer_of(probe).wrong(probe.known) == ()
    finally:
        torch.set_float32_matmul_precision(before)


def test_asking_waits_for_nothing() -> None:
    probe = Probe(CUDA)
    probe.ask()
    torch.cuda.synchronize()
    with waiting_is_an_error():
        Probe(CUDA).ask()


def test_one_bit_of_the_question_is_seen() -> None:
    probe = Probe(CUDA)
    flip_bit(probe.numbers, 12345, 0)
    assert "question" in answer_of(probe).wrong(probe.known)


def test_a_training_records_answers_of_both_dtypes_and_raises_nothing(tmp_path: Path) -> None:
    model = torch.nn.Linear(8, 3, device=CUDA)
    optimizer = torch.optim.AdamW(model.parameters())
    alerts: list[Alert] = []
    with Guard(
        model, optimizer, run=tmp_path, policy="record", on_alert=alerts.append, probe_every=2
    ) as guard:
        for _ in range(12):
            model(torch.ones(4, 8, device=CUDA)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert guard.health.errors == 0, guard.health.last_error
    assert alerts == []
    assert {x.environment["block"] for x in all_recorded(tmp_path).values()} == {
        "float32",
        "bfloat16",
    }


@pytest.mark.parametrize("pinned", [False, True])
def test_what_is_sent_to_a_device_comes_back(pinned: bool) -> None:
    assert there_and_back(copies.OfDevices(pinned=pinned), {0: "cuda:0"}, [4 * KB, MB]).wrong == []


def test_the_lines_of_devices_can_be_tried(tmp_path: Path) -> None:
    bench = Bench(tmp_path, (torch.device("cpu"), CUDA))
    trials = [*replay.trials_of(bench), *copies.trials_of(bench)]
    lines = tried(trials, bench, lambda line: print(line.as_object()))
    assert not [line for line in lines if line.outcome.verdict == "FAIL"]
