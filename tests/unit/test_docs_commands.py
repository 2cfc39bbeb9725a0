"""Every command line of this package in a document is one that its commands understand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from documents import DOCUMENTS, command_lines, prose, shown

from forensics.cli import main as bisect
from sdc_guard.cli import main as guard

GROUPS: dict[str, click.Group] = {"sdc-guard": guard, "sdc-bisect": bisect}
IN_PROSE = re.compile(r"`(sdc-guard|sdc-bisect) ([^`]+)`")
# of other programs: of the reader's training script, of torchrun, of benchmarks
OPTIONS_OF_OTHERS = {
    "--clean", "--first", "--fit", "--fix", "--folder", "--megabytes", "--nproc-per-node",
    "--resume", "--rounds", "--run-path", "--save-to", "--slow", "--steps", "--until",
}  # fmt: skip


def not_understood(group: str, name: str, *words: str) -> str:
    """What click finds wrong with a command line; "" for nothing. Runs nothing."""
    if name in ("--help", "--version"):
        return ""
    command = GROUPS[group].commands.get(name)
    if command is None:
        return f"{group} has no command {name}"
    try:
        command.make_context(name, list(words))
    except click.ClickException as error:
        return error.format_message()
    return ""


@pytest.mark.parametrize("path", DOCUMENTS, ids=shown)
def test_every_command_line_is_understood(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # none of the files that are named are there
    wrong = [
        f"line {line}: {shlex.join(words)}: {told}"
        for line, words in command_lines(path)
        if (told := not_understood(*words))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_documents_have_as_many_command_lines_as_a_reader_finds() -> None:
    # each is one that `command_lines` must not lose: a prompt, a crontab, a variable, two lines
    found = [shlex.join(words) for path in DOCUMENTS for _, words in command_lines(path)]
    for line in (
        "sdc-bisect start archive --good 100 --bad 1600",
        "sdc-guard prefetch /shared/runs/pretrain --cache /local/cache --cache-size 500GB",
        "sdc-bisect run archive --executor ray --jobs 64 -- python check.py '{ckpt}'",
        "sdc-bisect verify out --losses out/checkpoint-900/trainer_state.json --from 600 "
        "-- python train.py --resume '{ckpt}' --until '{step}' --output '{run}'",
    ):
        assert line in found
    assert len(found) > 100


@pytest.mark.parametrize("path", DOCUMENTS, ids=shown)
def test_the_commands_that_a_sentence_names_have_the_options_it_names(path: Path) -> None:
    wrong = []
    for group, rest in IN_PROSE.findall(prose(path)):
        name, *words = rest.split(" -- ")[0].split()
        command = GROUPS[group].commands.get(name)
        taken = set() if command is None else options_of(command)
        named = {word.split("=")[0] for word in words if word.startswith("-")}
        if command is None or named - taken:
            wrong.append(f"{group} {rest}")
    assert not wrong


def test_every_option_in_a_document_is_one_of_a_command_or_known_to_be_another_programs() -> None:
    taken = {
        option
        for group in GROUPS.values()
        for command in group.commands.values()
        for option in options_of(command)
    }
    used: dict[str, str] = {}
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        used |= dict.fromkeys(re.findall(r"(?<![\w-])--[a-z][\w-]*\w", text), shown(path))
    unknown = {option: path for option, path in used.items() if option not in taken}
    assert set(unknown) - OPTIONS_OF_OTHERS == set(), unknown
    assert set(unknown) >= OPTIONS_OF_OTHERS, "an option of others that no document names"


def options_of(command: click.Command) -> set[str]:
    context = click.Context(command)
    return {
        name
        for parameter in command.get_params(context)
        for name in (*parameter.opts, *parameter.secondary_opts)
    } | {"--help", "-h"}
