"""The trainer_state.json of the Hugging Face Trainer, which is written last."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sdc_guard.archive.regular_file import open_regular

from .findings import as_step
from .hf_layout import STATE
from .small_json import DamagedJson, read_object

_LARGE: Final = 1 << 20  # bytes; the history of a long run, which is not parsed for one number
_STEP: Final = re.compile(rb'\n  "global_step": (\d{1,19}),?\n')
_NO_STATE: Final = "Not a Hugging Face trainer_state: {} missing"


@dataclass(frozen=True)
class TrainerState:
    """What the state says.

    Attributes:
        step: its global_step; None if it has none, or is none.
        trouble: what is wrong with it; None if nothing is.
        numbers: its plain numbers and texts.
    """

    step: int | None
    trouble: str | None = None
    numbers: dict[str, int | float | str | bool] = field(default_factory=dict)


def read_state(folder: Path, *, whole: bool = False) -> TrainerState:
    """Read the state in a folder; never raises for what is wrong with it.

    Args:
        folder: that the Trainer wrote.
        whole: parse it, however large it is; otherwise only the beginning and the end of a large
            one are read, in the form in which the Trainer writes it.
    """
    path = folder / STATE
    try:
        step = None if whole else _of_large(path)
        if step is not None:
            return TrainerState(step)
        return _state(read_object(path))
    except DamagedJson as damage:
        what = f"{STATE} missing" if str(damage) == "missing" else f"{STATE}: {damage}"
        return TrainerState(None, what)


def _state(document: dict[str, Any]) -> TrainerState:
    if not isinstance(document.get("log_history"), list):
        return TrainerState(None, _NO_STATE.format("log_history"))
    step = as_step(document.get("global_step"))
    numbers = {
        key: value for key, value in document.items() if isinstance(value, (int, float, str, bool))
    }
    return TrainerState(
        step, None if step is not None else _NO_STATE.format("global_step"), numbers
    )


def _of_large(path: Path) -> int | None:
    """The step of a state that is too large to be parsed for it; None if it has to be."""
    try:
        if path.stat().st_size <= _LARGE:
            return None
        with open_regular(path) as file:
            first = file.read(_LARGE // 16)
            file.seek(-64, 2)
            last = file.read()
    except OSError:
        return None  # reading it as a whole tells what is wrong
    found = _STEP.findall(first)
    sound = b'\n  "log_history": [' in first and last.rstrip().endswith(b"\n}")
    return as_step(found[0].decode()) if sound and len(found) == 1 else None
