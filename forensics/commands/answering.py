"""What the commands print: progress on stderr, the answer on stdout."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from sdc_guard.commands.group import json_text, say

if TYPE_CHECKING:
    from ..result import Result


def progress(line: str) -> None:
    """A line about what is going on."""
    say(f"  {line}", err=True)


def tell_result(result: Result, as_json: bool) -> None:
    """Print a result."""
    from ..reporting.result_lines import lines

    content = result.as_dict()
    if as_json:
        click.echo(json_text(None, **content))
    else:
        say(*lines(content))
    sys.stdout.flush()


def answer(result: Result, as_json: bool) -> None:
    """Print a result and end with its exit code."""
    tell_result(result, as_json)
    sys.exit(result.exit_code)
