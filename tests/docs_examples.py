"""Runs what a document shows: its ```console blocks, like doctest runs Python's.

A block holds commands and what they print:

    $ sdc-bisect index runs/pretrain       # what follows a # is for the reader
      20  clean ...
    $ echo $?
    0

- A line that begins with `$ ` is a command; with a backslash at its end it goes on in the next.
- The lines below it are its output, stdout and stderr as they come. Without any, it may print
  whatever it likes.
- `...` stands for any text within a line; alone in a line, for any number of lines.
- White space counts between words, not how much of it, so that a table may be shown narrower.
- `$ echo $?` shows the exit code of the command before. A command without that may end with any.
- Commands of a document run one after the other in one folder, and `cd` is remembered.

    examples = console_examples(Path("docs/page.md").read_text(encoding="utf-8"))
    wrong = run_examples(examples, folder, Shell())
    assert not wrong, "\\n\\n".join(wrong)

No shell runs anything: `Shell` knows the commands of this package, which run in this process, and
the few words of `WORDS`. Another command is an error of the document.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
from click.testing import CliRunner

_BLOCK = re.compile(r"^```console[^\n]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)

Run = Callable[[Sequence[str]], tuple[int, str]]


@dataclass(frozen=True)
class Example:
    """A command of a document: its line there (from 1), its text, and what it is said to print.

    `expected` is None where the document shows no output.
    """

    line: int
    command: str
    expected: str | None


def console_examples(text: str) -> list[Example]:
    """The commands of a Markdown text, in their order.

    Raises:
        ValueError: a block begins with something else than a command.
    """
    found = []
    for block in _BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1)) + 1
        found += list(_of_block(block.group(1).splitlines(), first))
    return found


def _of_block(lines: list[str], first: int) -> Iterator[Example]:
    place = 0
    while place < len(lines):
        begin, line = first + place, lines[place]
        if not line.startswith("$ "):
            raise ValueError(f"line {begin}: a console block begins with a command: $ ...")
        command = line[2:]
        place += 1
        while command.endswith("\\") and place < len(lines):
            command = command[:-1] + lines[place]
            place += 1
        shown = []
        while place < len(lines) and not lines[place].startswith("$ "):
            shown.append(lines[place])
            place += 1
        yield Example(begin, command.strip(), "\n".join(shown) if any(shown) else None)


def matches(expected: str, printed: str) -> bool:
    """Whether an output is the one that a document shows; see the module for `...`."""
    pattern = [_of_line(line) for line in expected.strip("\n").splitlines()]
    lines = [" ".join(line.split()) for line in printed.strip("\n").splitlines()]
    # (the lines that `pattern[:n]` may end before), one after the other: no backtracking
    places = {0}
    for wanted in pattern:
        if wanted is None:
            places = set(range(min(places), len(lines) + 1))
        else:
            places = {n + 1 for n in places if n < len(lines) and wanted.fullmatch(lines[n])}
        if not places:
            return False
    return len(lines) in places


def _of_line(line: str) -> re.Pattern[str] | None:
    """None for any number of lines."""
    words = " ".join(line.split())
    if words == "...":
        return None
    return re.compile(".*".join(re.escape(part) for part in words.split("...")))


def run_examples(examples: Sequence[Example], folder: Path, run: Run) -> list[str]:
    """Run them one after the other, beginning in `folder`; what was not as shown, in words."""
    assert examples, "no console block with a command in it"
    wrong, code = [], 0
    with contextlib.chdir(folder):
        for example in examples:
            words = shlex.split(example.command, comments=True)
            if words == ["echo", "$?"]:
                printed = f"{code}\n"
            elif words[0] == "cd":
                os.chdir(words[1])
                continue
            else:
                code, printed = run(words)
            if example.expected is not None and not matches(example.expected, printed):
                wrong.append(
                    f"line {example.line}: $ {example.command}\nshown:\n{example.expected}\n"
                    f"printed (exit code {code}):\n{printed}"
                )
    return wrong


def _copy(*words: str) -> tuple[int, str]:
    """cp [-r] FROM TO."""
    source, target = (Path(word) for word in words if not word.startswith("-"))
    if target.is_dir():
        target = target / source.name
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)
    return 0, ""


def _show(*words: str) -> tuple[int, str]:
    """cat FILE..."""
    return 0, "".join(Path(word).read_text(encoding="utf-8") for word in words)


def _make(*words: str) -> tuple[int, str]:
    """mkdir [-p] FOLDER..."""
    for word in words:
        if not word.startswith("-"):
            Path(word).mkdir(parents=True, exist_ok="-p" in words)
    return 0, ""


WORDS: Mapping[str, Callable[..., tuple[int, str]]] = {"cp": _copy, "cat": _show, "mkdir": _make}


@dataclass(frozen=True)
class Shell:
    """Runs a command line in this process.

    Args:
        others: what else is known: the first word, to what takes the others and gives exit code
            and output; replaces what is known already.
        python: what a `python` that a command starts is: the path of a program of that name.
    """

    others: Mapping[str, Callable[..., tuple[int, str]]] = field(default_factory=dict)
    python: str = sys.executable

    def __call__(self, words: Sequence[str]) -> tuple[int, str]:
        name, *arguments = words
        known = {**WORDS, "sdc-bisect": self._bisect, "sdc-guard": self._guard, **self.others}
        if name not in known:
            raise ValueError(f"{name}: not one of {', '.join(sorted(known))}; see docs_examples.py")
        return known[name](*arguments)

    def _bisect(self, *arguments: str) -> tuple[int, str]:
        from forensics.cli import main

        return self._called(main, arguments)

    def _guard(self, *arguments: str) -> tuple[int, str]:
        from sdc_guard.cli import main

        return self._called(main, arguments)

    def _called(self, command: click.Command, arguments: Sequence[str]) -> tuple[int, str]:
        path = os.pathsep.join([str(Path(self.python).parent), os.environ["PATH"]])
        done = CliRunner().invoke(command, list(arguments), env={"PATH": path})
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.output
