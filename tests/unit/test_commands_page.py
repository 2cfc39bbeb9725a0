"""docs/commands.md says what the commands say."""

from __future__ import annotations

from pathlib import Path

import click
from click.testing import CliRunner
from command_pages import page

from sdc_guard.commands.group import OneLineErrors

PAGE = Path(__file__).resolve().parents[2] / "docs" / "commands.md"


def test_the_page_of_commands_is_what_they_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run: python tests/command_pages.py > docs/commands.md"
    )


def test_a_command_that_was_called_without_its_group_has_its_help_options() -> None:
    names = ["-h", "--help"]
    group = OneLineErrors("tool", context_settings={"help_option_names": names})
    one = click.Command("one", callback=lambda: None, context_settings={"max_content_width": 90})
    group.add_command(one)
    one.make_context("one", [])
    assert CliRunner().invoke(group, ["one", "-h"]).exit_code == 0
    assert one.context_settings["max_content_width"] == 90
