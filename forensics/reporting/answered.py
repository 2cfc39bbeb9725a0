"""The answer of a report, and what to do, without the record that the report comes with.

It needs alerts, incidents, sessions and checkpoints, and no pass over the rows of layers and
digests, of which a run has many millions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from sdc_guard.lake.location import is_lake, without_password
from sdc_guard.store.trace_reader import TraceReader

from ..accused import accused_rank, machine_of, ran_alone
from ..checkpoint import Checkpoint
from ..past_replays import same_bits_by
from ..proven_alerts import first_proven_alert
from ..recorded import solved_at
from ..result import STORED_BYTES
from . import from_trace
from .across_sessions import with_others
from .facts import GoBack, Headline, Told
from .going_back import go_back, with_advice
from .headline import (
    after_equal_replay,
    after_search,
    chosen,
    of_session,
    of_trace,
    with_checkpoints,
    with_unread_bytes,
    with_unreadable,
)

_STEPS: Final = "SELECT count(DISTINCT step), max(step) FROM steps"


@dataclass(frozen=True)
class Answered:
    """What a report answers.

    Attributes:
        headline, go_back: as in the report.
        last: the newest recorded step; None before the first, and of an archive.
    """

    headline: Headline
    go_back: GoBack
    last: int | None


def answered(
    reader: TraceReader, place: str, checkpoints: Sequence[Checkpoint], sessions: Sequence[Told]
) -> Answered:
    """The answer of the report of a run that a guard recorded; the same as the report's.

    But for damage to the rows of layers and digests, which it does not read and so cannot tell of.

    Args:
        reader: of the run.
        place: its folder, or its location in a lake.
        checkpoints: by step.
        sessions: oldest first.
    """
    steps, last = reader.rows(_STEPS)[0]
    place = without_password(place) if is_lake(place) else place
    answer = with_checkpoints(_answer(reader, steps, sessions), checkpoints)
    answer = with_unreadable(with_others(answer, sessions), checkpoints)
    answer = _with_machine(reader, with_unread_bytes(answer, checkpoints, sessions))
    elsewhere = from_trace.clean_checkpoints(reader) if is_lake(place) else None
    back = go_back(answer, checkpoints, place, reader.run_file.resume, last, elsewhere=elsewhere)
    return Answered(with_advice(answer, back), back, last)


def _answer(reader: TraceReader, steps: int, sessions: Sequence[Told]) -> Headline:
    dtypes = {layer.name: layer.dtype for layer in reader.run_file.named}
    told = chosen(sessions)
    proven = from_trace.first_proven(reader)
    incidents = from_trace.open_incidents(reader)
    by_session = None if told is None else of_session(told, dtypes)
    if by_session is not None and by_session.state in ("corrupt", "suspect"):
        return by_session
    tensors = [] if proven is None else [x.as_dict() for x in solved_at(reader, proven).values()]
    alerts, alert = from_trace.alert_count(reader), first_proven_alert(reader)
    by_trace = of_trace(
        steps, proven, incidents, alerts, tensors, dtypes, from_trace.damaged(reader), alert
    )
    if by_session is None:
        return by_trace
    if by_trace.state not in ("corrupt", "suspect"):
        return by_session
    if by_trace.state == "suspect" and (by := _repeated_by(sessions, incidents)) is not None:
        return after_equal_replay(by_trace, by)
    return after_search(by_trace, by_session)


def _repeated_by(sessions: Sequence[Told], incidents: Sequence[tuple[int, str]]) -> str | None:
    """The replay that ran the steps of all open incidents to the same bits."""
    told = [
        (one.name, one.result)
        for one in sessions
        if one.result is not None and one.is_current and one.command == "verify"
    ]
    return same_bits_by(told, [step for step, _ in incidents])


def _with_machine(reader: TraceReader, answer: Headline) -> Headline:
    """The same answer, with where the accused rank ran; alerts that accuse one name it, too."""
    step, rank = answer.first_corrupt, answer.rank
    if step is None or answer.kind == STORED_BYTES or answer.source == "checkpoints":
        return answer
    if rank is None and (answer.source == "alerts" or ran_alone(reader, step)):
        rank = accused_rank(reader, step, proven=answer.proven)
    return replace(answer, rank=rank, machine=machine_of(reader, step, rank))
