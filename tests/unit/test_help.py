"""The help of each command of sdc-bisect says all that a page of a manual does."""

from __future__ import annotations

import re
import shlex

import click
import pytest
from click.testing import CliRunner

from forensics.cli import main

COMMANDS = sorted(main.commands)
_STRAY = re.compile(r"\\\n\s*")


def help_of(name: str) -> str:
    return CliRunner().invoke(main, [name, "--help"]).stdout


def examples(name: str) -> list[list[str]]:
    """The words of each example."""
    text = _STRAY.sub(" ", help_of(name).partition("Examples:\n")[2].partition("\n\n")[0])
    return [shlex.split(line) for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("name", COMMANDS)
def test_it_has_a_summary_exit_codes_examples_and_a_word_on_each_option(name: str) -> None:
    text, command = help_of(name), main.commands[name]
    summary = command.get_short_help_str(200)
    assert summary[:1].isupper(), summary
    assert re.search(r"Exit codes?: .*0\b.*2\b", text, re.DOTALL)
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, option.name
            assert option.help.endswith((".", ").")), option.name
        else:
            for word in re.findall(r"[A-Z]+", option.human_readable_name):
                assert len(re.findall(rf"\b{word}\b", text)) > 1, word  # not the usage alone


@pytest.mark.parametrize("name", COMMANDS)
def test_its_examples_are_understood(name: str) -> None:
    found = examples(name)
    assert found
    assert any(words[:2] == ["sdc-bisect", name] for words in found)
    for program, called, *words in found:
        assert program == "sdc-bisect"
        words = words[: next((at for at, word in enumerate(words) if word in "|>"), None)]
        if called == "replay":  # its parser opens the file
            words = ["-", *words[1:]]
        main.commands[called].make_context(called, words)  # raises where it is not
