"""Writes docs/commands.md: what `--help` says of every command.

python tests/command_pages.py > docs/commands.md
"""

from __future__ import annotations

from collections.abc import Iterator

import click
from click.testing import CliRunner

HEAD = """\
# Commands

What `--help` says, for reading in one place. `sdc-guard` watches and keeps; `sdc-bisect` explains
afterwards. Exit codes are with each command. This page is made from the program by
`python tests/command_pages.py > docs/commands.md`.
"""


def page() -> str:
    """The whole page."""
    from forensics.cli import main as bisect
    from sdc_guard.cli import main as guard

    groups = (("sdc-guard", guard), ("sdc-bisect", bisect))
    parts = [HEAD]
    for name, group in groups:
        links = [f"[{command}](#{name}-{command})" for command in sorted(group.commands)]
        parts.append(f"**{name}**: " + " · ".join(links) + "\n")
    for name, group in groups:
        parts += _commands(name, group)
    return "\n".join(parts)


def _commands(name: str, group: click.Group) -> Iterator[str]:
    for command in sorted(group.commands):
        done = CliRunner().invoke(
            group, [command, "--help"], prog_name=name, terminal_width=100, color=False
        )
        assert done.exit_code == 0, done.output
        yield f"## {name} {command}\n\n```\n{done.output.rstrip()}\n```\n"


if __name__ == "__main__":
    print(page(), end="")
