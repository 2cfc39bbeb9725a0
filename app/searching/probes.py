"""What a search asked, as a table: checkpoints, who judged them, what came of it, and its cost."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from forensics.reporting.facts import Judged, Told

from ..wording import number_text, plain, size_text

ANSWERS: Final = {"clean": "●", "corrupt": "✖", "untestable": "?", "skipped": "–"}
MAX_ROWS: Final = 300
_JUDGES: Final = {"trace": "the record", "user": "a user", "command": "a command"}


def probe_table(
    told: Told, events: Iterable[Mapping[str, Any]], convicted: Collection[int] = ()
) -> dict[str, list[str]]:
    """The columns of the table, harmless as Markdown; at most MAX_ROWS, the newest.

    Args:
        told: the session.
        events: of its journal: they say what was read.
        convicted: steps of the checkpoints that were proven suspect after they were saved.
    """
    sizes = _sizes(events)
    rows = list(enumerate(told.judged, 1))[-MAX_ROWS:]
    return {
        "order": [str(number) for number, _ in rows],
        "checkpoint": [f"step {one.step:,}" for _, one in rows],
        "judged by": [plain(_JUDGES.get(one.by, one.by)) or "–" for _, one in rows],
        "answer": [_answer(one, convicted) for _, one in rows],
        "evidence": [plain(one.reason) for _, one in rows],
        "seconds": [plain(number_text(one.seconds)) for _, one in rows],
        "size": [size_text(sizes.get((one.step, one.by))) for _, one in rows],
    }


def _answer(one: Judged, convicted: Collection[int]) -> str:
    said = f"{ANSWERS.get(one.verdict, '?')} {plain(one.verdict)}"
    # its bytes may well be those of the trace: a step before it computed them wrong
    is_doubted = one.verdict == "clean" and one.step in convicted
    return f"{said}; ▲ suspect by a proof" if is_doubted else said


def cost_line(told: Told, events: Iterable[Mapping[str, Any]]) -> str:
    """What the search cost until now: judgings, their time, and the size of what was judged."""
    timed = [one.seconds for one in told.judged if one.seconds is not None]
    sizes = _sizes(events)
    read = sum(sizes.get((one.step, one.by), 0) for one in told.judged)
    parts = [f"{len(told.judged):,} judged"]
    if timed:
        parts.append(f"in {sum(timed):,.3g} s")
    if read:
        parts.append(f"of checkpoints of {size_text(read)} together")
    return " ".join(parts)


def replays(events: Iterable[Mapping[str, Any]]) -> list[tuple[str, int, int]]:
    """The replays that a verification's journal names: name, the step before the first, the last.

    One that was begun again after an interruption is there once.
    """
    found: dict[str, tuple[str, int, int]] = {}
    for one in events:
        start, until = one.get("start"), one.get("until")
        if one["event"] == "replay" and type(start) is int and type(until) is int:
            name = str(one.get("name", ""))
            found[name] = (name, start, until)
    return list(found.values())


def replay_table(
    found: Sequence[tuple[str, int, int]], ended: Collection[str], running: bool
) -> dict[str, list[str]]:
    """The replays as a table.

    Args:
        found: as `replays` has them.
        ended: names of those that came to their end.
        running: whether somebody works on the session now.
    """
    going = "▶ under way" if running else "◼ interrupted"
    return {
        "replay": [plain(name) for name, _, _ in found],
        "steps": [f"{start + 1:,} to {until:,}" for _, start, until in found],
        "state": ["● ended" if name in ended else going for name, _, _ in found],
    }


def _sizes(events: Iterable[Mapping[str, Any]]) -> dict[tuple[int, str], int]:
    """Bytes of what was judged, by step and judge."""
    found = {}
    for one in events:
        mark = one.get("mark")
        size = mark.get("bytes") if isinstance(mark, Mapping) else None
        if one["event"] == "probe" and type(size) is int and type(one.get("step")) is int:
            found[one["step"], str(one.get("by", ""))] = size
    return found


def counted(judged: Sequence[Judged]) -> dict[int, dict[str, int]]:
    """How often each step was given each answer, in the order of first judging."""
    found: dict[int, dict[str, int]] = {}
    for one in judged:
        said = found.setdefault(one.step, {})
        said[one.verdict] = said.get(one.verdict, 0) + 1
    return found
