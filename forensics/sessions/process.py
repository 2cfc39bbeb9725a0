"""Which process works on a session: a file in the session's folder, so that others can follow it.

The session's lock keeps two from working at once; this file says who it is, to whom only looks.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from sdc_guard.store.atomic import publish_text

from .lock import Owner

FILE: Final = "process.json"
STARTED_BY: Final = "SDC_BISECT_STARTED_BY"  # who starts a command says so in its environment


@dataclass(frozen=True)
class Worker:
    """The process that works on a session.

    Attributes:
        owner: its number, host and start.
        by: who started it, as the environment said; "" for a user.
        leads: whether it leads a process group of its own.
    """

    owner: Owner
    by: str = ""
    leads: bool = False

    @classmethod
    def this(cls) -> Worker:
        """This process."""
        owner = Owner.this()
        return cls(owner, os.environ.get(STARTED_BY, ""), os.getpgrp() == owner.pid)


@contextlib.contextmanager
def working_on(folder: Path) -> Iterator[None]:
    """Say in a session's folder that this process works on it; what cannot be said is left out."""
    path, own = folder / FILE, Worker.this()
    with contextlib.suppress(OSError):
        publish_text(path, json.dumps(asdict(own)) + "\n")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if _read(path) == own:
                path.unlink(missing_ok=True)


def worker_of(folder: Path) -> Worker | None:
    """Who works on a session now; None where nobody does, as far as this machine can tell.

    A process on another machine counts as there for as long as its file is.
    """
    found = _read(folder / FILE)
    return None if found is None or found.owner.gone else found


def _read(path: Path) -> Worker | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        owner = content["owner"]
        return Worker(
            Owner(
                int(owner["pid"]),
                str(owner["host"]),
                str(owner["started"]),
                float(owner["since"]),
            ),
            str(content["by"]),
            content["leads"] is True,
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None
