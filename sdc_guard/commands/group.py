"""What all commands share: errors in one line, JSON, and what a run is given as."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click
from click.exceptions import NoArgsIsHelpError

from ..errors import EXIT_USAGE, Interrupted, SdcGuardError, UsageError, no_permission
from ..plain_json import plain
from ..shown import shown

_UNREADABLE: Final = re.compile(r"Path '(.*)' is not readable\.$", re.DOTALL)


class OneLineErrors(click.Group):
    """A group of commands in which an error raised on purpose is one line and an exit code.

    With --json it is one object on stdout instead. What click itself finds wrong with the words on
    the command line is told alike.
    """

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add it, with the group's names of the help option.

        click takes them from whoever calls a command first, and keeps them for later calls.
        """
        for key, names in self.context_settings.items():
            cmd.context_settings.setdefault(key, names)
        super().add_command(cmd, name)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        typed = list(sys.argv[1:] if args is None else args)
        try:
            code = super().main(typed, prog_name, complete_var, False, **extra)
        except NoArgsIsHelpError as help_text:
            help_text.show()
            sys.exit(EXIT_USAGE)
        except click.ClickException as raised:
            self._tell(_of_click(raised), _command_of(raised), _asks_for_json(typed))
            sys.exit(EXIT_USAGE)
        except click.Abort:
            stopped = Interrupted("stopped by Ctrl-C")
            self._tell(stopped, None, _asks_for_json(typed))
            sys.exit(stopped.exit_code)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (SdcGuardError, OSError, KeyboardInterrupt) as raised:
            error = raised if isinstance(raised, SdcGuardError) else _of_system(raised)
            self._tell(error, ctx.invoked_subcommand, bool(ctx.meta.get("json")))
            ctx.exit(error.exit_code)

    def _tell(self, error: SdcGuardError, command: str | None, as_json: bool) -> None:
        if as_json:
            schema = f"{self.name}.{command}" if command else str(self.name)
            click.echo(json_text(schema, error=error.as_dict()))
        else:
            say(f"{self.name}: {error}", err=True)


def say(*lines: str, err: bool = False) -> None:
    """Print lines, each on one of its own whatever the names in it hold.

    Args:
        lines: a line break in one of them, of a name, is printed as such.
        err: on stderr.
    """
    click.echo("\n".join(shown(line) for line in lines), err=err)


def _asks_for_json(typed: Iterable[str]) -> bool:
    """Whether --json stands on the command line, before the words of a command of the user's."""
    return "--json" in itertools.takewhile(lambda word: word != "--", typed)


def _command_of(error: click.ClickException) -> str | None:
    """The command whose words are wrong; None where it is not even known which."""
    context = getattr(error, "ctx", None)
    return None if context is None or context.parent is None else context.info_name


def _of_click(error: click.ClickException) -> UsageError:
    """What click finds wrong, in one sentence, and where what is right can be read."""
    context = getattr(error, "ctx", None)
    if unreadable := _UNREADABLE.search(error.message):
        return no_permission(unreadable[1])
    path = "" if context is None else context.command_path
    what = " ".join(error.format_message().split()).rstrip(".")
    what = what[:1].lower() + what[1:]
    return UsageError(what, where=path, next_step=f"see {path} --help" if path else "see --help")


def _of_system(error: OSError | KeyboardInterrupt) -> SdcGuardError:
    """A full disk, a missing permission: the system's own words, and the file. Or Ctrl-C."""
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("stopped by Ctrl-C")
    if isinstance(error, PermissionError):
        return no_permission(error.filename or "")
    return UsageError(error.strerror or str(error), where=str(error.filename or ""))


def json_text(name: str | None, **content: Any) -> str:
    """One JSON object; `name` is put into its schema unless the content has one.

    What JSON has no word for is told as `plain` says: it raises for no value.
    """
    schema = {} if name is None else {"schema": {"name": name, "version": 1}}
    return json.dumps(plain({**schema, **content}), indent=1, allow_nan=False)


def _remember_json(ctx: click.Context, _: click.Parameter, value: bool) -> bool:
    ctx.meta["json"] = value
    return value


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --json, also for errors."""
    return click.option(
        "--json", "as_json", is_flag=True, is_eager=True, callback=_remember_json,
        help="Print one JSON object, also for an error.",
    )(command)  # fmt: skip


@contextlib.contextmanager
def while_somebody_reads() -> Iterator[None]:
    """Ends its block without an error where the reader of our output, `head` say, has left."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def folders_alone(ctx: click.Context, _: click.Parameter, value: Any) -> Any:
    for path in value if isinstance(value, tuple) else (value,):
        if str(path).startswith("ducklake:"):
            raise UsageError(
                f"{ctx.info_name} takes a run's folder, not a lake", where=str(path),
                next_step="sql, export and dashboard read a lake",
            )  # fmt: skip
    return value


run_argument = click.argument("run", type=click.Path(path_type=Path), callback=folders_alone)


# a folder, or a run in a lake: no Path, which would take a slash from a URL
location_argument = click.argument("run")


runs_argument = click.argument(
    "runs", nargs=-1, required=True, type=click.Path(path_type=Path), callback=folders_alone
)
