"""What to do now: where to go on, what to discard, what to test, and how sure that is. Pure.

It never says more than its evidence: a host or a device is named for quarantine only by a verdict
that carries one, and no step at or after the first corrupt one is advised to go on from.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Final

from forensics.reporting.facts import GoBack, Headline

from .disproof import confidence, disproof
from .wording import count, span_text

PERSISTENT: Final = "persistent on a device"
INTERMITTENT: Final = "intermittent"
_STORAGE: Final = "storage"
_SOFTWARE: Final = "data or software"
_OF_A_HOST: Final = (INTERMITTENT, PERSISTENT)


@dataclass(frozen=True)
class Audited:
    """What a step that was run again said.

    Attributes:
        step, verdict: which.
        device: that it names; None where it names none.
        rank: that reported it.
        proven: whether an exact comparison convicts.
        text: what it said.
    """

    step: int
    verdict: str
    device: str | None
    rank: int
    proven: bool
    text: str


@dataclass(frozen=True)
class Context:
    """What the advice rests on besides the report.

    Attributes:
        place: the run's folder, or its location in a lake.
        last: the newest recorded step.
        lost_seconds: what the steps after the one to go back to took.
        world_size: number of ranks.
        audited: findings of audits, by step.
        resumable: whether the run recorded a resume command.
        is_lake: whether the run is in a lake: no checkpoint lies there.
    """

    place: str
    last: int | None = None
    lost_seconds: float | None = None
    world_size: int = 1
    audited: tuple[Audited, ...] = ()
    resumable: bool = False
    is_lake: bool = False


@dataclass(frozen=True)
class Quarantine:
    """A device, a host, or none: `name` is None where nothing may be named; `why` always says."""

    name: str | None
    why: str


@dataclass(frozen=True)
class Advice:
    """What to do.

    Attributes:
        resume: step of the checkpoint to go on from; None where there is none, or no need.
        needed: whether the training has to go back.
        discard: first and last step to discard; None for nothing.
        lost_hours: what they took, in hours; None where that is not known.
        quarantine: which device or host to take out.
        test_on: the host to test; None where no verdict points to one.
        ran_on: where the accused rank ran, and how much that says; None where it is not known.
        commands: to copy, with what each is for.
        confidence: in words; `evidence` is what it rests on.
        disproof: what would show that it is wrong.
        questions: what is open.
    """

    resume: int | None
    path: str | None
    why: str
    needed: bool
    discard: tuple[int, int] | None
    lost_hours: float | None
    quarantine: Quarantine
    test_on: str | None
    ran_on: str | None
    commands: tuple[tuple[str, str], ...]
    confidence: str
    evidence: tuple[str, ...]
    disproof: tuple[str, ...]
    questions: tuple[str, ...]


def go_back_of(answer: Headline, back: GoBack) -> GoBack:
    """The report's advice, if it lies before the first corrupt step of what it is about."""
    found = answer.interval
    if back.step is None or found is None or back.step < found[1]:
        return back
    why = f"Advised was step {back.step}, which is not before the first corrupt one, {found[1]}."
    return GoBack(None, None, None, why, then=back.then)


def advice(answer: Headline, back: GoBack, context: Context) -> Advice:
    """The advice.

    Args:
        answer, back: the report's.
        context: of the run.
    """
    back = go_back_of(answer, back)
    discard = _discard(back, context)
    verdict = _verdict(answer, context)
    test_on = _test_on(answer, verdict)
    return Advice(
        resume=back.step,
        path=back.path,
        why=back.why,
        needed=back.needed and back.step is not None,
        discard=discard,
        lost_hours=None
        if discard is None or context.lost_seconds is None
        else context.lost_seconds / 3600,
        quarantine=_quarantine(answer, verdict, context),
        test_on=test_on,
        ran_on=_ran_on(answer, verdict),
        commands=tuple(_commands(answer, back, context, test_on)),
        confidence=confidence(answer),
        evidence=answer.rests_on,
        disproof=tuple(disproof(answer)),
        questions=tuple(_questions(answer, back, verdict, context)),
    )


def _discard(back: GoBack, context: Context) -> tuple[int, int] | None:
    if back.step is None or not back.needed or context.last is None or context.last <= back.step:
        return None
    return back.step + 1, context.last


def _about(answer: Headline, context: Context) -> Audited | None:
    """The audit of the very step that the answer names; without a step the newest proven one."""
    found = [one for one in context.audited if one.proven]
    if answer.first_corrupt is not None:
        found = [one for one in found if one.step == answer.first_corrupt]
    return found[-1] if found and answer.state == "corrupt" else None


def _verdict(answer: Headline, context: Context) -> str | None:
    """The replay ladder's, else the audit's of the same step."""
    if answer.verdict is not None:
        return answer.verdict
    audited = _about(answer, context)
    return None if audited is None else audited.verdict


