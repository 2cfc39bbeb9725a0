"""The documents that come with the package, and the blocks of code in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("README.md", "CONTRIBUTING.md", "sample_runs/README.md")
DOCUMENTS = tuple(sorted((ROOT / "docs").glob("*.md"))) + tuple(ROOT / name for name in NAMES)

_BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
_OF_A_SHELL = {"", "console", "bash"}  # languages of blocks that may hold commands
# what may stand before one: a prompt, a variable, five fields of a crontab
_COMMAND = re.compile(r"^(?:\$ |[A-Z_]+=\S+ |(?:[*/\d,-]+\s+){5})?(sdc-guard|sdc-bisect) (.*)$")


@dataclass(frozen=True)
class Block:
    """A block of code: its language ("" for none), the line it begins at (from 1), and its text."""

    language: str
    line: int
    text: str


def blocks(path: Path) -> list[Block]:
    """All of a document, in their order."""
    text = path.read_text(encoding="utf-8")
    return [
        Block(found[1], text.count("\n", 0, found.start(2)) + 1, found[2])
        for found in _BLOCK.finditer(text)
    ]


def command_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """This package's commands in a document's blocks: the line of each, and its words."""
    for block in blocks(path):
        if block.language not in _OF_A_SHELL:
            continue
        # a backslash at the end joins two lines, and the number of the first is kept
        text = block.text.replace("\\\n", "\0")
        line = block.line
        for one in text.splitlines():
            if found := _COMMAND.match(one):
                words = shlex.split(found[2].replace("\0", " "), comments=True)
                yield line, [found[1], *words[: words.index("&") if "&" in words else None]]
            line += 1 + one.count("\0")


def prose(path: Path) -> str:
    """A document without its blocks of code."""
    return _BLOCK.sub("", path.read_text(encoding="utf-8"))


def shown(path: Path) -> str:
    """A document's name for a message."""
    return path.relative_to(ROOT).as_posix()
