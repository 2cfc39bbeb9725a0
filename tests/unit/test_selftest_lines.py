"""The lines of the self-test fail where a detector is broken, and say why."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from sdc_guard.archive.save import expected_digests
from sdc_guard.cli import main
from sdc_guard.detect.alert import Alert
from sdc_guard.detect.answers import Answer
from sdc_guard.digest import digest_tensor
from sdc_guard.selftest import (
    adam,
    between_ranks,
    carried,
    command,
    comparison,
    gradients,
    known,
    quiet,
    replay,
)
from sdc_guard.selftest.line import Bench, Line, Outcome, Trial, exit_code, tried
from sdc_guard.selftest.training import alone, train
from sdc_guard.signals.probe import Probe
from sdc_guard.store.known_answers import RecordedAnswer, first_recorded

CPU = torch.device("cpu")
REPEAT = "sdc_guard.recorder.repeat_alert sdc_guard.detect.shadow.repeat_alert"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    folder = tmp_path / "bench"
    folder.mkdir()
    return Bench(folder, (CPU,))


def nothing(*_: object, **__: object) -> list[Alert]:
    return []


def of_what_is_saved(payload: Any, tensors: Any, recorded: Any, names: Any) -> Any:
    """What is expected of a checkpoint, from the tensors as they are, and not from the trace."""
    recorded = {key: digest_tensor(tensor) for key, tensor in tensors.items()}
    return expected_digests(payload, tensors, recorded, names)


# what is broken, and the line that has to see it
BROKEN: dict[str, tuple[str, Callable[..., Any], Callable[[Bench], Outcome]]] = {
    "carried digest": (
        "sdc_guard.carried_alerts.changed", nothing, lambda b: carried.at_rest("exp_avg", b)
    ),
    "located element": (
        "sdc_guard.carried_alerts.solve_change", lambda *_: None,
        lambda b: carried.at_rest("weight", b),
    ),
    "bytes of a checkpoint": (
        "sdc_guard.archive.restore.check_bytes",
        lambda *_: type("Sound", (), {"sound": False, "reasons": lambda _: ["so"]})(),
        carried.checkpoint_on_disk,
    ),
    "digests of a checkpoint": (
        "sdc_guard.checkpoints.expected_digests", of_what_is_saved, carried.checkpoint_on_its_way
    ),
    "gradients": (
        "sdc_guard.detect.sensor.StepSensor.judge", nothing,
        lambda b: gradients.gradient("gradient_norm", 1e6, b),
    ),
    "loss": ("sdc_guard.detect.sensor.StepSensor.judge_loss", nothing, gradients.loss_not_finite),
    "shadow": (REPEAT, lambda *_: None, gradients.shadow),
    "shadow trend": (
        "sdc_guard.detect.shadow_trend.ShadowTrend.judge", nothing, gradients.worse_weights
    ),
    "loss scale": (
        "sdc_guard.detect.loss_scale.LossScaleWatch.judge", nothing, gradients.loss_scale
    ),
    "invariants": (
        "sdc_guard.detect.invariants.InvariantSensor.judge", nothing, adam.too_far
    ),
    "digest of the question": (
        "sdc_guard.detect.answers.Answer.wrong", lambda *_: (), comparison.question
    ),
    "answers": (
        "sdc_guard.detect.answers.Answer.hash", property(lambda _: "0"), comparison.product
    ),
    "digest of NaN": (
        "sdc_guard.selftest.comparison.digest_tensor",
        lambda x: (int(torch.nan_to_num(x).sum()),), comparison.nan_bits,
    ),
}  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN)
def test_a_line_fails_where_its_detector_is_broken(
    broken: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, instead, line = BROKEN[broken]
    for place in name.split():  # wherever it is used
        monkeypatch.setattr(place, instead, raising=False)
    (found,) = tried([Trial("s", "n", line)], bench, lambda _: None)
    if broken == "bytes of a checkpoint":  # the sound one is refused: nothing can be said
        assert found.outcome.verdict == "INCOMPLETE"
    else:
        assert found.outcome.verdict == "FAIL", found.outcome.reason


def test_a_healthy_training_that_raises_an_alert_fails(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alarm(step: int, *_: object) -> Alert | None:
        return Alert(step, "shadow_repeat", None, "", 1.0, 0.0, "suspect", {"text": "so"})

    for place in REPEAT.split():
        monkeypatch.setattr(place, alarm, raising=False)
    outcome = quiet.quiet(bench)
    assert outcome.verdict == "FAIL"
    assert "shadow_repeat" in outcome.reason


def test_a_guard_that_changes_bits_fails(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def disturbed(*given: Any, **options: Any) -> Any:
        trained = train(*given, **options)
        if given[0] is not None:
            trained.digests["0.weight"] = "other"
        return trained

    monkeypatch.setattr(quiet, "train", disturbed)
    outcome = quiet.same_bits(bench)
    assert outcome.verdict == "FAIL"
    assert "0.weight" in outcome.reason


def test_the_setting_that_makes_a_replay_exact_is_named() -> None:
    in_force: list[str] = []
    counting = iter(range(10_000))

    def setting(name: str) -> replay.Setting:
        @contextlib.contextmanager
        def hold() -> Iterator[None]:
            in_force.append(name)
            yield
            in_force.remove(name)

        return replay.Setting(name, hold)

    def steps() -> str:
        return "same" if in_force == ["b"] else str(next(counting))

    names = ["a", "b", "c"]
    outcome = replay.judged(steps, [setting(name) for name in names])
    assert (outcome.verdict, outcome.detail) == ("INCOMPLETE", {"exact_with": "b"})
    outcome = replay.judged(steps, [setting("a"), setting("c")])
    assert outcome.verdict == "FAIL"
    assert replay.judged(lambda: "same", []).verdict == "PASS"
    assert in_force == []


def test_settings_are_put_back() -> None:
    def state() -> list[Any]:
        return [
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.get_num_threads(),
            torch.backends.mkldnn.enabled,
            torch.get_float32_matmul_precision(),
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.deterministic,
            torch.backends.cuda.flash_sdp_enabled(),
        ]

    before = state()
    for device in (CPU, torch.device("cuda")):
        for setting in replay.settings_for(device):
            with setting.set():
                pass
            assert state() == before, setting.name


def test_a_replay_is_exact_on_this_cpu() -> None:
    assert replay.trained(CPU) == replay.trained(CPU)


def record(run: Path, change: Callable[[dict[str, Any]], None], factor: float = 1.0) -> None:
    """Record an answer for the environment of this process, or a changed one."""
    environment = known.environment_of(CPU, "float32")
    change(environment)
    answer = comparison.answer_of(Probe(CPU))
    rows = answer.rows.copy()
    rows[-1] += int(factor != 1.0)
    mine = RecordedAnswer(Answer(rows, answer.numbers * factor), environment, "other", None, 4)
    first_recorded(run, known.key_of(environment), mine)


def test_a_runs_recorded_answer_is_compared_with(bench: Bench, tmp_path: Path) -> None:
    def outcome(run: Path) -> Outcome:
        there = Bench(bench.folder, bench.devices, run)
        (line,) = [x for x in known.trials_of(there) if x.name.endswith("as recorded")]
        return tried([line], there, lambda _: None)[0].outcome

    same, shifted, other, empty = (tmp_path / name for name in ("same", "shifted", "other", "no"))
    record(same, lambda _: None)
    assert outcome(same).verdict == "PASS"
    record(shifted, lambda _: None, factor=1 + 1e-3)
    found = outcome(shifted)
    assert found.verdict == "FAIL"
    assert "TF32" in found.reason
    record(other, lambda environment: environment.update(threads=64))
    found = outcome(other)
    assert found.verdict == "INCOMPLETE"
    assert "threads: 64 there, 1 here" in found.reason
    empty.mkdir()
    assert outcome(empty).verdict == "INCOMPLETE"


def test_a_device_that_answers_wrongly_or_unsteadily_fails(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, count = Probe.ask, iter(range(100))

    def unsteady(probe: Probe) -> Any:
        pending = ask(probe)
        if next(count) == 5:
            pending.rows[-1] += 1
        return pending

    monkeypatch.setattr(Probe, "ask", unsteady)
    outcome = known.repeated(CPU, "float32", bench)
    assert outcome.verdict == "FAIL"
    assert "1 of 10 answers differ" in outcome.reason


def line(verdict: Any, reason: str = "so") -> Line:
    return Line("s", "n", Outcome(verdict, reason))


def test_exit_codes() -> None:
    assert exit_code([]) == 0
    assert exit_code([line("PASS")]) == 0
    assert exit_code([line("PASS"), line("INCOMPLETE")]) == 3
    assert exit_code([line("INCOMPLETE"), line("FAIL"), line("PASS")]) == 1


def test_of_several_ranks_the_worst_counts_and_is_named() -> None:
    ranks = {0: line("PASS"), 1: line("FAIL", "bad"), 2: line("INCOMPLETE")}
    worst = between_ranks.worst(ranks)
    assert (worst.outcome.verdict, worst.outcome.reason) == ("FAIL", "rank 1: bad")
    assert between_ranks.worst({0: line("PASS"), 1: line("PASS")}).outcome.reason == "so"


def test_lines_of_ranks_are_matched_by_their_place_in_their_section() -> None:
    on_device = Line("copies", "cuda:1", Outcome("FAIL", "bad"))
    mine = [Line("copies", "in host memory", Outcome("PASS", "so")), line("PASS")]
    theirs = [mine[0], on_device, line("INCOMPLETE")]
    together = [between_ranks.worst(same) for same in between_ranks.matched([mine, theirs])]
    told = {(one.section, one.name): one.outcome.verdict for one in together}
    assert told == {
        ("copies", "in host memory"): "PASS",
        ("s", "n"): "INCOMPLETE",
        ("copies", "cuda:1"): "FAIL",
    }


def test_ranks_that_cannot_be_reached_are_said_and_are_no_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "trials_of", lambda _: [])
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    done = CliRunner().invoke(main, ["selftest"])
    assert done.exit_code == 3
    assert "could not be reached" in done.output
    assert "Traceback" not in done.output


def test_a_line_that_ends_early_ends_no_other(bench: Bench) -> None:
    def broken(_: Bench) -> Outcome:
        raise ValueError("no\nsuch thing")

    trials = [Trial("s", "a", broken), Trial("s", "b", lambda _: Outcome("PASS", "so"))]
    lines = tried(trials, bench, lambda _: None)
    assert [one.outcome.verdict for one in lines] == ["INCOMPLETE", "PASS"]
    assert lines[0].outcome.reason == "could not be tried: ValueError: no such thing"


def test_guards_of_the_self_test_are_those_of_one_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("SDC_GUARD_RUN", str(tmp_path / "elsewhere"))
    with alone():
        assert "WORLD_SIZE" not in os.environ
    assert os.environ["RANK"] == "3"
    assert train(tmp_path / "run", steps=2).health.errors == 0
    assert (tmp_path / "run" / "run.json").exists()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(("verdict", "code"), [("PASS", 0), ("FAIL", 1), ("INCOMPLETE", 3)])
def test_the_command_tells_and_ends_with_its_exit_code(
    verdict: Any, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = Outcome(verdict, "since", {"x": 1}, ("a table",))
    few = [Trial("s", "a", lambda _: Outcome("PASS", "so")), Trial("s", "b", lambda _: outcome)]
    monkeypatch.setattr(command, "trials_of", lambda _: few)
    done = CliRunner().invoke(main, ["selftest"])
    assert done.exit_code == code
    assert "a table" in done.output
    assert command.CLAIM in done.output
    done = CliRunner().invoke(main, ["selftest", "--json"])
    assert done.exit_code == code
    told = json.loads(done.output)
    assert told["schema"] == {"name": "sdc-guard.selftest", "version": 1}
    assert told["verdict"] == verdict
    assert [x["verdict"] for x in told["lines"]] == ["PASS", verdict]


@pytest.mark.parametrize("arguments", [["--run", "nowhere"], ["--nonsense"]])
def test_bad_arguments_are_one_line_and_exit_code_2(arguments: list[str]) -> None:
    done = CliRunner().invoke(main, ["selftest", *arguments])
    assert done.exit_code == 2
    assert "Traceback" not in done.output


def test_a_device_that_should_be_there_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "trials_of", lambda _: [])
    monkeypatch.setattr(
        command.copies, "devices_here", lambda: ([], "a driver and no device", True)
    )
    report = command.selftest(None, lambda _: None)
    assert report is not None
    assert report.exit_code == 3
    monkeypatch.setattr(command.copies, "devices_here", lambda: ([], "no device", False))
    report = command.selftest(None, lambda _: None)
    assert report is not None
    assert (report.exit_code, report.notes) == (0, ("no device",))


def test_numbers_of_an_answer_are_exact_in_its_detail(bench: Bench) -> None:
    outcome = known.repeated(CPU, "float32", bench)
    assert outcome.verdict == "PASS"
    numbers = np.array([float.fromhex(text) for text in outcome.detail["numbers"]])
    assert np.array_equal(numbers, comparison.answer_of(Probe(CPU)).numbers)
