"""known_answers/ of a run: for each environment the first answer to the probe, a file each.

A file is published once and never replaced, so that any number of ranks and attempts may try: the
first one's answer stays, and the others compare theirs with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..detect.answers import Answer
from ..errors import RunFormatError
from .atomic import publish

FOLDER: Final = "known_answers"
_SCHEMA: Final = {"name": "sdc-guard.known-answer", "version": 1}


@dataclass(frozen=True)
class RecordedAnswer:
    """An answer and where it comes from.

    Attributes:
        answer: digests and numbers.
        environment: what its bits depend on; the name of the file is its key.
        host: name of the machine.
        device_id: UUID of the device, or None where it has none.
        step: at which it was given.
    """

    answer: Answer
    environment: Mapping[str, Any]
    host: str
    device_id: str | None
    step: int

    @property
    def source(self) -> dict[str, Any]:
        """Who gave it."""
        return {"host": self.host, "device_id": self.device_id, "step": self.step}


def first_recorded(run: Path, key: str, mine: RecordedAnswer) -> RecordedAnswer:
    """The answer that this run has for an environment: `mine`, if it had none until now.

    Raises:
        RunFormatError: the file there is damaged, or of a later version.
        OSError: as the file system gave it.
    """
    path = _path(run, key)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            publish(path, lambda to: to.write_text(_text(mine), encoding="utf-8"), replace=False)
        except FileExistsError:
            pass  # another rank was faster
        else:
            return mine
    return _read(path)


def all_recorded(run: Path) -> dict[str, RecordedAnswer]:
    """The answers of a run by their keys.

    Raises:
        RunFormatError: a file is damaged, or of a later version.
    """
    return {path.stem: _read(path) for path in sorted((run / FOLDER).glob("[0-9a-f]*.json"))}


def _path(run: Path, key: str) -> Path:
    return run / FOLDER / f"{key}.json"


def _text(recorded: RecordedAnswer) -> str:
    content = {
        "schema": _SCHEMA,
        "hash": recorded.answer.hash,
        "rows": recorded.answer.rows.tolist(),
        "numbers": [value.hex() for value in recorded.answer.numbers.tolist()],
        **recorded.source,
        "environment": recorded.environment,
    }
    return json.dumps(content, indent=1, default=str)


def _read(path: Path) -> RecordedAnswer:
    try:
        content = json.loads(path.read_bytes())
        if content["schema"] != _SCHEMA:
            raise ValueError(f"the schema is {content['schema']}")
        rows = np.array(content["rows"], dtype=np.int64).reshape(-1, 3)
        numbers = np.array([float.fromhex(text) for text in content["numbers"]])
        answer = Answer(rows, numbers)
        if answer.hash != content["hash"]:
            raise ValueError("its digests do not fit its hash")
        return RecordedAnswer(
            answer, content["environment"], content["host"], content["device_id"], content["step"]
        )
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise RunFormatError(
            f"a recorded answer cannot be read ({' '.join(str(error).split())})",
            where=str(path),
            next_step="remove the file: the next start of the training records it anew",
        ) from None
