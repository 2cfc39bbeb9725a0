"""From where a search ended to an answer that claims no more than it shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from sdc_guard.archive.save import STATE_FILE
from sdc_guard.errors import EXIT_RANGE_ONLY

from .changes_seen import changes_of, in_words
from .checkpoint import Checkpoint
from .oracles.judgement import Judgement, Oracle
from .readers.guard_archive import FORMAT as GUARD
from .reservations import of_chance, of_order, of_suspects, of_trust, of_watching
from .result import STORED_BYTES, Result
from .search import Found
from .search.asked import Asked
from .spacing import usual_distance
from .span import Span
from .two_findings import damaged_files, of_files, state_of, told_apart
from .unread import unread


def outcome(
    found: Found,
    part: Span,
    judgements: Mapping[int, Judgement],
    oracle: Oracle,
    asked: Asked,
) -> Result:
    """The result of a search, without its probes.

    Args:
        found: where it ended; with --first-good in the mirror.
        part: the checkpoints it was about.
        judgements: one of each place that was judged.
        oracle: whose verdicts the answer rests on.
        asked: the search's options.
    """
    steps = [checkpoint.step for checkpoint in part.candidates]
    low, high = _step(steps, found.last_clean), _step(steps, found.first_corrupt)
    gap = _gap(steps, low, high)
    trusted = tuple(steps[place] for place in part.trusted)
    claim = _claim(found, part, judgements, oracle, asked)
    rests_on_trust = {found.last_clean, found.first_corrupt} & set(part.trusted)
    told = judgements.get(found.first_corrupt) if found.first_corrupt is not None else None
    watched = _watched(found, judgements)
    suspect = [checkpoint for checkpoint in part.candidates if checkpoint.status == "suspect"]
    changes = changes_of(steps, judgements, oracle) if asked.scan else None
    stored = told is not None and told.stored_bytes
    # files rot singly: an end of those before one that could not be judged may be rotten, too
    sure = claim == "first" or not (found.later_clean or (stored and not asked.by_chance))
    damaged = () if asked.by_chance else damaged_files(steps, judgements)
    state = state_of(steps, judgements, oracle) if stored and damaged else None
    unreadable = unread(part.candidates, judgements)
    evidence = [
        *_reasons(found, told, judgements, part, oracle),
        *(told_apart(damaged, state, asked.scan) if state is not None else ()),
        *gap,
        *_skips(found, steps),
        *of_trust(part, steps),
        *(of_files(claim) if state else of_order(found, steps, claim, oracle, asked)),
        *in_words(changes),
        *of_chance(found, steps, asked),
        *of_watching(watched, low, high),
        *of_suspects(part.candidates, suspect, high, oracle),
    ]
    result = Result(
        command="run",
        last_clean=low,
        first_corrupt=high,
        exact=found.exact and not gap and sure and not rests_on_trust,
        proven=oracle.proves and high is not None and sure and not rests_on_trust,
        skipped=tuple(steps[place] for place in sorted({*found.untestable, *found.skipped})),
        kind=STORED_BYTES if stored else None,
        verdict="undetermined" if stored else None,
        evidence=tuple(evidence),
        unsettled=_unsettled(found, part, judgements, oracle),
        watched=watched,
        suspect=tuple({"step": one.step, "reasons": list(one.reasons)} for one in suspect),
        claim=claim,
        monotone=_monotone(found, steps),
        transitions=changes,
        trusted=trusted,
        confidence=found.confidence,
        likely=tuple({"step": _step(steps, p), "probability": x} for p, x in found.likely),
        pass_rates=_pass_rates(found, steps, asked),
        stable=found.stable,
        damaged_files=damaged,
        state=state,
        unreadable=unreadable,
    )
    if not found.stable:
        return replace(
            result, last_clean=None, first_corrupt=None, exact=False, proven=False, claim=None
        )
    return _first_good(result, found) if asked.first_good else result


def _first_good(result: Result, found: Found) -> Result:
    """Name the ends by what they are: the search was in the mirror."""
    corrupt, clean = result.last_clean, result.first_corrupt
    unsettled = result.unsettled
    if clean is None and corrupt is not None:
        unsettled = EXIT_RANGE_ONLY  # it goes on beyond the last one
    elif corrupt is None and found.probes:
        unsettled = None
    return replace(
        result,
        last_clean=None,
        first_corrupt=None,
        first_good=True,
        last_corrupt=corrupt,
        first_clean=clean,
        unsettled=unsettled,
        proven=False,
        kind=None,
        verdict=None,
        state=None,
    )


def _step(steps: Sequence[int], place: int | None) -> int | None:
    return None if place is None else steps[place]


def _claim(
    found: Found,
    part: Span,
    judgements: Mapping[int, Judgement],
    oracle: Oracle,
    asked: Asked,
) -> str | None:
    """Whether what was found is the first corrupt one by what was judged, or a transition."""
    if found.first_corrupt is None:
        return None
    if found.all_before_clean and not part.trusted:
        return "first"
    told = judgements.get(found.first_corrupt)
    persists = oracle.persists and told is not None and not told.stored_bytes
    return "first" if persists and not asked.by_chance and not asked.first_good else "transition"


def _monotone(found: Found, steps: Sequence[int]) -> bool | None:
    if found.later_clean:
        return False
    judged = [place for place, verdict in found.verdicts.items() if verdict != "untestable"]
    return True if len(judged) == len(steps) else None


def _reasons(
    found: Found,
    told: Judgement | None,
    judgements: Mapping[int, Judgement],
    part: Span,
    oracle: Oracle,
) -> list[str]:
    """Why the one named is corrupt, or what was judged where none is."""
    if told is not None:
        if told.verdict != "corrupt" and found.confidence is not None:
            return []
        if not told.stored_bytes or found.first_corrupt is None:
            return [told.reason]
        return [told.reason, f"its file: {_file(part.candidates[found.first_corrupt])}"]
    if found.first_corrupt is None and (reason := _newest_untestable(found, judgements)):
        return [f"the newest cannot be judged: {reason}"]
    judged = len({place for place, verdict in found.probes if verdict != "untestable"})
    by = _LOOKED_AT.get(oracle.name, "")
    return [f"{judged} of {len(part.candidates)} checkpoints judged{by}"]


# where two of them look at an archive, each has a count of its own
_LOOKED_AT: Final = {"integrity": " by their checksums", "statistics": " by their values"}


def _file(checkpoint: Checkpoint) -> Path:
    """The file of a guard's checkpoint, else its path: a file, or a folder of several."""
    if checkpoint.format != GUARD:
        return checkpoint.path
    file = checkpoint.path / STATE_FILE
    return file if file.is_file() else checkpoint.path


