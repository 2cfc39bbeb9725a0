"""A damaged file and a training that went wrong are two findings: what a search saw of each.

A file rots by itself: the training that wrote it may have been sound, and the checkpoints after
it are not made from it. State that went wrong is in every later checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from .oracles.judgement import Judgement, Oracle

ALSO_DAMAGED: Final = "damaged, too, of those judged"
_MOST: Final = 6  # steps in a sentence


@dataclass(frozen=True)
class State:
    """What is known of the training beside a damaged file.

    Attributes:
        verdict: "corrupt" where a checkpoint was judged so for its state; "sound" where the judge
            says of the state itself that it is, up to `last_clean`; else "unknown".
        last_clean: step of the last checkpoint whose state is clean before that; None if none. Of
            "unknown" that of the last whose values look as a training leaves them, which does not
            prove it sound; None where nobody looked at them.
        first_corrupt: step of the first that was judged corrupt for its state; None if none was.
        proven: whether an exact comparison says so.
        reason: of the judgement.
    """

    verdict: Literal["sound", "corrupt", "unknown"]
    last_clean: int | None = None
    first_corrupt: int | None = None
    proven: bool = False
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """In JSON output."""
        return {
            "verdict": self.verdict,
            "last_clean": self.last_clean,
            "first_corrupt": self.first_corrupt,
            "proven": self.proven,
            "reason": self.reason,
        }


def damaged_files(steps: Sequence[int], judgements: Mapping[int, Judgement]) -> tuple[int, ...]:
    """Steps of the checkpoints whose stored bytes were found wrong.

    Args:
        steps: by place.
        judgements: by place.
    """
    return tuple(steps[place] for place in sorted(judgements) if judgements[place].stored_bytes)


def state_of(steps: Sequence[int], judgements: Mapping[int, Judgement], oracle: Oracle) -> State:
    """What the judgings of a search say of the training itself.

    Args:
        steps: by place.
        judgements: by place.
        oracle: whose they are. Only one whose verdicts last looks at the state: of checksums,
            "clean" says nothing of it.
    """
    wrong = [
        place
        for place, one in judgements.items()
        if one.verdict == "corrupt" and not one.stored_bytes
    ]
    clean = [place for place, one in judgements.items() if one.verdict == "clean"]
    if wrong:
        first = min(wrong)
        before = max((place for place in clean if place < first), default=None)
        last = None if before is None else steps[before]
        return State("corrupt", last, steps[first], oracle.proves, judgements[first].reason)
    if oracle.persists and clean:
        return State("sound", steps[max(clean)], proven=oracle.proves)
    return State("unknown")


def told_apart(damaged: Sequence[int], state: State, all_judged: bool = False) -> list[str]:
    """Both findings, each with its evidence.

    Args:
        damaged: steps of damaged files, at least one.
        state: of the training.
        all_judged: whether every checkpoint was judged, and not only those of a bisection.
    """
    more = damaged[1 : _MOST + 1]
    lines = []
    if more:
        named = ", ".join(map(str, more)) + ", ..." * (len(damaged) > _MOST + 1)
        noun = "checkpoint" if len(damaged) == 2 else "checkpoints"
        lines.append(f"{ALSO_DAMAGED}: the files of {noun} {named}")
    if state.verdict == "corrupt":
        start = "start" if state.last_clean is None else state.last_clean
        lines.append(
            f"a second finding, of the training: a transition was seen in ({start}, "
            f"{state.first_corrupt}]: {state.reason}"
            + ("" if all_judged else "; --scan judges every one")
        )
    return lines


def of_files(claim: str | None) -> list[str]:
    """What is not known of the files before the one named; they rot singly, in no order."""
    if claim != "transition":
        return []
    return ["not every file before it could be judged: one of those may be damaged, too"]


def training_in_words(state: Mapping[str, Any], damaged: int, recorded: str) -> str:
    """The sentence about the training, after that about the damaged file.

    Args:
        state: as `State.as_dict` gives it.
        damaged: step of the first damaged file.
        recorded: what to add where the state was watched in part, or "".
    """
    last, first = state["last_clean"], state["first_corrupt"]
    if state["verdict"] == "corrupt":
        sure = "proven" if state["proven"] else "suspected"
        start = "start" if last is None else last
        return f"The training went wrong, too: its state in ({start}, {first}], {sure}."
    if state["verdict"] == "sound" and last is not None and last > damaged:
        return (
            f"The training was not affected: its state is clean up to checkpoint {last}{recorded}."
        )
    if state["verdict"] == "sound":
        return f"Of the training: its state is clean up to checkpoint {last}{recorded}."
    if last is not None:
        return (
            "Whether the training was sound is not shown by bytes; no value looks unusual up to "
            f"checkpoint {last}."
        )
    return "Whether the training was sound is not shown by bytes."
