"""`sdc-bisect diff`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sdc_guard.commands.group import json_option, json_text, say
from sdc_guard.errors import UsageError

from .place import PLACE

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint
    from ..content import Content


@click.command("diff")
@click.argument("a", type=PLACE)
@click.argument("b", type=PLACE)
@click.argument("c", type=PLACE, required=False)
@click.option("--all", "every", is_flag=True, help="Name every tensor that differs.")
@json_option
def diff_command(a: Path, b: Path, c: Path | None, every: bool, as_json: bool) -> None:
    """Compare checkpoints A and B bit by bit, tensor by tensor, whatever their formats.

    First what is wrong with the files themselves: bytes that do not fit their checksums, NaN.
    Then how many tensors differ, and which: parameters, first moments, second moments, other;
    those first that look least like a training step: few elements, or one that moved much
    further than the others. Of each how many elements and bits, which bits of the number, and
    the first element that differs, before and after. Tied weights have one name. Never more than
    the tensors that are compared are in memory.

    With a third checkpoint C, B is the one in question: a file that was damaged differs from A and
    from C, or has elements that jump and return; state that went wrong within the run is in C, too.

    \b
    Exit codes: 0 what was compared is equal or, with C, compared, 1 A and B differ, 2 usage,
    5 one cannot be read.

    \b
    Examples:
      sdc-bisect diff step-100.pt step-200.pt
      sdc-bisect diff checkpoint-500 replayed/checkpoint-500 --json
      sdc-bisect diff step-80.pt step-100.pt step-120.pt
    """
    from ..checkpoint_diff import tensor_diffs
    from ..diff_text import diff_lines
    from ..diff_three_text import three_lines
    from ..diff_troubles import damage_of, of_values
    from ..not_compared import not_compared
    from ..three_checkpoints import three_way

    opened = [_only(path) for path in (a, b, *([] if c is None else [c]))]
    contents = [content for _, content in opened]
    troubles = [
        trouble
        for letter, one in zip("ABC", opened, strict=False)
        for trouble in damage_of(letter, *one)
    ]
    besides = not_compared(contents)
    if c is not None:
        found = three_way(
            contents[0], contents[1], contents[2], damaged={trouble.of for trouble in troubles}
        )
        troubles += found.odd
        if as_json:
            told = [one.as_dict() for one in troubles]
            text = json_text(
                "sdc-bisect.diff", troubles=told, **found.as_dict(), **besides.as_dict()
            )
            click.echo(text)
        else:
            say(*three_lines(found, troubles, every=every), *besides.lines(every))
        return
    diffs = list(tensor_diffs(*contents))
    troubles += of_values(diffs)
    if as_json:
        click.echo(
            json_text(
                "sdc-bisect.diff",
                troubles=[one.as_dict() for one in troubles],
                tensors=[one.as_dict() for one in diffs],
                **besides.as_dict(),
            )
        )
    else:
        unseen = len(besides.foreign)
        said = diff_lines(diffs, troubles, every=every, unseen=unseen)
        say(*said, *besides.lines(every))
    sys.exit(int(any(one.kind != "same" for one in diffs)))


def _only(path: Path) -> tuple[Checkpoint, Content]:
    """The only checkpoint at a path, and what it holds.

    Raises:
        UsageError: there are several.
        CheckpointUnreadable: it cannot be read.
    """
    from sdc_guard.errors import CheckpointUnreadable

    from ..index import index
    from ..readers.known import reader_of

    found = index(path)
    if len(found) > 1:
        steps = ", ".join(str(one.step) for one in found[:6])
        raise UsageError(
            f"{len(found)} checkpoints there (step {steps}{', ...' if len(found) > 6 else ''})",
            where=str(path),
            next_step="give the file or folder of one",
        )
    if not found[0].readable:
        raise CheckpointUnreadable("; ".join(found[0].reasons), where=str(path))
    return found[0], reader_of(found[0].format).open(found[0])
