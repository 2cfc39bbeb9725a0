"""The answer of a report: never more than the evidence. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ..checkpoint import Checkpoint
from ..past_replays import SAME_BITS
from ..proven_alerts import ProvenAlert
from ..result import STORED_BYTES
from ..unread import in_words, unread
from ..watched import percent
from .bits import located_elements
from .facts import Headline, LocatedElement, State, Told

_EXACT: Final = ("trace", "integrity")  # judges that compare bit for bit
_NOT_SEARCHED: Final = "Not searched: a fault before it is not excluded (sdc-bisect run, verify)."
_BATCH: Final = "batch"
_GRADIENT: Final = "grad"
# of what a step computed: what came first in it, for the state that differs after it follows
_CAUSES: Final = {
    "activation": "its forward pass computed another loss than the replay",
    "gradient": "its backward pass computed other gradients than the replay",
    "optimizer update": "its update, or a gradient after the backward, is not that of the replay",
}


def accuses(told: Told) -> bool:
    """Whether a session says, of the run as it is now, that something is corrupt."""
    if told.result is None or not told.is_current:
        return False
    ends = ("first_corrupt", "last_corrupt")
    return any(told.result.get(end) is not None for end in ends)


def chosen(sessions: Sequence[Told]) -> Told | None:
    """The session that answers.

    The newest verification that names a step counts before a search, which names a checkpoint;
    the newest that finds something before those that find nothing.
    """
    accusing = [one for one in sessions if accuses(one)]
    verified = [one for one in accusing if one.command == "verify"]
    current = [one for one in sessions if one.result is not None and one.is_current]
    return next(iter((*reversed(verified), *reversed(accusing), *reversed(current))), None)


def of_session(told: Told, dtypes: Mapping[str, str]) -> Headline:
    """The answer that a session gives.

    Args:
        told: with a result.
        dtypes: layer to dtype, by their names.
    """
    result = told.result
    assert result is not None  # by the caller
    elements = located_elements(result["tensors"], dtypes)
    sound, accused = verdicts_of(result)
    proven = bool(result["proven"])
    state: State = "unknown"
    if accuses(told):
        state = "corrupt" if proven else "suspect"
    elif _is_clean(result):
        state = "clean"
    return Headline(
        state=state,
        sentence=_sentence(told, elements) if accuses(told) else told.sentence,
        rests_on=tuple(map(str, result["evidence"])),
        limits=_limits(result),
        last_clean=result["last_clean"],
        first_corrupt=result["first_corrupt"],
        exact=bool(result["exact"]),
        proven=proven,
        rank=result["rank"] if isinstance(result["rank"], int) else None,
        kind=_text(result["class"]),
        verdict=_text(result["verdict"]),
        elements=elements,
        tensors=tuple(result["tensors"]),
        source=f"session {told.name}",
        damaged_files=_damaged(told),
        training=result.get("state"),
        unreadable=tuple(result.get("unreadable", ())),
        sound=sound,
        accused=accused,
    )


def _is_clean(result: Mapping[str, Any]) -> bool:
    """Whether nothing is corrupt, and nothing is left that may be; the exit code says so.

    Earlier versions did not store it: of those `exact` has to say so.
    """
    if result.get("suspect") or result.get("unreadable") or result.get("damaged_files"):
        return False
    code = result.get("exit_code")
    return bool(result["exact"]) if code is None else code == 0


def _damaged(told: Told) -> tuple[int, ...]:
    """Steps of damaged files; a search of an earlier version names the first alone."""
    result = told.result or {}
    if told.command == "verify":
        return ()
    alone = [result["first_corrupt"]] if result["class"] == STORED_BYTES else []
    found = result.get("damaged_files") or alone
    return tuple(step for step in found if step is not None)


def verdicts_of(result: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Steps that were called clean and never corrupt, and those that were called corrupt."""
    said: dict[str, set[int]] = {"clean": set(), "corrupt": set()}
    for probe in result.get("probes", ()):
        if probe.get("verdict") in said:
            said[probe["verdict"]].add(probe["step"])
    sound = tuple(sorted(said["clean"] - said["corrupt"]))
    return sound, tuple(sorted(said["corrupt"]))


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _sentence(told: Told, elements: Sequence[LocatedElement]) -> str:
    result = told.result or {}
    if told.command != "verify" or result["first_corrupt"] is None or not result["exact"]:
        return f"{'Corrupt' if result['proven'] else 'Suspected, not proven'}: {told.sentence}"
    certainty = "Corrupt, proven" if result["proven"] else "Suspected, not proven"
    where = "" if result["rank"] is None else f" on rank {result['rank']}"
    if result["class"] == _BATCH:  # the model and its device have computed what they were given
        return (
            f"{certainty}: step {result['first_corrupt']} was trained{where} on another batch than "
            f"its replay; verdict: {result['verdict']}."
        )
    first = f"{certainty}: step {result['first_corrupt']} is the first corrupted step{where}"
    shown = f"; {element_text(elements[0])}." if elements else _tensor_text(result)
    cause = _CAUSES.get(str(result["class"]))
    if cause is None or (elements and elements[0].kind == _GRADIENT):
        return first + shown
    return f"{first}: {cause}{_trace_of(elements[0]) if elements else shown}"


