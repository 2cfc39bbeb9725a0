"""What to restore from where files are damaged. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..checkpoint import Checkpoint
from .facts import GoBack, Headline

_MOST: Final = 10  # steps in a sentence


def past_damage(answer: Headline, checkpoints: Sequence[Checkpoint]) -> GoBack:
    """The newest checkpoint that is not damaged, not suspected, and before the state's break.

    Args:
        answer: that names a damaged file.
        checkpoints: by step.
    """
    training = answer.training or {}
    wrong = training.get("verdict") == "corrupt"
    limit = training.get("last_clean")
    if wrong and limit is None:
        why = "No checkpoint is known to be clean before the training went wrong."
        return GoBack(None, None, None, why)
    fit = [one for one in checkpoints if _is_fit(answer, one, limit)]
    if not fit:
        upto = "" if limit is None else f" up to step {limit}"
        why = f"No checkpoint{upto} was judged and found sound."
        return GoBack(None, None, None, why, needed=wrong)
    best = fit[-1]
    grounds = _grounds(training)
    return GoBack(
        step=best.step,
        path=str(best.path),
        status=best.status,
        why=_why(answer, wrong, best, grounds),
        needed=wrong,
        grounds=grounds,
    )


def not_to_use(damaged: Sequence[int]) -> str:
    """That these files are not to be used."""
    if len(damaged) == 1:
        return f"Do not use the file of step {damaged[0]}"
    named = ", ".join(map(str, damaged[:_MOST])) + ", ..." * (len(damaged) > _MOST)
    return f"Do not use the files of steps {named}"


def _is_fit(answer: Headline, one: Checkpoint, limit: int | None) -> bool:
    held_back = one.status in ("suspect", "corrupt") or not one.readable
    if held_back or one.step in (*answer.damaged_files, *answer.accused):
        return False
    if answer.sound and one.step not in answer.sound:
        return False  # nobody looked at it
    return limit is None or one.step <= limit


def _grounds(training: Mapping[str, Any]) -> str:
    """What is known for it."""
    if training.get("proven"):
        return "proven"
    if training.get("verdict") in ("corrupt", "unknown") and training.get("last_clean") is not None:
        return "not proven: values looked usual"
    if training.get("verdict") == "sound":
        return "not proven"
    return "by its bytes: whether the training was sound is not shown"


def _why(answer: Headline, wrong: bool, best: Checkpoint, grounds: str) -> str:
    apart = "A file that is damaged rotted by itself: later ones were not made from it."
    if wrong:
        high = (answer.training or {}).get("first_corrupt")
        need = (
            f"The training's state went wrong by checkpoint {high}: this is the newest before "
            f"that which is neither damaged nor suspected ({grounds})."
        )
    else:
        need = (
            "Nothing says that the training has to go back. Where a checkpoint is wanted, this is "
            f"the newest that was judged and is neither damaged nor suspected ({grounds})."
        )
    saved = f" Its status when it was saved: {best.status}." if best.status != "clean" else ""
    return f"{not_to_use(answer.damaged_files)}. {apart} {need}{saved}"
