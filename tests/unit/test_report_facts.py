"""What a report gathers: the answer, where to go back to, bits, curves, sessions."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reported import finished, report_on
from session_archives import call, file_of, made
from traces import make_run, step, whole_steps, write

from forensics.checkpoint import Checkpoint
from forensics.reporting import curves
from forensics.reporting.as_json import content
from forensics.reporting.bits import bits_of, located_elements
from forensics.reporting.facts import Headline
from forensics.reporting.figures import thin
from forensics.reporting.going_back import go_back
from forensics.result import Result
from sdc_guard import RunReader
from sdc_guard.store.run_file import Attempt, RunFile

FLIPPED = {
    "kind": "param", "name": "layer.2", "index": 0, "bits": [30], "before": "0x3f800000",
    "after": "0x7f800000", "before_value": "1.0", "after_value": "inf",
}  # fmt: skip


def verified(**more: Any) -> dict[str, Any]:
    facts = {"exact": True, "proven": True, "kind": "state at rest", "verdict": "intermittent"}
    result = Result("verify", 26, 27, **facts, rank=0, evidence=("two replays agree",)).as_dict()
    return {**result, "tensors": [FLIPPED], **more}


def archived(run: Path, *steps: int) -> None:
    for number in steps:
        torch.save({"step": number, "w": torch.ones(3)}, run / f"step-{number}.pt")


def test_a_verification_answers_before_a_search(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write(run, whole_steps(0, 40))
    archived(run, 10, 20, 30)
    finished(run, verified())
    finished(run, Result("run", 20, 30, exact=True, proven=True).as_dict())
    report = report_on(run)
    answer = report.headline
    assert (answer.state, answer.proven, answer.source) == ("corrupt", True, "session 0001")
    assert (answer.last_clean, answer.first_corrupt, answer.rank) == (26, 27, 0)
    assert answer.sentence == (
        "Corrupt, proven: step 27 is the first corrupted step on rank 0; bit 30 (exponent) of "
        "element 0 of param layer.2: 1.0 became inf; go back to the checkpoint of step 20."
    )
    assert report.go_back.step == 20
    assert report.go_back.command is None  # none is recorded


def test_what_was_found_before_the_run_was_started_again_does_not_count(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Attempt(1, 0, 0.0), Attempt(2, 5, 9.0))
    write(run, whole_steps(0, 9))
    finished(run, verified(attempts=1))
    report = report_on(run)
    assert report.headline.state == "clean"
    assert not report.sessions[0].is_current


@pytest.mark.parametrize(
    ("severity", "state"), [("proven", "corrupt"), ("suspect", "suspect"), (None, "clean")]
)
def test_a_run_that_nobody_searched(severity: str | None, state: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    alerts = [] if severity is None else [
        ("alerts", {"step": 7, "layer": 2, "detector": "carried_digest", "severity": severity,
                    "detail": json.dumps({"text": "changed"})})
    ]  # fmt: skip
    write(run, [*whole_steps(0, 9), *alerts])
    answer = report_on(run).headline
    assert answer.state == state
    assert answer.proven == (severity == "proven")
    assert answer.first_corrupt == (7 if severity == "proven" else None)


def test_a_clean_search_takes_no_alert_back(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    alert = {"step": 7, "detector": "x", "severity": "proven", "detail": "{}"}
    write(run, [*whole_steps(0, 9), ("alerts", alert)])
    finished(run, Result("run", 9, None, exact=True, proven=True).as_dict())
    assert report_on(run).headline.state == "corrupt"


def test_thousands_of_alerts_of_a_step_are_one_row(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    alerts = [
        ("alerts", {"step": 3, "layer": n, "detector": "x", "severity": "suspect",
                    "score": float(n == 2), "detail": json.dumps({"text": f"t{n}"})})
        for n in range(4)
    ]  # fmt: skip
    write(run, [*whole_steps(0, 4), *alerts])
    report = report_on(run)
    (row,) = report.alerts
    assert (row.layers, row.layer, row.text, report.alert_count) == (4, "layer.2", "t2", 4)


def checkpoint(number: int, status: Any = "clean", readable: bool = True) -> Checkpoint:
    return Checkpoint(number, Path(f"/a/{number}"), "torch", status, readable=readable)


def test_going_back_passes_over_what_was_held_back_or_cannot_be_read() -> None:
    found = [checkpoint(10), checkpoint(20, "suspect"), checkpoint(25, readable=False)]
    found += [checkpoint(26, "untested"), checkpoint(27), checkpoint(40)]
    answer = Headline("corrupt", "", last_clean=26, first_corrupt=27, source="session 1")
    resume = "python 'my train.py' --resume {ckpt} --until {step} --run {run}"
    back = go_back(answer, found, "/the run", resume, 40)
    assert (back.step, back.status) == (26, "untested")
    assert back.command == "python 'my train.py' --resume /a/26 --until 40 --run '/the run'"
    earlier = Headline("corrupt", "", last_clean=25, first_corrupt=27, source="session 1")
    assert go_back(earlier, found, "/r", resume, 40).step == 10
    # nobody searched: only what the guard called clean
    alone = Headline("corrupt", "", first_corrupt=27, source="alerts")
    assert go_back(alone, found, "/r", None, 40).step == 10
    unknown = Headline("corrupt", "", first_corrupt=27, source="session 1")
    assert go_back(unknown, found, "/r", None, 40).step is None


def test_a_bf16_moment_is_told_by_its_own_format() -> None:
    one = {**FLIPPED, "before": "0x3f80", "after": "0xbf81", "after_value": "-1.0078125"}
    (element,) = located_elements([one], {"layer.2": "bfloat16"})
    assert element.dtype == "bfloat16"
    assert [(bit.position, bit.part) for bit in element.flipped] == [(15, "sign"), (0, "mantissa")]
    # the stored value says that the words are wider than the layer's
    (wide,) = located_elements([FLIPPED], {"layer.2": "bfloat16"})
    assert wide.dtype == "float32"
    (unknown,) = located_elements([{**FLIPPED, "before_value": "2.5"}], {})
    assert unknown.dtype is None
    assert {bit.part for bit in unknown.bits} == {"bit"}


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_bits_of_float32_are_those_of_ieee_754(before: int, after: int) -> None:
    bits = bits_of(before, after, "float32")
    assert sum(bit.before << bit.position for bit in bits) == before
    assert sum(1 << bit.position for bit in bits if bit.flipped) == before ^ after
    value = struct.unpack("<f", struct.pack("<I", before))[0]
    if 0 < abs(value) < float("inf") and before >> 23 & 0xFF:  # a normal number
        fields = dict.fromkeys(("sign", "exponent", "mantissa"), "")
        for bit in bits:
            fields[bit.part] += str(bit.before)
        sign, exponent, mantissa = (int(text, 2) for text in fields.values())
        assert value == (-1) ** sign * 2.0 ** (exponent - 127) * (1 + mantissa / 2**23)


def test_a_spike_survives_the_thinning(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    losses = dict.fromkeys(range(5000), 1.0) | {1_234: 77.0, 4_000: -5.0, 30: float("nan")}
    write(run, [step(n, loss=loss, grad_norm=1.0) for n, loss in losses.items()])
    with RunReader(run) as reader:
        found = curves.curve(reader, "loss")
    assert len(found.points) <= curves.MAX_POINTS
    assert {(1_234, 77.0), (4_000, -5.0)} <= set(found.points)
    assert found.undrawn == ((found.undrawn[0][0], "NaN", 1),)
    assert [at for at, _ in found.points] == sorted(at for at, _ in found.points)
    assert found.width == 5


def test_a_million_steps_are_two_thousand_points(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    numbers = torch.arange(1_000_000).numpy()
    write(run, [("steps", {"step": numbers, "loss": 1.0, "skipped": False})])
    with RunReader(run) as reader:
        assert len(curves.curve(reader, "loss").points) <= 2_000


def test_thinned_checkpoints_keep_the_worst() -> None:
    found = [checkpoint(n) for n in range(10_000)]
    found[4_321] = checkpoint(4_321, "corrupt")
    kept = thin(found, 300)
    assert len(kept) <= 300
    assert [one.step for one in kept if one.status == "corrupt"] == [4_321]


def test_an_archive_without_a_trace(tmp_path: Path) -> None:
    report = report_on(made(tmp_path / "archive", (5, 6, 7)))
    assert (report.source, report.recorded, report.headline.state) == ("archive", None, "unknown")
    assert [one["step"] for one in content(report)["checkpoints"]] == [5, 6, 7]
    assert "No guard recorded this training" in report.unseen[0]
    file_of(tmp_path / "archive", 6).write_bytes(b"PK\x03\x04cut")
    assert report_on(tmp_path / "archive").checkpoints


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"schema": 3}', '{"schema": {"name": "x.run"}, "last_clean": "a"}',
     '{"schema": {"name": "x.run"}, "last_clean": 1, "first_corrupt": 2, "tensors": [3]}'],
)  # fmt: skip
def test_a_result_that_says_nothing_is_told(text: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write(run, whole_steps(0, 3))
    (finished(run, {}).folder / "result.json").write_text(text, encoding="utf-8")
    (told,) = report_on(run).sessions
    assert told.result is None
    assert any("its result" in note for note in told.notes)


def test_json_says_what_the_report_says_and_has_no_nan(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    alert = {"step": 3, "detector": "x", "severity": "suspect", "score": float("inf")}
    write(run, [*whole_steps(0, 4), ("alerts", {**alert, "detail": "{}"})])
    finished(run, verified())
    report = report_on(run)
    told = json.loads(json.dumps(content(report), allow_nan=False))
    assert told["schema"] == {"name": "sdc-bisect.report", "version": 1}
    assert told["headline"]["sentence"] == report.headline.sentence
    assert told["headline"]["elements"][0]["bits"][1] == {
        "position": 30, "part": "exponent", "before": 0, "after": 1,
    }  # fmt: skip
    assert told["results"][0]["first_corrupt"] == 27
    assert told["alerts"][0]["score"] == "inf"
    assert told["recorded"]["steps"] == 5


def test_what_changed_between_attempts(tmp_path: Path) -> None:
    attempts = (
        Attempt(1, 0, 0.0, {"host": "a", "packages": {"torch": "2.6", "numpy": "2"}}),
        Attempt(2, 3, 9.0, {"host": "b", "packages": {"torch": "2.7", "numpy": "2"}}),
    )
    run = make_run(tmp_path / "run", *attempts)
    write(run, whole_steps(0, 4))
    first, second = report_on(run).attempts
    assert first.changed == ()
    assert second.changed == (
        ("host", "a", "b"),
        ("packages", {"torch": "2.6"}, {"torch": "2.7"}),
    )
    assert RunFile.read(run).name == "run"


def test_a_search_that_found_all_clean_is_clean_and_no_statistic_judged(tmp_path: Path) -> None:
    folder = made(tmp_path / "archive", (5, 6, 7))
    done = call("run", folder, "--oracle", "integrity", "--json")
    assert (done.code, done.json["first_corrupt"]) == (0, None)
    answer = report_on(folder).headline
    assert (answer.state, answer.source) == ("clean", "session 0001")
    assert not any("statistic" in limit for limit in answer.limits)
    file_of(folder, 6).write_bytes(b"")
    assert call("run", folder, "--oracle", "integrity").code == 3
    assert report_on(folder).headline.state == "unknown"


def test_a_clean_answer_of_a_statistic_has_that_limit(tmp_path: Path) -> None:
    folder = made(tmp_path / "archive", (5, 6, 7))
    assert call("run", folder, "--oracle", "statistics").code == 0
    answer = report_on(folder).headline
    assert answer.state == "clean"
    assert any("a statistic or a command judged" in limit for limit in answer.limits)
