"""What `sdc-guard inject` does: runs a command with faults in it, and says what became of them."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from ..errors import EXIT_NOT_INJECTED, UsageError
from .from_environment import AGAIN_VARIABLE, PLAN_VARIABLE, TOLD_VARIABLE
from .journal import events_of
from .plan_file import read_plan

Say = Callable[[str], None]

_NO_GUARD: Final = (
    "nothing was injected: no Guard was made in the command (the one in the script takes the plan)"
)
_SHOWN: Final = 4  # words of one injection


def run_with_faults(plan: Path, command: Sequence[str], say: Say, *, again: bool = False) -> int:
    """Run a command whose Guard takes a plan of faults.

    Args:
        plan: the plan file.
        command: a program and its arguments.
        say: called with each line about the faults, after the command has ended.
        again: whether faults fire that the run's journal says have fired before.

    Returns:
        the command's exit code (128 + signal for one that was killed); EXIT_NOT_INJECTED where
        that is 0 and nothing fired.

    Raises:
        InjectionError: the plan cannot be read.
        UsageError: the command cannot be started.
    """
    read_plan(plan)  # what is wrong with it is said before anything starts
    with tempfile.TemporaryDirectory(prefix="sdc-guard-inject-") as folder:
        told = {PLAN_VARIABLE: str(plan.absolute()), TOLD_VARIABLE: folder}
        code = _run(command, os.environ | told | ({AGAIN_VARIABLE: "1"} if again else {}))
        notes = [json.loads(path.read_text("utf-8")) for path in sorted(Path(folder).iterdir())]
    fired = report(notes, say)
    return code if code else 0 if fired else EXIT_NOT_INJECTED


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise UsageError(
            f"the command cannot be started: {error.strerror}", where=" ".join(command)
        ) from None
    while True:
        try:
            code = process.wait()
            break
        except KeyboardInterrupt:
            continue  # the terminal has told the command, too: it ends by itself
    return code if code >= 0 else 128 - code


def report(notes: Sequence[dict[str, Any]], say: Say) -> int:
    """Say what became of a plan.

    Args:
        notes: what each process left, see `from_environment`.

    Returns:
        how many injections there were.
    """
    if not notes:
        say(_NO_GUARD)
    fired, missed = 0, []
    for note in notes:
        if "refused" in note:
            say(f"the plan was refused: {note['refused']}")
            continue
        for event in events_of(Path(note["journal"]), since=note["size"]):
            if event.get("event") == "fired":
                fired += 1
                say(_fired(event))
            elif event.get("event") == "missed":
                missed.append(event)
    for event in missed:
        where = f" of rank {event['rank']}" if event["rank"] else ""
        say(f"fault {event['fault']} ({event['site']}){where} did not fire: {event['reason']}")
    if notes and not fired:
        say("nothing was injected")
    return fired


def _fired(event: dict[str, Any]) -> str:
    words = [
        f"[{word['index']}] 0x{word['before']:x} → 0x{word['after']:x}" for word in event["touched"]
    ]
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    masked = all(word["before"] == word["after"] for word in event["touched"])
    return (
        f"injected at step {event['step']}, rank {event['rank']}: {event['site']} of "
        f"{event['tensor']} {', '.join(words[:_SHOWN])}{more}"
        + (" (masked: no bit changed)" if masked else "")
        + (f" ({event['note']})" if event["note"] else "")
    )
