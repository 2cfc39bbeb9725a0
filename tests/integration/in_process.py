"""`sdc-bisect` called in this process: a hundred calls do not start Python a hundred times."""

from __future__ import annotations

from click.testing import CliRunner
from conftest import Answer

from forensics.cli import main


def bisect(*arguments: object) -> Answer:
    """Its output and exit code; an error that is not one of its own is raised."""
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Answer(done.exit_code, done.stdout, done.stderr)
