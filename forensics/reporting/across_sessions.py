"""What other sessions add to the answer of one: damaged files, and what became of the training.

A search by checksums alone that comes after one that looked at values takes nothing back. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..result import STORED_BYTES
from ..two_findings import training_in_words
from .facts import Headline, Told
from .headline import of_training, verdicts_of


def with_others(answer: Headline, sessions: Sequence[Told]) -> Headline:
    """The same answer, that knows what other sessions of the run as it is now found.

    Args:
        answer: of one of the sessions, or of another source.
        sessions: oldest first.
    """
    if not answer.source.startswith("session"):
        return answer
    others = [
        one.result
        for one in sessions
        if one.result is not None
        and one.is_current
        and one.command == "run"
        and f"session {one.name}" != answer.source
    ]
    damaged = {*answer.damaged_files}
    damaged.update(step for one in others for step in one.get("damaged_files", ()))
    verdicts = [verdicts_of(one) for one in others]
    accused = {*answer.accused, *(step for _, wrong in verdicts for step in wrong)}
    sound = {*answer.sound, *(step for right, _ in verdicts for step in right)} - accused
    answer = replace(answer, damaged_files=tuple(sorted(damaged)))
    known = (answer.training or {}).get("verdict", "unknown")
    if not answer.is_of_files:
        return answer
    answer = replace(answer, sound=tuple(sorted(sound)), accused=tuple(sorted(accused)))
    if known != "unknown":
        return answer
    found = _of_training(reversed(others))
    if found is None or answer.first_corrupt is None:
        return answer
    told = training_in_words(found, answer.first_corrupt, "")
    before, now = (of_training(answer.kind, one) for one in (answer.training or {}, found))
    return replace(
        answer,
        training=found,
        sentence=f"{answer.sentence} By another session: {told}",
        limits=(*(one for one in answer.limits if one not in before), *now),
    )


def _of_training(results: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The newest interval in which a training went wrong; None without one."""
    for one in results:
        state = one.get("state") or {}
        if state.get("verdict") == "corrupt":
            return dict(state)
        if one["first_corrupt"] is not None and one["class"] != STORED_BYTES:
            ends = {"last_clean": one["last_clean"], "first_corrupt": one["first_corrupt"]}
            return {"verdict": "corrupt", **ends, "proven": bool(one["proven"]), "reason": ""}
    return None
