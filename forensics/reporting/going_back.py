"""Which checkpoint to go back to, and by which command. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sdc_guard.errors import UsageError

from ..checkpoint import Checkpoint
from ..past_replays import SAME_BITS
from ..replay import ResumeCommand
from ..replay_hint import replay_command
from .facts import GoBack, Headline
from .past_damage import not_to_use, past_damage


def go_back(
    answer: Headline,
    checkpoints: Sequence[Checkpoint],
    place: str,
    resume: str | None,
    last: int | None,
    guarded: bool = True,
    elsewhere: Sequence[tuple[int, str]] | None = None,
) -> GoBack:
    """The advice.

    A checkpoint of step N holds the result of step N. Advised is the newest that the answer calls
    clean; one that was held back or that cannot be read is not. Where a file is damaged, later ones
    were not made from it: the training goes back only if its own state went wrong.

    Args:
        answer: of the report.
        checkpoints: by step.
        place: of the run or archive.
        resume: the command that the training script recorded, or None.
        last: the last recorded step, for `{step}` in it.
        guarded: whether a guard recorded the training, so that it can be verified by its trace.
        elsewhere: of a run in a lake, whose checkpoints lie in its folder: step and path of those
            that the guard called clean, by step. None where they lie at `place`.
    """
    then = _then(answer, place, resume, guarded)
    if answer.state in ("clean", "unknown") and answer.first_corrupt is None:
        why = "Nothing says that the training has to go back." + _unread(answer)
        if answer.unread_bytes:
            why += " Whether the files are as they were saved is another question: read them."
            then = (*then, *_read_all(place))
        return GoBack(None, None, None, why, then=then)
    if answer.repeated:
        why = (
            f"Nothing says that the training has to go back: {answer.repeated} replayed the "
            f"suspected steps, and {SAME_BITS}. On another host of the same kind a replay excludes "
            "such a device."
        )
        return GoBack(None, None, None, why)
    if answer.is_of_files:
        back = past_damage(answer, checkpoints)
        if back.path is None:
            return replace(back, then=then)
        command = _command(resume, Path(back.path), place, last)
        return replace(back, command=command, then=then)
    limit = _limit(answer)
    if limit is None:
        why = "No checkpoint is known to be clean before the fault."
        return GoBack(None, None, None, why, then=then)
    fit = [
        one
        for one in checkpoints
        if one.readable and one.step <= limit and one.status not in ("suspect", "corrupt")
        and one.step not in (*answer.damaged_files, *answer.accused)
    ]  # fmt: skip
    if answer.last_clean is None:  # nobody judged: what the guard called clean
        fit = [one for one in fit if one.status == "clean"]
    if elsewhere is not None:
        return GoBack(None, None, None, _in_the_folder(elsewhere, answer, limit), then=then)
    if not fit:
        told = "that was called clean" if answer.last_clean is None else "that was not held back"
        why = f"There is no readable checkpoint up to step {limit} {told}."
        return GoBack(None, None, None, why, then=then)
    best = fit[-1]
    return GoBack(
        step=best.step,
        path=str(best.path),
        status=best.status,
        why=_why(answer, best, limit),
        command=_command(resume, best.path, place, last),
        then=_replay(place, best.step, resume) if answer.searched and guarded else then,
    )


def with_advice(answer: Headline, back: GoBack) -> Headline:
    """The same answer; its sentence says which checkpoint to go back to."""
    if back.step is None:
        return answer
    told = answer.sentence.removesuffix(".")
    if answer.is_of_files:
        advice = f"the newest sound one is {back.step} ({back.grounds})"
        if back.needed:
            advice = f"go back to the checkpoint of step {back.step} ({back.grounds})"
        return replace(answer, sentence=f"{told}. {not_to_use(answer.damaged_files)}; {advice}.")
    return replace(answer, sentence=f"{told}; go back to the checkpoint of step {back.step}.")


def _limit(answer: Headline) -> int | None:
    """The last step whose result counts as clean."""
    if answer.last_clean is not None:
        return answer.last_clean
    if answer.first_corrupt is None or answer.source.startswith("session"):
        return None
    if answer.apart is not None and answer.apart.after is not None:
        return answer.apart.after
    return answer.first_corrupt - 1


def _why(answer: Headline, best: Checkpoint, limit: int) -> str:
    if answer.last_clean is None:
        searched = "nobody has searched yet."
        if answer.searched:
            searched = f"{answer.searched} found no corrupt one; no replay has shown the step."
        before = f"before step {answer.first_corrupt}"
        if answer.apart is not None and answer.apart.after is not None:
            before = f"up to step {limit}, at which ranks were still equal"
        elif answer.apart is not None:
            before += " (whether ranks were equal then is not recorded)"
        return f"The newest that the guard called clean {before}; {searched}"
    said = f"{answer.source} calls everything up to step {limit} clean"
    return f"The newest checkpoint up to that step: {said}." + (
        f" Its status when it was saved: {best.status}." if best.status != "clean" else ""
    )


def _in_the_folder(clean: Sequence[tuple[int, str]], answer: Headline, limit: int) -> str:
    fit = [one for one in clean if one[0] <= limit and one[0] not in answer.accused]
    where = "Checkpoints are not uploaded: they lie in the run's folder, where sdc-guard restore"
    if not fit:
        return f"{where} finds them; by the record none up to step {limit} was called clean."
    step, path = fit[-1]
    return (
        f"{where} copies one out. The newest up to step {limit} that the guard called clean is "
        f"that of step {step}, {path}; what became of its file since is not known here."
    )


def _command(resume: str | None, checkpoint: Path, place: str, last: int | None) -> str | None:
    if resume is None or ("{step}" in resume and last is None):
        return None
    try:
        filled = ResumeCommand.parse(resume).fill(checkpoint, last or 0, Path(place))
    except (UsageError, ValueError):
        return None
    return shlex.join(filled)


def _unread(answer: Headline) -> str:
    steps = ", ".join(str(one["step"]) for one in answer.unreadable)
    return f" Do not restore from what cannot be read: {steps}." if steps else ""


def _read_all(place: str) -> tuple[tuple[str, str], ...]:
    if place.startswith("ducklake:"):
        return ()
    said = "Read the bytes of every checkpoint, and compare them with what was saved"
    return ((f"sdc-bisect scan {shlex.quote(place)}", said),)


def _replay(place: str, start: int, resume: str | None) -> tuple[tuple[str, str], ...]:
    said = "Replay, to know the step that computed wrong, if one did"
    return ((replay_command(place, resume, start), said),)


def _then(
    answer: Headline, place: str, resume: str | None, guarded: bool
) -> tuple[tuple[str, str], ...]:
    """What would say more."""
    where = shlex.quote(place)
    if place.startswith("ducklake:"):
        return ()
    if not answer.source.startswith("session"):
        return ((f"sdc-bisect run {where}", "Find the first corrupt checkpoint"),)
    found = answer.interval
    if found is None or (answer.verdict is not None and not answer.is_of_files):
        return ()
    low, high = found
    between = "" if low is None else f" --from {low} --to {high}"
    if guarded:
        ends = (low, high) if answer.is_of_files else ()
        return ((replay_command(place, resume, *ends), "Replay, to know step, tensor and bit"),)
    if low is None:
        return ()
    said = "Where the training kept a log of its losses, LOG: replay, to know the step by them"
    how = "-- COMMAND --resume {ckpt} --until {step}"
    return ((f"sdc-bisect verify {where} --losses LOG{between} {how}", said),)