def _tensor_text(result: Mapping[str, Any]) -> str:
    if not result["tensors"]:
        return "."
    first = result["tensors"][0]
    more = len(result["tensors"]) - 1 + int(result.get("more_tensors") or 0)
    return f"; {first.get('kind')} {first.get('name')} differs" + (
        f", and {more} tensors more." if more else "."
    )


def _trace_of(element: LocatedElement) -> str:
    """Where the state shows what was computed; its bits follow from that."""
    return f"; it shows in element {element.index} of {element.kind} {element.name}."


def element_text(element: LocatedElement) -> str:
    """What of an element changed: its bits by place and part, and its value."""
    bits = ", ".join(
        str(bit.position) + (f" ({bit.part})" if bit.part != "bit" else "")
        for bit in element.flipped
    )
    values = ""
    if element.before_value is not None and element.after_value is not None:
        values = f": {element.before_value} became {element.after_value}"
    word = "bit" if len(element.flipped) == 1 else "bits"
    return f"{word} {bits} of element {element.index} of {element.kind} {element.name}{values}"


def _limits(result: Mapping[str, Any]) -> tuple[str, ...]:
    """What the answer does not claim."""
    found = []
    watched = result.get("watched")
    if isinstance(watched, int | float) and watched < 1:
        found.append(f"{percent(watched)} of what could be compared was: the rest is not known.")
    if not result["proven"] and _is_weak(result):
        found.append("Not proven: a statistic or a command judged, and either may be wrong.")
    if result.get("claim") == "transition":
        found.append("Checkpoints before it were not judged: it is the first only if what is "
                     "corrupt stays corrupt.")  # fmt: skip
    if result["skipped"]:
        steps = ", ".join(map(str, result["skipped"][:20]))
        found.append(f"Could not be judged: checkpoints of step {steps}.")
    return (*found, *of_training(result["class"], result.get("state") or {}))


def _is_weak(result: Mapping[str, Any]) -> bool:
    """Whether one that may err judged; also where it is not known who did."""
    said = [one for one in result.get("probes", ()) if one.get("verdict") != "untestable"]
    return not said or any(one.get("oracle") not in _EXACT for one in said)


def of_training(kind: str | None, known: Mapping[str, Any]) -> tuple[str, ...]:
    """What an answer about a damaged file does not claim of the training.

    Args:
        kind: class of the fault; of others than stored bytes there is nothing to say.
        known: of the training, as `Headline.training`.
    """
    if kind != STORED_BYTES:
        return ()
    if known.get("verdict") == "corrupt":
        if known.get("proven"):
            return ()
        return ("That the training went wrong, too, is suspected, not proven: a statistic may be "
                "wrong.",)  # fmt: skip
    if known.get("verdict") == "sound":
        return ("The fault is in the checkpoint's file, and not in the training.",)
    return ("The fault is in the checkpoint's file: that the training went wrong is not shown, and "
            "neither is that it was sound.",)  # fmt: skip


def of_trace(
    recorded: int, proven: int | None, incidents: Sequence[tuple[int, str]], alerts: int,
    tensors: Sequence[Mapping[str, Any]], dtypes: Mapping[str, str], damaged: int,
    alert: ProvenAlert | None = None,
) -> Headline:  # fmt: skip
    """The answer of a run that nobody searched, by what its guard recorded.

    Args:
        recorded: how many steps.
        proven: step of the first alert from an exact comparison, or None.
        incidents: those that are open: their first step, and what they began with.
        alerts: how many there are.
        tensors: what the guard itself located at that step.
        dtypes: layer to dtype, by their names.
        damaged: how many files of the trace could not be read.
        alert: the first proven one about what a step computed.
    """
    first = tuple(text for _, text in incidents[:1] if text)
    if proven is not None:
        elements = located_elements(tensors, dtypes)
        what = f"; {element_text(elements[0])}" if elements else ""
        apart = alert if alert is not None and alert.of_ranks and alert.step == proven else None
        if apart is not None:
            what = f": {_since(apart)}"
        return Headline(
            state="corrupt",
            sentence=f"Corrupt, proven: step {proven} is the first with an alert from an exact "
            f"comparison{what}.",
            rests_on=first,
            limits=(_NOT_SEARCHED,),
            first_corrupt=proven,
            proven=True,
            elements=elements,
            tensors=tuple(tensors),
            source="alerts",
            apart=apart,
        )
    if incidents:
        return Headline(
            state="suspect",
            sentence=f"Suspected, not proven: an incident is open since step {incidents[0][0]}.",
            rests_on=first,
            limits=("A statistic suspects and does not convict.",),
            first_corrupt=incidents[0][0],
            source="alerts",
        )
    steps = f"{recorded:,} steps recorded"
    if alerts:
        text = f"Suspected, not proven: {alerts} alerts of statistics, and no open incident."
        return Headline("suspect", text, source="alerts")
    if not recorded:
        return Headline("unknown", "Nothing to judge: no step is recorded.")
    if damaged:
        text = f"Unknown: no finding in {steps}, and {damaged} files of the trace cannot be read."
        return Headline("unknown", text)
    return Headline("clean", f"No incident: no check found anything in {steps}.", source="alerts")


