"""A proven alert of a run beside what a search or a replay found: no answer says clean over it.

An exact comparison convicted something in that step. What a step computes wrong is saved as it was
computed: the bytes of its checkpoints are those that were trained, and a search of them finds
nothing. So the answer is a range, and names the alert.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sdc_guard.detect.replica_alerts import DETECTOR as REPLICAS
from sdc_guard.detect.replica_alerts import EQUAL
from sdc_guard.errors import EXIT_RANGE_ONLY
from sdc_guard.store.trace_reader import TraceReader

from .checkpoint import Checkpoint
from .replay_hint import replay_command
from .reservations import BETWEEN_COMPARISONS, WRONG_VALUES
from .result import Result
from .two_findings import State

# Not here: what a search judges by itself, from digests and counters; and what is beside the state:
# the pinned batch, also where that of ranks differs; the known answers.
_FIRST: Final = """
    SELECT step, detector, detail FROM alerts
    WHERE severity = 'proven' AND step <= $last AND detector NOT IN
        ('carried_digest', 'step_counter', 'shadow_batch', 'known_answer')
        AND CASE WHEN json_valid(detail) THEN detail->>'class' END IS DISTINCT FROM 'input'
    ORDER BY step, detector LIMIT 1
"""
_LAST_EQUAL: Final = f"SELECT max(step) FROM events WHERE kind = '{EQUAL}' AND step < $step"
_AUDIT: Final = "step_audit"
_END: Final = 2**62


@dataclass(frozen=True)
class ProvenAlert:
    """The first proven alert about what a step computed.

    Attributes:
        step: that it is about; of ranks compared with each other, that of the comparison.
        detector: its name.
        after: the last step of which it is known that this was not so yet; None where it is not
            recorded.
        text: the alert's.
        ranks: that differ from each other; empty where it is not about that.
        odd: those of them that differ from a majority.
    """

    step: int
    detector: str
    after: int | None
    text: str = ""
    ranks: tuple[int, ...] = ()
    odd: tuple[int, ...] = ()

    @property
    def of_ranks(self) -> bool:
        """Whether ranks were compared with each other."""
        return self.detector == REPLICAS

    def as_dict(self) -> dict[str, Any]:
        """In JSON output."""
        return {
            "step": self.step,
            "detector": self.detector,
            "after": self.after,
            "ranks": list(self.ranks),
            "odd": list(self.odd),
            "text": self.text,
        }


def first_proven_alert(reader: TraceReader, last: int = _END) -> ProvenAlert | None:
    """The first one of the attempts that count, up to the step `last`; None without one."""
    rows = reader.rows(_FIRST, {"last": last})
    if not rows:
        return None
    step, detector, detail = rows[0]
    content = _read(detail)
    after = step - 1 if detector == _AUDIT else None
    if detector == REPLICAS:
        after = reader.rows(_LAST_EQUAL, {"step": step})[0][0]
    return ProvenAlert(
        step, detector, after, str(content.get("text") or ""),
        _ranks(content.get("ranks")), _ranks(content.get("odd")),
    )  # fmt: skip


def start_before(found: ProvenAlert, candidates: Sequence[Checkpoint]) -> Checkpoint | None:
    """The newest checkpoint to replay from that is not after what the alert is about."""
    limit = found.step - 1 if found.after is None else found.after
    fit = [one for one in candidates if one.readable and one.resumable and one.step <= limit]
    return fit[-1] if fit else None


def with_proven_alert(
    reader: TraceReader, result: Result, candidates: Sequence[Checkpoint]
) -> Result:
    """The answer of a search, which says no more than clean up to the alert.

    Where a corrupt checkpoint was found before the alert, that is the answer as it is. Of a file
    that is damaged the training is another question.

    Args:
        reader: of the run.
        result: of a search.
        candidates: the checkpoints that it was about, by step.
    """
    found = first_proven_alert(reader)
    if found is None or result.first_good or not result.stable:
        return result
    state = result.state
    wrong = result.first_corrupt if state is None else state.first_corrupt
    if wrong is not None and wrong <= found.step:
        return result
    steps = [one.step for one in candidates]
    judged = result.last_clean if state is None else state.last_clean
    clean = _clean_up_to(steps, judged, found.after)
    evidence = [line for line in result.evidence if not line.startswith(_ADVICE)]
    told = f"step {found.step}, {found.detector}: {found.text}"
    lines = (told, _advice(reader, found, candidates))
    if state is not None:
        high = _first_after(steps, found.step)
        known = State("unknown" if high is None else "corrupt", clean, high, True, found.text)
        return replace(
            result, state=known, proven_alert=found.as_dict(), evidence=(*evidence, *lines)
        )
    return replace(
        result,
        last_clean=clean,
        exact=False,
        claim=result.claim and "transition",
        unsettled=EXIT_RANGE_ONLY,
        proven_alert=found.as_dict(),
        evidence=(*lines, *evidence),
    )


def of_replay(reader: TraceReader, result: Result, after: int, until: int) -> Result:
    """The answer of a replay that has the same bits, where an alert about its steps is proven.

    Args:
        reader: of the run.
        result: of the replay.
        after, until: it began after the one step, and ended with the other.
    """
    found = first_proven_alert(reader)
    if found is None or result.first_corrupt is not None or not after < found.step <= until:
        return result
    what = "ranks differ in the replay as they did in the run" if found.of_ranks else found.text
    line = (
        f"step {found.step}, {found.detector}, proven: {what}: what repeats is in the code or the "
        "data, or in a device that repeats its mistake; replay on other devices"
    )
    return replace(
        result,
        evidence=(line, *result.evidence),
        unsettled=EXIT_RANGE_ONLY,
        exact=False,
        proven_alert=found.as_dict(),
    )


_ADVICE: Final = (WRONG_VALUES, BETWEEN_COMPARISONS)


def _clean_up_to(steps: Sequence[int], judged: int | None, limit: int | None) -> int | None:
    """The last checkpoint that was judged clean, not after `limit`."""
    if judged is None or limit is None:
        return None
    return max((step for step in steps if step <= min(judged, limit)), default=None)


def _first_after(steps: Sequence[int], limit: int) -> int | None:
    return next((step for step in steps if step >= limit), None)


def _advice(reader: TraceReader, found: ProvenAlert, candidates: Sequence[Checkpoint]) -> str:
    start = start_before(found, candidates)
    how = "a replay from a checkpoint before"
    if start is not None:
        how = replay_command(str(reader.run), reader.run_file.resume, start.step, found.step)
    line = (
        f"{WRONG_VALUES}, so a search of checkpoints does not see it: {how} runs them again and "
        "compares"
    )
    if not found.of_ranks or found.after is not None:
        return line
    return f"{line}; where that finds nothing, begin at an earlier checkpoint"


def _read(detail: str | None) -> dict[str, Any]:
    try:
        content = json.loads(detail or "{}")
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _ranks(value: Any) -> tuple[int, ...]:
    """Those of a detail, which may be of anybody's making."""
    return tuple(rank for rank in value if type(rank) is int) if isinstance(value, list) else ()
