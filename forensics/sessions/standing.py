"""How far a session is: what is known of the checkpoints there are, and what to judge next.

Pure: the checkpoints and the entries are given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sdc_guard.errors import ArchiveIncomplete, UsageError

from ..bracket import find_bracket_of
from ..checkpoint import Checkpoint
from ..damage_first import damage_first
from ..oracles.judged_before import JudgedBefore
from ..oracles.judgement import Judgement, Oracle
from ..result import Result
from ..search import Found, Verdict
from ..search.asked import Asked
from ..search.choose import planner_for
from ..search.planner import Planner
from ..span import Span, span
from .state import Entry, State


@dataclass(frozen=True)
class Standing:
    """A session's entries, put to the checkpoints.

    Attributes:
        part: the checkpoints that are searched.
        asked: the search's options.
        known: places that were judged, in that order: judgement, and who judged.
    """

    part: Span
    asked: Asked
    known: tuple[tuple[int, Judgement, str], ...]

    def of_bytes(self) -> Standing:
        """What a judge of bytes is asked before one of the state.

        That an end is bad is meant of its state, unless its bytes say so by themselves: sound
        bytes do not contradict it, and one that is trusted to be bad is no damaged file.
        """
        part = self.part
        given = {place: one for place, one in part.given.items() if one != "corrupt"}
        last = len(part.candidates) - 1
        if part.trusted.get(last) != "corrupt":
            return replace(self, part=replace(part, given=given))
        trusted = {place: one for place, one in part.trusted.items() if place != last}
        part = replace(part, candidates=part.candidates[:last], given=given, trusted=trusted)
        return replace(self, part=part, known=tuple(one for one in self.known if one[0] != last))

    def ahead(self, more: Mapping[int, Verdict] | None = None) -> tuple[Planner, Checkpoint | None]:
        """The search as it stands, and what it asks for; None when it is over.

        Args:
            more: verdicts to take besides.
        """
        told = [(place, judgement.verdict) for place, judgement, _ in self.known]
        told += (more or {}).items()
        count = len(self.part.candidates)
        planner = planner_for(self.asked, count, self.part.skipped, self.part.trusted, told=told)
        places = planner.ask(1)
        while self.asked.repeat > 1 and places:
            known = next((one for one in told if one[0] == places[0]), None)
            if known is None:
                break
            told.remove(known)
            planner.tell(*known)
            places = planner.ask(1)
        return planner, self.part.candidates[places[0]] if places else None

    def following(self, more: Mapping[int, Verdict] | None = None) -> Checkpoint | None:
        """What to judge next; None when the search is over."""
        return self.ahead(more)[1]

    def left(self) -> int:
        """About how many judgings are left, at most unless some cannot be tested."""
        planner, following = self.ahead()
        return 0 if following is None else max(planner.remaining(), 1)

    def found(self) -> Found:
        """What is known by now."""
        return self.ahead()[0].found()

    def bracket(self) -> tuple[int | None, int | None]:
        """Steps of the last clean and of the first corrupt one by now.

        With --first-good of the last corrupt and the first clean one.
        """
        found = self.found()
        return self._step(found.last_clean), self._step(found.first_corrupt)

    def result(self) -> Result:
        """The answer of a search that is over.

        Raises:
            ArchiveIncomplete: nothing could be judged, or it is not over.
            UsageError: an end is not what was said of it.
        """
        names = [by for _, _, by in self.known]
        try:
            return self._result(JudgedBefore(names))
        except ArchiveIncomplete:
            # what proves would judge more before it says that nothing is corrupt
            return self._result(JudgedBefore(()))

    def _result(self, oracle: Oracle) -> Result:
        found = find_bracket_of(self.part, self.known, oracle, None, lambda _: None, self.asked)
        return damage_first(found)

    def place(self, checkpoint: Checkpoint) -> int | None:
        """Where a checkpoint is in what is searched; None if it is not in it."""
        places = (i for i, one in enumerate(self.part.candidates) if one.path == checkpoint.path)
        return next(places, None)

    def _step(self, place: int | None) -> int | None:
        return None if place is None else self.part.candidates[place].step


def standing(state: State, archive: Path, candidates: Sequence[Checkpoint]) -> Standing:
    """Put a session's entries to the checkpoints that there are now.

    What was judged and is gone, or lies outside of what is searched, counts no more.

    Raises:
        UsageError: the options do not fit the checkpoints.
    """
    part = span(candidates, state.asked)
    places = {name_of(one, archive): place for place, one in enumerate(part.candidates)}
    known: list[tuple[int, Judgement, str]] = []
    skipped = set(part.skipped)
    for entry in state.entries:
        place = places.get(entry.name)
        if place is None:
            continue
        if entry.judgement is None:
            known = [one for one in known if one[0] != place]
            if place not in part.trusted:
                skipped.add(place)
        else:
            skipped.discard(place)
            if not state.asked.by_chance:  # what was said last counts
                known = [one for one in known if one[0] != place]
            known.append((place, entry.judgement, entry.by))
    judged = {place for place, _, _ in known}
    trusted = {place: one for place, one in part.trusted.items() if place not in judged}
    part = replace(part, skipped=tuple(sorted(skipped)), trusted=trusted)
    return Standing(part, state.asked, tuple(known))


def name_of(checkpoint: Checkpoint, archive: Path) -> str:
    """What a checkpoint is called in the journal: its path in the archive, which may move.

    Outside of the archive, where a guard seals files in place, it is the whole path: names of
    files alone are often the same for every step.
    """
    path = checkpoint.path
    if not path.is_relative_to(archive):
        path, archive = path.absolute(), archive.absolute()
    return (path.relative_to(archive) if path.is_relative_to(archive) else path).as_posix()


def chosen(text: str, archive: Path, candidates: Sequence[Checkpoint]) -> Checkpoint:
    """The checkpoint of a step, or of a name.

    Raises:
        UsageError: there is none, or several of that step or name.
    """
    for one in candidates:
        if text in (name_of(one, archive), str(one.path)):
            return one
    named = [one for one in candidates if one.path.name == text]
    if len(named) == 1:
        return named[0]
    if named:
        names = ", ".join(name_of(one, archive) for one in named)
        raise UsageError(f"several checkpoints are named {text}", next_step=f"name one: {names}")
    try:
        step = int(text)
    except ValueError:
        raise UsageError(
            f"no checkpoint {text!r}", where=str(archive), next_step="give the number of its step"
        ) from None
    of_step = [one for one in candidates if one.step == step]
    if len(of_step) == 1:
        return of_step[0]
    if of_step:
        names = ", ".join(name_of(one, archive) for one in of_step)
        raise UsageError(f"several checkpoints are of step {step}", next_step=f"name one: {names}")
    steps = sorted({one.step for one in candidates}, key=lambda known: (abs(known - step), known))
    there = ", ".join(map(str, sorted(steps[:10]))) + ", ..." * (len(steps) > 10)
    raise UsageError(f"no checkpoint of step {step}", next_step=f"there is {there}")


def contradiction(current: Standing, checkpoint: Checkpoint, verdict: Verdict | None) -> str | None:
    """Why a verdict cannot be taken; None if it can.

    Args:
        current: the session so far.
        checkpoint: what is judged.
        verdict: None if it is to be skipped.
    """
    place, step = current.place(checkpoint), checkpoint.step
    if place is None:
        first, last = current.part.candidates[0].step, current.part.candidates[-1].step
        return f"step {step} is not among those that are searched, {first} to {last}"
    if verdict is None:
        return f"step {step} is an end that is trusted" if place in current.part.trusted else None
    given = current.part.given.get(place)
    if given is None or given == verdict or verdict == "untestable":
        return None
    return f"the search was started with step {step} as {'good' if given == 'clean' else 'bad'}"


def out_of_order(current: Standing) -> str | None:
    """A line if something is clean after something corrupt; None if nothing is.

    With --first-good if something is corrupt after something clean.
    """
    if current.asked.by_chance:
        return None
    found = current.found()
    if not found.later_clean or found.first_corrupt is None:
        return None
    first = current.part.candidates[found.first_corrupt].step
    later = current.part.candidates[found.later_clean[0]].step
    one, other = ("good", "bad") if current.asked.first_good else ("bad", "good")
    text = f"step {first} is {one} and step {later} after it {other}"
    return (
        f"{text}: swapped? (`sdc-bisect undo` takes the last judging back)"
        if (found.last_clean is None)
        else f"not monotone: {text}"
    )


def counted(entries: Sequence[Entry]) -> dict[str, int]:
    """How many judgings are whose."""
    counts: dict[str, int] = {}
    for entry in entries:
        if entry.judgement is not None:
            counts[entry.by] = counts.get(entry.by, 0) + 1
    return counts
