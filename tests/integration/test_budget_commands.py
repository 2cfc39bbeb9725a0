"""What the commands say of a run whose state was recorded in part."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path

import preloaded
import pytest
import small_training
from conftest import bisect
from small_training import LAST, TENSORS, Fault, keep_after_and_before, thin_out

from forensics.index import index
from forensics.oracles.judgement import Judgement
from forensics.oracles.trace import TraceOracle
from sdc_guard import RunReader
from sdc_guard.store.segment_file import encode
from sdc_guard.store.segments import rank_folder, segment_path

Recorded = Callable[[Fault | None], Path]
AT_REST = Fault("param", 13, "1.weight")
TRANSITIONS = TENSORS * (LAST - 1)  # steps 1 to 20


def judged(run: Path) -> dict[int, Judgement]:
    with RunReader(run) as reader:
        oracle = TraceOracle(reader)
        return {found.step: oracle.judge(found) for found in index(run)}


def test_a_whole_record_is_watched_whole(recorded: Recorded) -> None:
    found = judged(recorded(None))
    assert {item.verdict for item in found.values()} == {"clean"}
    assert {item.watched for item in found.values()} == {1}
    assert found[LAST].reason == "15 of 15 recorded tensors equal the trace, bit for bit"


@pytest.mark.parametrize("per_step", [1, 4])
def test_clean_as_far_as_recorded_says_how_far(recorded: Recorded, per_step: int) -> None:
    run = recorded(None)
    thin_out(run, per_step)
    found = judged(run)
    assert {item.verdict for item in found.values()} == {"clean"}
    # per_step tensors from each step to the next; the first step left no moments before it
    for step, item in found.items():
        assert item.watched == pytest.approx(per_step / TENSORS)
        assert "15 of 15 recorded tensors equal" in item.reason
        assert item.reason.endswith("% of the state's transitions were compared"), step

    answer = bisect("run", run, "--json")
    assert (answer.code, answer.json["last_clean"], answer.json["first_corrupt"]) == (0, LAST, None)
    assert answer.json["watched"] == pytest.approx(per_step / TENSORS)
    assert "a replay compares every step: sdc-bisect verify " in answer.json["evidence"][-1]
    text = bisect("run", run)
    assert "Clean as far as recorded: nothing corrupt was found up to step 20" in text.out


def test_a_watched_change_convicts_and_an_unwatched_one_is_not_called_proven_clean(
    recorded: Recorded,
) -> None:
    run = recorded(AT_REST)
    keep_after_and_before(run, 12, ("param", "1.weight"))
    found = judged(run)
    assert [found[step].verdict for step in (5, 10, 15, 20)] == ["clean"] * 2 + ["corrupt"] * 2
    assert found[15].watched == 1 / (TENSORS * 14)
    answer = bisect("run", run, "--json")
    assert (answer.code, answer.json["last_clean"], answer.json["first_corrupt"]) == (1, 10, 15)
    assert answer.json["proven"]
    assert "checkpoint 10 may hide an earlier fault" in answer.json["evidence"][-1]

    shutil.rmtree(run / "bisect")
    keep_after_and_before(run, 3, ("param", "1.weight"))  # nothing near the fault is left
    found = judged(run)
    assert {item.verdict for item in found.values()} == {"clean"}
    assert found[20].watched == 0


def test_a_checkpoint_whose_step_was_not_recorded_whole_cannot_be_judged(
    recorded: Recorded,
) -> None:
    run = recorded(None)
    thin_out(run, 2)
    with RunReader(run) as reader:
        rows = reader.arrow("SELECT * EXCLUDE (rank) FROM digests WHERE step <> 10 OR layer = 0")
    place = rank_folder(run, "digests", 0)
    shutil.rmtree(place)
    place.mkdir()
    segment_path(place, 0).write_bytes(encode(rows))
    found = judged(run)
    assert found[10].verdict == "untestable"
    assert "lacks the digests of 12 of its tensors after step 10" in found[10].reason
    assert found[15].verdict == "clean"


def test_a_lost_step_cannot_be_judged_over(recorded: Recorded) -> None:
    run = recorded(None)
    thin_out(run, 2)
    with RunReader(run) as reader:
        rows = reader.arrow("SELECT * EXCLUDE (rank) FROM steps WHERE step NOT IN (7, 8)")
    place = rank_folder(run, "steps", 0)
    shutil.rmtree(place)
    place.mkdir()
    segment_path(place, 0).write_bytes(encode(rows))
    found = judged(run)
    assert [found[step].verdict for step in (5, 10)] == ["clean", "untestable"]
    assert found[10].reason == "the trace lacks 2 steps, the first is 7"


def test_stored_bytes_are_compared_whatever_the_budget(recorded: Recorded) -> None:
    run = recorded(None)
    thin_out(run, 1)
    path = run / "archive" / "step=000010" / "state.pt"
    weight = small_training.load_checkpoint(path.parent)["model"]["2.weight"]
    content = bytearray(path.read_bytes())
    content[content.index(weight.numpy().tobytes()) + 5] ^= 0x10
    path.write_bytes(content)
    found = judged(run)
    assert {step: item.verdict for step, item in found.items() if item.stored_bytes} == {
        10: "corrupt"
    }
    assert [found[step].verdict for step in (5, 15, 20)] == ["clean"] * 3


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Fault | None], Path]:
    """Each training once, in a process of its own: that is how the commands replay it."""
    folder = tmp_path_factory.mktemp("trained")

    @functools.cache
    def one(fault: Fault | None) -> Path:
        return small_training.train_apart(folder / str(len(list(folder.iterdir()))), LAST, fault)

    return one


def resume_command() -> list[object]:
    return [preloaded.python(), Path(small_training.__file__), "{run}", "{ckpt}", "{step}"]


def test_verify_names_the_range_and_on_what_it_rests(recorded: Recorded) -> None:
    run = recorded(AT_REST)
    keep_after_and_before(run, 3, ("param", "1.weight"))
    answer = bisect("verify", run, "--from", 10, "--json", "--", *resume_command())
    assert answer.code == 3, answer.err
    found = answer.json
    assert (found["last_clean"], found["first_corrupt"], found["exact"]) == (10, 13, False)
    assert found["class"] == "undetermined"
    assert "one of state at rest, optimizer update, activation" in found["evidence"][1]
    assert found["evidence"][-1].startswith("on condition that checkpoint 10 is right: ")
    report = bisect("report", run)
    assert "is the first whose record differs (proven), the fault lies in (10, 13]" in report.out
    assert "## Result of `sdc-bisect verify` of 20" in report.out


def test_verify_names_the_step_where_the_record_shows_it(recorded: Recorded) -> None:
    run = recorded(AT_REST)
    keep_after_and_before(run, 12, ("param", "1.weight"))
    answer = bisect("verify", run, "--json", "--", *resume_command())
    assert answer.code == 1, answer.err
    found = answer.json
    assert (found["last_clean"], found["first_corrupt"], found["exact"]) == (12, 13, True)
    assert (found["class"], found["verdict"]) == ("state at rest", "intermittent")
    (tensor,) = found["tensors"]
    assert (tensor["name"], tensor["index"], tensor["bits"]) == ("1.weight", 3, [20])


def test_a_break_before_the_first_checkpoint_may_not_be_the_first(recorded: Recorded) -> None:
    run = recorded(Fault("param", 4, "1.weight"))
    keep_after_and_before(run, 3, ("param", "1.weight"))
    answer = bisect("verify", run, "--json", "--", *resume_command())
    assert answer.code == 3, answer.err
    found = answer.json
    assert (found["last_clean"], found["first_corrupt"], found["exact"]) == (None, 4, False)
    assert found["proven"]
    assert "may have gone unseen" in found["evidence"][1]


def test_a_guard_with_its_default_budget(tmp_path: Path) -> None:
    run = small_training.train_apart(tmp_path / "run", LAST, AT_REST, budget=0.2)
    found = judged(run)
    assert all("15 of 15 recorded tensors equal" in found[step].reason for step in (5, 10))
    assert all(item.watched is not None and item.watched < 1 for item in found.values())
    answer = bisect("verify", run, "--from", 10, "--json", "--", *resume_command())
    assert answer.code in (1, 3), answer.err
    located = answer.json
    assert located["last_clean"] < 13 <= located["first_corrupt"]
    assert not located["exact"] or located["first_corrupt"] == 13
    assert located["class"] in ("state at rest", "undetermined")
    clean = small_training.train_apart(tmp_path / "clean", LAST, budget=0.2)
    replayed = bisect("verify", clean, "--from", 10, "--json", "--", *resume_command())
    assert (replayed.code, replayed.json["last_clean"]) == (0, LAST), replayed.err
    equal = "after step 20 all parameters and Adam's moments are equal"
    assert replayed.json["evidence"][1] == equal
