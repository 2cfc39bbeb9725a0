"""The course of a search as a small tree in Graphviz's language. Pure.

Nothing but numbers and words of ours is in it: no name from a file can become a part of the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from forensics.reporting.facts import Judged

from ..palette import Palette
from .probes import ANSWERS, counted

MAX_NODES: Final = 40
MAX_DEPTH: Final = 12  # a search halves: of one that judged all in turn the table says as much
_SHAPES: Final = {
    "clean": "ellipse",
    "corrupt": "octagon",
    "untestable": "diamond",
    "skipped": "box",
}


@dataclass(frozen=True)
class Node:
    """A checkpoint in the tree of a search.

    Attributes:
        order: when it was judged, 1 for the first.
        step: of the checkpoint.
        verdict: "clean", "corrupt", "untestable" or "skipped"; of several the one said most often.
        said: how often each was.
        parent: step of the one whose answer led here; None for the first.
    """

    order: int
    step: int
    verdict: str
    said: tuple[tuple[str, int], ...]
    parent: int | None = None


def tree(judged: Sequence[Judged]) -> list[Node]:
    """Each checkpoint below the one whose answer narrowed the search to it.

    It is the binary search tree of the steps in the order of their first judging: earlier
    checkpoints lie to the left, later ones to the right.
    """
    nodes: dict[int, Node] = {}
    children: dict[tuple[int, bool], int] = {}
    root: int | None = None
    for order, (step, said) in enumerate(counted(judged).items(), 1):
        parent, at = None, root
        while at is not None:
            parent, at = at, children.get((at, step > at))
        if parent is None:
            root = step
        else:
            children[parent, step > parent] = step
        most = max(said, key=lambda verdict: said[verdict])
        nodes[step] = Node(order, step, most, tuple(said.items()), parent)
    return list(nodes.values())


def depth(nodes: Sequence[Node]) -> int:
    """How many checkpoints lie on the longest way down."""
    found: dict[int | None, int] = {None: 0}
    for node in nodes:  # a parent comes before its children
        found[node.step] = found[node.parent] + 1
    return max(found.values())


def tree_dot(nodes: Sequence[Node], answer: int | None, palette: Palette) -> str:
    """The tree as a graph.

    Args:
        nodes: at most MAX_NODES of them are worth drawing.
        answer: step of the first corrupt checkpoint by the search's answer, or None.
        palette: of the page.
    """
    lines = list(_head(palette))
    for node in nodes:
        lines.append(_node(node, node.step == answer, palette))
        if node.parent is not None:
            side = "later" if node.step > node.parent else "earlier"
            lines.append(f'  "{node.parent}" -> "{node.step}" [label=" {side} "];')
    return "\n".join([*lines, "}"])


def chain_dot(replays: Sequence[tuple[str, int, int]], answer: int | None, palette: Palette) -> str:
    """The course of a verification: from the checkpoint, replay by replay, to its answer.

    Args:
        replays: name, step of the checkpoint it begins with, last step.
        answer: the first step that differs, or None.
        palette: of the page.
    """
    lines = [*_head(palette, "LR")]
    if not replays:
        return "\n".join([*lines, "}"])
    start = min(begin for _, begin, _ in replays)
    lines.append(_drawn("start", f"● checkpoint\\nstep {start:,}", "ellipse", palette.clean))
    before = "start"
    for number, (_, begin, until) in enumerate(replays, 1):
        label = f"replay {number}\\nsteps {begin + 1:,} to {until:,}"
        lines += [_drawn(f"r{number}", label, "box", palette.line), f"  {before} -> r{number};"]
        before = f"r{number}"
    if answer is not None:
        label = f"✖ step {answer:,}\\ndiffers first"
        lines.append(_drawn("answer", label, "octagon", palette.corrupt, bold=True))
        lines.append(f"  {before} -> answer;")
    return "\n".join([*lines, "}"])


def _head(palette: Palette, direction: str = "TB") -> Iterator[str]:
    font = 'fontname="sans-serif", fontsize=12'
    yield "digraph search {"
    yield f'  graph [bgcolor="transparent", rankdir={direction}, nodesep=0.3, ranksep=0.3];'
    yield f'  node [{font}, fontcolor="{palette.ink}", penwidth=1.5, margin="0.1,0.05"];'
    yield f'  edge [{font}, fontcolor="{palette.soft}", color="{palette.soft}", arrowsize=0.6];'


def _node(node: Node, is_answer: bool, palette: Palette) -> str:
    colours = {"clean": palette.clean, "corrupt": palette.corrupt}
    said = ", ".join(
        f"{ANSWERS.get(verdict, '?')} {_word(verdict)}" + (f" {times}×" if times > 1 else "")
        for verdict, times in node.said
    )
    label = f"{node.order}. step {node.step:,}\\n{said}"
    if is_answer:
        label += "\\nfirst corrupt one"
    return _drawn(
        str(node.step),
        label,
        _SHAPES.get(node.verdict, "box"),
        colours.get(node.verdict, palette.untested),
        bold=is_answer,
        dashed=node.verdict not in colours,
    )


def _word(verdict: str) -> str:
    """A verdict of ours; what a damaged journal says is not taken in."""
    return verdict if verdict in ANSWERS else "not known"


def _drawn(
    name: str, label: str, shape: str, colour: str, *, bold: bool = False, dashed: bool = False
) -> str:
    style = 'style="dashed"' if dashed else "style=solid"
    width = "penwidth=3" if bold else "penwidth=1.5"
    return f'  "{name}" [label="{label}", shape={shape}, color="{colour}", {style}, {width}];'
