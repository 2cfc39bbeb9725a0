"""`sdc-bisect good`, `bad`, `skip` and `undo`: what the user says of checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sdc_guard.commands.group import json_option
from sdc_guard.errors import UsageError

from ..locations import location
from .session_place import archive_argument, home_of, open_live, session_option
from .session_view import finish, view_of

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint
    from ..sessions.home import Home
    from ..sessions.live import Live
    from ..sessions.state import Entry

OF_AN_ANSWER = """    Exit codes: 0 something is left to judge, or nothing is corrupt, 1 located,
    2 usage, or no session, 3 a range only, 5 archive incomplete."""
_HELP = """{what}

    It prints which one to judge next and about how many judgings are left, or the answer. STEP is
    the number of a step, or the name of a checkpoint where several are of one step. PATH is the
    archive of the session that `start` began; the working directory if it is left out.
"""


def _judging(name: str, what: str, examples: str) -> Callable[[Callable[..., None]], click.Command]:
    end = f"    \b\n{OF_AN_ANSWER}\n\n    \b\n    Examples:\n{examples}"
    text = f"{_HELP.format(what=what)}\n{end}"

    def decorate(function: Callable[..., None]) -> click.Command:
        for add in reversed(
            (
                click.argument("steps", nargs=-1, required=True, metavar="[PATH] STEP..."),
                click.option(
                    "--dry-run", is_flag=True, help="Say what would be next; keep nothing."
                ),
                session_option,
                json_option,
            )
        ):
            function = add(function)
        return click.command(name, help=text)(function)

    return decorate


@_judging(
    "good",
    "Say that the checkpoints of these steps are clean.",
    "      sdc-bisect good 3000\n      sdc-bisect good archive 1000 2000\n",
)
def good_command(**typed: Any) -> None:
    _judge("good", **typed)


@_judging(
    "bad",
    "Say that the checkpoints of these steps are corrupt.",
    "      sdc-bisect bad 5000\n      sdc-bisect bad archive 5000 --json\n",
)
def bad_command(**typed: Any) -> None:
    _judge("bad", **typed)


@_judging(
    "skip",
    "Say that the checkpoints of these steps are not to be judged, or cannot be.\n\n"
    "    That is no evidence: the answer is a range if the first corrupt one may be among them.",
    "      sdc-bisect skip 4000\n      sdc-bisect skip archive 4000 4500\n",
)
def skip_command(**typed: Any) -> None:
    _judge("skip", **typed)


@click.command("undo")
@archive_argument
@click.option("--dry-run", is_flag=True, help="Say what would be next; keep nothing.")
@session_option
@json_option
def undo_command(path: Path | None, dry_run: bool, named: Path | None, as_json: bool) -> None:
    """Take the last judging or skip back, whoever it was by. Again: the one before.

    PATH is the working directory if it is left out. The journal keeps what was taken back.

    \b
    Exit codes: 0 something is left to judge, else that of the answer: 1 located,
    3 a range only; 2 usage, no session or nothing to take back, 5 archive incomplete.

    \b
    Examples:
      sdc-bisect undo
      sdc-bisect undo runs/pretrain
    """
    from ..sessions.standing import standing

    with open_live(home_of(path, named)) as (live, candidates):
        if not live.state.entries:
            raise UsageError("nothing is judged yet", where=str(live.folder))
        last = live.state.entries[-1]
        if dry_run:
            live.state = live.state.after({"event": "undo"})
        else:
            live.undo()
        current = standing(live.state, live.home.archive, candidates)
        note = f"{'would be ' * dry_run}taken back: {_words(last)}"
        view = view_of(live.folder, live.state, current, (note,), only_told=True)
        if not dry_run:
            live.publish(view.result)
    finish("undo", view, as_json)


def _judge(
    word: str, steps: tuple[str, ...], dry_run: bool, named: Path | None, as_json: bool
) -> None:
    from ..sessions.standing import chosen, out_of_order, standing

    home, texts = _place(steps, named)
    with open_live(home) as (live, candidates):
        if live.state.asked.repeat > 1:
            raise UsageError(
                "`run --repeat` began this session, and only its command judges in it",
                where=str(live.folder),
                next_step="run it again, or `sdc-bisect reset`",
            )
        wanted = [chosen(text, home.archive, candidates) for text in texts]
        for checkpoint in wanted:  # all or none
            _check(live, candidates, checkpoint, word)
        notes = ["nothing was kept"] if dry_run else []
        if word == "skip":
            notes += _dropped(live, wanted)
        for checkpoint in wanted:
            live.judged_by_user(checkpoint, _judgement(word), dry_run)
        current = standing(live.state, home.archive, candidates)
        if note := out_of_order(current):
            notes.append(note)
        view = view_of(live.folder, live.state, current, notes)
        if not dry_run:
            live.publish(view.result)
    finish(word, view, as_json)


def _check(live: Live, candidates: Sequence[Checkpoint], checkpoint: Checkpoint, word: str) -> None:
    from ..sessions.standing import contradiction, standing

    current = standing(live.state, live.home.archive, candidates)
    judgement = _judgement(word)
    why = contradiction(current, checkpoint, None if judgement is None else judgement.verdict)
    if why:
        raise UsageError(why, next_step="`sdc-bisect reset` and `start` with other ends")


def _dropped(live: Live, wanted: Sequence[Checkpoint]) -> list[str]:
    """That a judging counts no more where its checkpoint is skipped now."""
    from ..sessions.standing import name_of

    lines = []
    for checkpoint in wanted:
        name = name_of(checkpoint, live.home.archive)
        last = [entry for entry in live.state.entries if entry.name == name][-1:]
        for entry in last:
            if entry.judgement is not None:
                lines.append(
                    f"{_words(entry)}, counts no more: it is skipped now; `sdc-bisect undo` "
                    "brings it back"
                )
    return lines


def _judgement(word: str) -> Any:
    from ..oracles.judgement import Judgement

    if word == "skip":
        return None
    return Judgement("clean" if word == "good" else "corrupt", f"the user says {word}")


def _words(entry: Entry) -> str:
    said = "skip" if entry.judgement is None else entry.judgement.verdict
    return f"step {entry.step} {said}, by {entry.by}"


def _place(texts: Sequence[str], named: Path | None) -> tuple[Home, Sequence[str]]:
    """The archive and the steps: the first text is PATH if it is a folder."""
    from ..sessions.home import Home

    first = location(texts[0])
    if texts[0].isdigit() or not first.is_dir():
        return home_of(None, named), texts
    given = home_of(first, named)
    if given.open_session() is None and Home.of(Path(), named).open_session() is not None:
        return home_of(None, named), texts  # a checkpoint's name, in its archive
    if len(texts) == 1:
        raise UsageError("which step?", next_step=f"give its number after {texts[0]}")
    return given, texts[1:]
