"""pins.json: checkpoints that stay whatever the policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from ...errors import ArchiveIncomplete, UsageError
from ...store.atomic import publish_text
from ..folders import WEIGHTS, WHOLE, all_folders
from .lock import alone

FILE: Final = "pins.json"
SCHEMA: Final = "sdc-guard/pins/1"


def read_pins(archive: Path) -> frozenset[str]:
    """Names of the folders that are pinned; none without the file.

    Raises:
        UsageError: the file is damaged, or of a newer version.
        OSError: it cannot be read.
    """
    path = archive / FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return frozenset()
    except UnicodeDecodeError:
        text = ""
    try:
        content = json.loads(text)
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']!r}, not {SCHEMA!r}")
        names = content["pins"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("pins that are no names")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(
            f"pins.json cannot be read ({error})",
            where=str(path),
            next_step="delete it and pin again; until then nothing is deleted",
        ) from None
    return frozenset(names)


def change_pins(archive: Path, add: tuple[str, ...], remove: tuple[str, ...]) -> frozenset[str]:
    """Pin checkpoints, and take pins back; the pins as they are then.

    Args:
        archive: the archive's folder.
        add: steps, or names of folders where several are of one step.
        remove: likewise; the folder may be gone.

    Raises:
        ArchiveIncomplete: no checkpoint of that step or name.
        UsageError: no such pin, or as `read_pins`.
        OSError: the file cannot be written.
    """
    with alone(archive):
        pins = read_pins(archive)
        there = [path.name for path in all_folders(archive) if path.is_dir()]
        for text in add:
            found = _matching(text, there)
            if not found:
                raise ArchiveIncomplete(
                    f"no checkpoint of step {text}",
                    where=str(archive),
                    next_step="sdc-guard keep RUN lists what is there",
                )
            pins |= found
        for text in remove:
            found = _matching(text, pins)
            if not found:
                raise UsageError(f"step {text} is not pinned", where=str(archive / FILE))
            pins -= found
        content = {"schema": SCHEMA, "pins": sorted(pins)}
        publish_text(archive / FILE, json.dumps(content, indent=1) + "\n")
    return pins


def _matching(text: str, names: frozenset[str] | list[str]) -> frozenset[str]:
    """The folder of that name, or all of a step."""
    if text in names:
        return frozenset({text})
    if not text.isdecimal():
        return frozenset()
    steps = [f"{kind}{int(text):06d}" for kind in (WHOLE, WEIGHTS)]
    return frozenset(name for name in names if name.partition("-")[0] in steps)
