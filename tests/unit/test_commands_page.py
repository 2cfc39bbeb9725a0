"""docs/commands.md says what the commands say."""

from __future__ import annotations

from pathlib import Path

from command_pages import page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "commands.md"


def test_the_page_of_commands_is_what_they_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run: python tests/command_pages.py > docs/commands.md"
    )