def _quarantine(answer: Headline, verdict: str | None, context: Context) -> Quarantine:
    audited = _about(answer, context)
    if verdict == PERSISTENT and audited is not None and audited.verdict == PERSISTENT:
        if audited.device is not None:
            return Quarantine(audited.device, audited.text)
        why = "Devices differ from each other, and two detect without telling which is wrong."
        return Quarantine(None, why)
    if verdict == INTERMITTENT:
        why = "It happened once, and once does not say who did it: a device strikes out by the "
        return Quarantine(None, f"{why}ledger, after several (sdc-guard strikes).")
    if verdict == _STORAGE or answer.is_of_files:
        return Quarantine(None, "A file changed where it lay: that accuses no device that trains.")
    if verdict == _SOFTWARE:
        return Quarantine(None, "The same comes out elsewhere: the program makes it of this batch.")
    if answer.state in ("corrupt", "suspect"):
        return Quarantine(None, "No verdict names a device or a host.")
    return Quarantine(None, "Nothing is accused.")


def _test_on(answer: Headline, verdict: str | None) -> str | None:
    """The host that the accused rank ran on."""
    if answer.state != "corrupt" or verdict not in _OF_A_HOST or answer.machine is None:
        return None
    return answer.machine.host


def _ran_on(answer: Headline, verdict: str | None) -> str | None:
    """Where the accused rank ran, by its own record, and what that does not say."""
    where = answer.machine
    if where is None or answer.is_of_files or verdict in (_STORAGE, _SOFTWARE):
        return None
    if not answer.proven:
        how = "It is suspected by statistics alone: test it before anything is replaced."
    elif verdict == PERSISTENT:
        how = "Proven on that rank, and what it did repeats."
    else:
        how = (
            "Proven is that it happened on that rank; that this machine is broken is not. Test it, "
            "and see whether it strikes again."
        )
    return f"{where.text} (rank {where.rank}, recorded as attempt {where.attempt} began). {how}"


def _commands(
    answer: Headline, back: GoBack, context: Context, test_on: str | None
) -> list[tuple[str, str]]:
    where = shlex.quote(context.place)
    found = []
    if back.step is not None and not context.is_lake:
        target = shlex.quote(f"{context.place.rstrip('/')}-restored-{back.step}")
        restore = f"sdc-guard restore {where} --to {target} --step {back.step}"
        what = "Copy that checkpoint out, its bytes compared on the way"
        if back.status != "clean":
            restore += " --even-if-not-clean"
            what += f"; no guard called it clean when it was saved: {back.status}"
        found.append((restore, what))
    if back.command is not None and back.needed:
        what = "Go on from it: the command that the training script recorded, up to its last step"
        found.append((back.command, f"{what}; read it before you run it"))
    found += [(command, f"{why}.".replace("..", ".")) for command, why in back.then]
    if _wants_verify(answer, back, context):
        found.append(
            (f"sdc-bisect verify {where} --recorded", "Replay, to know step, tensor and bit")
        )
    if test_on is not None:
        found.append(
            (
                f"sdc-guard selftest --run {where}",
                f"On the host {test_on}: test the machine; a pass does not prove it sound",
            )
        )
    return found


def _wants_verify(answer: Headline, back: GoBack, context: Context) -> bool:
    """Whether a replay would say more, and can be made; the report may advise it already."""
    if context.is_lake or not context.resumable or answer.state not in ("corrupt", "suspect"):
        return False
    if answer.verdict is not None or answer.repeated:
        return False
    return not any("sdc-bisect verify" in command for command, _ in back.then)


def _questions(answer: Headline, back: GoBack, verdict: str | None, context: Context) -> list[str]:
    found = list(answer.limits)
    if answer.state in ("corrupt", "suspect"):
        if back.step is None:
            found.append(f"Where to go on from is open: {back.why}")
        if not answer.exact and answer.interval is not None:
            low, high = answer.interval
            found.append(
                f"Which step it began at: after {'the start' if low is None else low}, and not "
                f"after {high}."
            )
        if verdict in (None, "undetermined"):
            found.append("What kind of fault it was: no replay has told yet.")
        if verdict == INTERMITTENT:
            found.append("Whether it comes again: one event gives no rate.")
        if verdict in _OF_A_HOST and context.world_size > 1:
            rank = "the rank" if answer.rank is None else f"rank {answer.rank}"
            if answer.machine is None or answer.machine.host is None:
                found.append(f"Which host {rank} ran on: it is not recorded; the launcher knows.")
    if context.last is not None and back.step is not None and not context.resumable:
        found.append("How the training is resumed: the run recorded no command for it.")
    return found


def discard_text(found: Advice) -> tuple[str, str]:
    """What to discard, as a label and its value: `Discard 40 steps`, `21 to 60`."""
    if found.discard is None:
        return "Discard", "nothing"
    first, last = found.discard
    return f"Discard {count(last - first + 1, 'step')}", span_text(first, last)


def hours_text(hours: float) -> str:
    """Hours with two significant digits; below a tenth of one minutes, below two of these seconds.

    >>> hours_text(0.01), hours_text(0.05), hours_text(1.23)
    ('36 s', '3 min', '1.2 h')
    """
    if hours < 1 / 30:
        return f"{hours * 3600:.2g} s"
    if hours < 0.1:
        return f"{hours * 60:.2g} min"
    return f"{hours:,.2g} h" if hours < 10 else f"{hours:,.0f} h"
