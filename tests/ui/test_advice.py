"""What to do: by every verdict, and never more than the evidence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.advice import Advice, Audited, Context, advice, discard_text, hours_text
from app.disproof import VERDICTS, confidence, disproof
from forensics.checkpoint import Checkpoint
from forensics.reporting.facts import GoBack, Headline
from forensics.reporting.going_back import go_back
from forensics.result import STORED_BYTES
from sdc_guard.store.machines import Device, Machine

PLACE = "/runs/pre train"
RESUME = "python train.py --resume {ckpt} --until {step}"
DEVICE = "GPU-6f2c on node-7"
STEPS = (20, 40, 60)
HERE = Context(PLACE, 60, 7200.0, resumable=True)
NODE = Machine(0, 1, "node-7", (Device("cuda:1 (H200)", "GPU-6f2c", "165"),))


def corrupt(verdict: str | None = None, **more: object) -> Headline:
    told = Headline(
        "corrupt", "Corrupt, proven.", ("two replays agree",), (), 26, 27, True, True, 0,
        "gradient", verdict, source="session 0002", machine=NODE,
    )  # fmt: skip
    return replace(told, **more)  # type: ignore[arg-type]


def archive(*suspect: int) -> list[Checkpoint]:
    return [
        Checkpoint(step, Path(f"{PLACE}/archive/step={step}"), "torch",
                   "suspect" if step in suspect else "clean")
        for step in STEPS
    ]  # fmt: skip


def advised(answer: Headline, context: Context = HERE) -> Advice:
    back = go_back(answer, archive(40, 60), PLACE, RESUME if context.resumable else None, 60)
    return advice(answer, back, context)


def audit(verdict: str, device: str | None = DEVICE, step: int = 27) -> Audited:
    return Audited(step, verdict, device, 0, True, f"{verdict}: the step repeats here")


def test_go_on_from_the_newest_clean_checkpoint_before_it() -> None:
    found = advised(corrupt("intermittent"))
    assert (found.resume, found.needed, found.discard, found.lost_hours) == (20, True, (21, 60), 2)
    assert discard_text(found) == ("Discard 40 steps", "21 to 60")
    commands = [command for command, _ in found.commands]
    assert commands[0] == (
        "sdc-guard restore '/runs/pre train' --to '/runs/pre train-restored-20' --step 20"
    )
    assert commands[1] == "python train.py --resume '/runs/pre train/archive/step=20' --until 60"
    assert found.evidence == ("two replays agree",)


@pytest.mark.parametrize("verdict", [*VERDICTS, None])
def test_every_verdict_has_its_advice(verdict: str | None) -> None:
    answer = corrupt(verdict)
    context = replace(HERE, audited=(audit(verdict or "undetermined"),))
    found = advised(answer, context)
    text = found.quarantine.why
    if verdict == "persistent on a device":
        assert found.quarantine.name == DEVICE
        assert found.test_on == "node-7"
    else:
        assert found.quarantine.name is None
    assert {
        "intermittent": "once does not say who did it" in text,
        "data or software": "the program makes it" in text,
        "storage": "accuses no device" in text,
        "undetermined": text == "No verdict names a device or a host.",
        None: text == "No verdict names a device or a host.",
        "persistent on a device": text.startswith("persistent"),
    }[verdict]
    assert found.disproof
    assert (found.test_on is not None) == (verdict in ("intermittent", "persistent on a device"))
    is_open = any("What kind of fault" in text for text in found.questions)
    assert is_open == (verdict in (None, "undetermined"))


def test_two_devices_detect_and_do_not_blame() -> None:
    verdict = "persistent on a device"
    context = replace(HERE, audited=(audit(verdict, None),))
    found = advised(corrupt(verdict), context)
    assert found.quarantine.name is None
    assert "two detect without telling which is wrong" in found.quarantine.why


def test_an_audit_of_another_step_names_nobody() -> None:
    verdict = "persistent on a device"
    context = replace(HERE, audited=(audit(verdict, step=11),))
    assert advised(corrupt(None), context).quarantine.name is None
    assert advised(corrupt(verdict), context).quarantine.name is None


def test_an_audit_gives_its_step_a_verdict_that_no_replay_has_given() -> None:
    context = replace(HERE, audited=(audit("persistent on a device"),))
    found = advised(corrupt(None, source="alerts", last_clean=None), context)
    assert found.quarantine.name == DEVICE


def test_of_several_ranks_the_accused_one_names_the_host() -> None:
    many = replace(HERE, world_size=8)
    found = advised(corrupt("intermittent", rank=5, machine=replace(NODE, rank=5)), many)
    assert found.test_on == "node-7"
    assert found.ran_on is not None
    assert found.ran_on.startswith(
        "host node-7, cuda:1 (H200), GPU-6f2c, serial 165 (rank 5, recorded as attempt 1 began)."
    )
    assert not any("Which host" in text for text in found.questions)
    found = advised(corrupt("intermittent", machine=None), many)
    assert (found.test_on, found.ran_on) == (None, None)
    assert any("Which host rank 0 ran on" in text for text in found.questions)


@pytest.mark.parametrize(
    ("answer", "level"),
    [
        (corrupt("intermittent"), "that this machine is broken is not"),
        (corrupt("undetermined"), "that this machine is broken is not"),
        (corrupt("persistent on a device"), "what it did repeats"),
        (corrupt(None, state="suspect", proven=False), "suspected by statistics alone"),
        (corrupt("storage"), None),
        (corrupt("data or software"), None),
        (corrupt(None, kind=STORED_BYTES, damaged_files=(40,)), None),
    ],
)
def test_where_it_ran_says_how_much_that_says(answer: Headline, level: str | None) -> None:
    ran_on = advised(answer).ran_on
    assert (ran_on is None) == (level is None)
    assert level is None or level in (ran_on or "")


def test_a_clean_run_has_nothing_to_do() -> None:
    found = advised(Headline("clean", "No incident.", source="alerts"))
    assert (found.resume, found.needed, found.discard) == (None, False, None)
    assert found.quarantine.why == "Nothing is accused."
    assert discard_text(found) == ("Discard", "nothing")
    assert "no further" in found.confidence
    assert any("replay" in text for text in found.disproof)


def test_a_suspicion_names_nobody_and_asks_for_a_replay() -> None:
    answer = Headline("suspect", "Suspected.", first_corrupt=27, source="alerts")
    found = advised(answer, replace(HERE, audited=(audit("persistent on a device"),)))
    assert found.quarantine.name is None
    assert found.test_on is None
    assert "do not convict" in found.confidence
    assert any(f"sdc-bisect run '{PLACE}'" == command for command, _ in found.commands)
    assert any("sdc-bisect verify" in command for command, _ in found.commands)


def test_a_damaged_file_sends_nobody_back() -> None:
    answer = corrupt(
        None, kind=STORED_BYTES, last_clean=20, first_corrupt=40, damaged_files=(40,),
        sound=(20, 60), training={"verdict": "sound", "proven": True},
    )  # fmt: skip
    back = go_back(answer, archive(), PLACE, RESUME, 60)
    found = advice(answer, back, HERE)
    assert (found.resume, found.needed, found.discard) == (60, False, None)
    assert found.quarantine.name is None
    assert any("Reading the file again" in text for text in found.disproof)


def test_no_checkpoint_to_go_back_to_is_told() -> None:
    answer = corrupt("intermittent")
    back = go_back(answer, archive(20, 40, 60), PLACE, RESUME, 60)
    found = advice(answer, back, HERE)
    assert (found.resume, found.discard) == (None, None)
    assert any("no readable checkpoint" in text for text in found.questions)
    assert not any("restore" in command for command, _ in found.commands)


def test_a_checkpoint_that_nobody_called_clean_is_restored_by_consent_only() -> None:
    back = GoBack(20, "c", "untested", "why")
    (command, why), *_ = advice(corrupt(), back, HERE).commands
    assert command.endswith("--step 20 --even-if-not-clean")
    assert "untested" in why
    (command, _), *_ = advice(corrupt(), replace(back, status="clean"), HERE).commands
    assert command.endswith("--step 20")


def test_a_run_in_a_lake_has_no_checkpoint_to_copy() -> None:
    found = advised(corrupt(), replace(HERE, is_lake=True, resumable=False))
    assert not any("restore" in command for command, _ in found.commands)


def test_no_verdict_is_left_without_what_would_overturn_it() -> None:
    for verdict in VERDICTS:
        assert disproof(corrupt(verdict)), verdict
    assert disproof(Headline("unknown", "Nothing.")) == []
    assert "range" in confidence(corrupt(exact=False))


def test_hours_are_short() -> None:
    told = [hours_text(hours) for hours in (0.01, 0.05, 1.234, 123.4)]
    assert told == ["36 s", "3 min", "1.2 h", "123 h"]


STATES = st.sampled_from(["corrupt", "suspect", "clean", "unknown"])
WORDS = st.one_of(st.none(), st.sampled_from([*VERDICTS, "sound", "no such"]))
MAYBE = st.one_of(st.none(), st.integers(0, 100))
AUDITS = st.lists(
    st.builds(
        Audited, st.integers(0, 100), st.sampled_from([*VERDICTS, "sound"]),
        st.one_of(st.none(), st.just(DEVICE)), st.integers(0, 7), st.booleans(), st.just("said"),
    ), max_size=4,
)  # fmt: skip
ANSWERS = st.builds(
    Headline, STATES, st.just("Said."), last_clean=MAYBE, first_corrupt=MAYBE, exact=st.booleans(),
    proven=st.booleans(), rank=MAYBE, kind=st.sampled_from([None, "gradient", STORED_BYTES]),
    verdict=WORDS, source=st.sampled_from(["", "alerts", "session 0001", "checkpoints"]),
    machine=st.sampled_from([None, NODE, replace(NODE, host=None)]),
)  # fmt: skip


@given(ANSWERS, AUDITS, MAYBE, st.integers(1, 3), st.booleans())
def test_nothing_is_advised_that_the_evidence_does_not_carry(
    answer: Headline, audits: list[Audited], step: int | None, ranks: int, needed: bool
) -> None:
    back = GoBack(step, None if step is None else "c", "clean", "why", needed=needed)
    context = Context(PLACE, 80, 1.0, ranks, tuple(audits), True)
    found = advice(answer, back, context)
    carried = [
        one for one in audits
        if one.proven and one.verdict == "persistent on a device" and one.device == DEVICE
        and answer.first_corrupt in (None, one.step)
    ]  # fmt: skip
    if found.quarantine.name is not None:
        assert answer.state == "corrupt"
        assert carried
    if found.test_on is not None:
        assert answer.machine == NODE
        assert answer.state == "corrupt"
        said = {answer.verdict} if answer.verdict else {one.verdict for one in audits if one.proven}
        assert said & {"intermittent", "persistent on a device"}
    everything = repr((found.commands, found.questions, found.disproof, found.confidence))
    assert DEVICE not in everything
    assert "node-7" not in everything or found.test_on is not None
    if found.resume is not None and answer.interval is not None:
        assert found.resume < answer.interval[1]
    if found.discard is not None:
        assert found.needed
        assert found.discard[0] == (found.resume or 0) + 1
