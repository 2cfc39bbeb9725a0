"""What all commands share: errors in one line, JSON, and what a run is given as."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from ..errors import Interrupted, SdcGuardError, UsageError


class OneLineErrors(click.Group):
    """A group of commands in which an error raised on purpose is one line and an exit code.

    With --json it is one object on stdout instead.
    """

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (SdcGuardError, OSError, KeyboardInterrupt) as raised:
            error = raised if isinstance(raised, SdcGuardError) else _of_system(raised)
            if ctx.meta.get("json"):
                schema = f"{self.name}.{ctx.invoked_subcommand}"
                click.echo(json_text(schema, error=error.as_dict()))
            else:
                click.echo(f"{self.name}: {error}", err=True)
            ctx.exit(error.exit_code)


def _of_system(error: OSError | KeyboardInterrupt) -> SdcGuardError:
    """A full disk, a missing permission: the system's own words, and the file. Or Ctrl-C."""
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("stopped by Ctrl-C")
    return UsageError(error.strerror or str(error), where=str(error.filename or ""))


def json_text(name: str | None, **content: Any) -> str:
    """One JSON object; `name` is put into its schema unless the content has one."""
    schema = {} if name is None else {"schema": {"name": name, "version": 1}}
    return json.dumps({**schema, **content}, indent=1, allow_nan=False)


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
