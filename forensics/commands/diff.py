"""`sdc-bisect diff`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sdc_guard.commands.group import json_option, json_text
from sdc_guard.errors import UsageError

from .place import PLACE

if TYPE_CHECKING:
    from ..content import Content


@click.command("diff")
@click.argument("a", type=PLACE)
@click.argument("b", type=PLACE)
@click.argument("c", type=PLACE, required=False)
@json_option
def diff_command(a: Path, b: Path, c: Path | None, as_json: bool) -> None:
    """Compare checkpoints A and B bit by bit, tensor by tensor, whatever their formats.

    For each tensor that differs: how many elements, and how many bits in the sign, exponent and
    mantissa; the largest change; bits and values of the first element. Tied weights have one name.
    Never more than the tensors that are compared are in memory.

    With a third checkpoint C, B is the one in question: a file that was damaged differs from A and
    from C, or has elements that jump and return; state that went wrong within the run is in C, too.

    Exit codes: 0 equal or, with C, compared; 1 A and B differ; 2 usage; 5 one cannot be read.

    \b
    Examples:
      sdc-bisect diff step-100.pt step-200.pt
      sdc-bisect diff checkpoint-500 replayed/checkpoint-500 --json
      sdc-bisect diff step-80.pt step-100.pt step-120.pt
    """
    from ..checkpoint_diff import tensor_diffs
    from ..diff_text import diff_lines, three_lines
    from ..three_checkpoints import three_way

    contents = [_only(path) for path in (a, b, *([] if c is None else [c]))]
    if c is not None:
        found = three_way(*contents)
        text = json_text("sdc-bisect.diff", **found.as_dict()) if as_json else None
        click.echo(text or "\n".join(three_lines(found)))
        return
    diffs = list(tensor_diffs(*contents))
    if as_json:
        click.echo(json_text("sdc-bisect.diff", tensors=[one.as_dict() for one in diffs]))
    else:
        click.echo("\n".join(diff_lines(diffs)))
    sys.exit(int(any(one.kind != "same" for one in diffs)))


def _only(path: Path) -> Content:
    """What the only checkpoint at a path holds.

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
    return reader_of(found[0].format).open(found[0])