def _newest_untestable(found: Found, judgements: Mapping[int, Judgement]) -> str | None:
    """Why the newest one could not be judged, if it lies after what is clean."""
    if found.untestable and found.untestable[-1] > (found.last_clean or 0):
        return judgements[found.untestable[-1]].reason
    return None


def _unsettled(
    found: Found, part: Span, judgements: Mapping[int, Judgement], oracle: Oracle
) -> int | None:
    """The exit code where nothing corrupt was found and one that was not judged may be."""
    if found.undecided or not found.stable:
        return EXIT_RANGE_ONLY
    if found.first_corrupt is not None:
        return None
    # a judge of bits does not see what was computed wrong: its "clean" settles no suspicion
    doubted = oracle.proves and any(one.status == "suspect" for one in part.candidates)
    if doubted or _is_open(found, part, judgements, oracle):
        return EXIT_RANGE_ONLY
    return None


def _is_open(found: Found, part: Span, judgements: Mapping[int, Judgement], oracle: Oracle) -> bool:
    """Whether one that could not be judged, and was not left out as asked, may be corrupt.

    What cannot be read may be; so may any that is untestable, unless what is corrupt stays so by
    what the oracle looks at and a later one is clean.
    """
    last = -1 if found.last_clean is None or not oracle.persists else found.last_clean
    unread = any(
        not one.readable and place not in part.skipped and judgements.get(place) is None
        for place, one in enumerate(part.candidates)
    )
    return unread or any(
        place > last or not part.candidates[place].readable for place in found.untestable
    )


def _skips(found: Found, steps: Sequence[int]) -> list[str]:
    if not found.skipped:
        return []
    return [f"skipped as asked: {', '.join(str(steps[place]) for place in found.skipped)}"]


def _pass_rates(
    found: Found, steps: Sequence[int], asked: Asked
) -> tuple[dict[str, int], ...] | None:
    """How many runs of each place passed, where it was run several times."""
    if not asked.by_chance:
        return None
    runs = Counter(place for place, verdict in found.probes if verdict != "untestable")
    passed = Counter(place for place, verdict in found.probes if verdict == "clean")
    return tuple(
        {"step": steps[place], "passed": passed[place], "runs": runs[place]}
        for place in sorted(runs)
    )


def _watched(found: Found, judgements: Mapping[int, Judgement]) -> float | None:
    """How much was watched up to the checkpoint that the answer rests on."""
    place = found.last_clean if found.first_corrupt is None else found.first_corrupt
    judgement = None if place is None else judgements.get(place)
    return None if judgement is None else judgement.watched


def _gap(steps: Sequence[int], low: int | None, high: int | None) -> list[str]:
    """A line if checkpoints seem to be missing between the two."""
    if low is None or high is None:
        return []
    usual = usual_distance(steps)
    if usual is None or high - low <= usual:
        return []
    if any(low < step < high for step in steps):
        return []  # there are some, and they could not be judged
    return [f"no checkpoint between {low} and {high}; they are usually {usual} apart"]