def _since(alert: ProvenAlert) -> str:
    if alert.after is None:
        return "ranks differ, and the last comparison at which they were equal is not recorded"
    return f"ranks differ that were equal at step {alert.after}"


def after_search(by_trace: Headline, by_session: Headline) -> Headline:
    """The answer of alerts where a search found nothing: it takes no alert back."""
    said = (
        f"{by_session.source} found no corrupt checkpoint; what a step computed wrong it does not "
        "see, a replay does."
    )
    limits = [limit for limit in by_trace.limits if limit != _NOT_SEARCHED]
    said = said[0].upper() + said[1:]
    return replace(by_trace, limits=(*limits, said), searched=by_session.source)


def after_equal_replay(by_trace: Headline, session: str) -> Headline:
    """The answer of a suspicion whose steps a replay ran to the same bits.

    Args:
        by_trace: that suspects; what is proven a replay takes nothing from.
        session: name of the replay's.
    """
    told = f"replayed by session {session}: {SAME_BITS}"
    sentence = f"{by_trace.sentence.removesuffix('.')}; {told}."
    limits = tuple(limit for limit in by_trace.limits if limit != _NOT_SEARCHED)
    return replace(by_trace, sentence=sentence, limits=limits, repeated=f"session {session}")


def of_archive(checkpoints: Sequence[Checkpoint]) -> Headline:
    """The answer of checkpoints that nobody recorded and nobody searched."""
    text = f"Unknown: {len(checkpoints)} checkpoints, of which nothing was recorded or judged."
    hint = "sdc-bisect scan ARCHIVE looks at their bytes, sdc-bisect run ARCHIVE searches."
    return Headline("unknown", text, limits=(hint,))


def with_checkpoints(answer: Headline, checkpoints: Sequence[Checkpoint]) -> Headline:
    """The same answer; if it accuses nothing and a checkpoint is accused, that one's."""
    if answer.state in ("corrupt", "suspect"):
        return answer
    accused: tuple[State, ...] = ("corrupt", "suspect")
    for status in accused:
        held = [one for one in checkpoints if one.status == status]
        if not held:
            continue
        certainty = "Corrupt" if status == "corrupt" else "Suspected, not proven"
        return Headline(
            state=status,
            sentence=f"{certainty}: the checkpoint of step {held[0].step} is the first that is "
            f"{status}; {len(held)} are.",
            rests_on=held[0].reasons,
            limits=(answer.sentence,),
            first_corrupt=held[0].step,
            source="checkpoints",
        )
    return answer


def with_unread_bytes(
    answer: Headline, checkpoints: Sequence[Checkpoint], sessions: Sequence[Told]
) -> Headline:
    """The same answer; where it accuses nothing, how many files nobody has read since the save.

    A guard reads what it saves once. What becomes of a file after that only reading it shows.
    """
    if answer.state not in ("clean", "unknown"):
        return answer
    read = {
        probe["step"]
        for one in sessions
        if one.result is not None and one.is_current
        for probe in one.result.get("probes", ())
        if probe.get("oracle") in _EXACT and probe.get("verdict") != "untestable"
    }
    left = [one.step for one in checkpoints if one.readable and one.step not in read]
    if not left:
        return answer
    noun = "1 checkpoint" if len(left) == 1 else f"{len(left)} checkpoints"
    files = "its file" if len(left) == 1 else "their files"
    limit = (
        f"The bytes of {noun} were not read since the save, as far as is kept here: whether "
        f"{files} rotted is not known."
    )
    return replace(answer, limits=(*answer.limits, limit), unread_bytes=len(left))


def with_unreadable(answer: Headline, checkpoints: Sequence[Checkpoint]) -> Headline:
    """The same answer; it names the checkpoints that cannot be read, and that it does not yet."""
    told = {*answer.damaged_files, *(one["step"] for one in answer.unreadable)}
    more = tuple(one for one in unread(checkpoints, {}) if one["step"] not in told)
    if not more:
        return answer
    said = in_words(more)
    return replace(
        answer,
        sentence=f"{answer.sentence} {said[0].upper()}{said[1:]}.",
        unreadable=(*answer.unreadable, *more),
    )
