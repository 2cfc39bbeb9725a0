"""A search's answer as the page tells it: the verdict, its bracket, its grounds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forensics.reporting.facts import State, Told
from forensics.reporting.headline import of_session
from forensics.reporting.result_lines import TENSOR_HEADS, tensor_cells

from ..disproof import disproof
from ..wording import bits_text, plain


@dataclass(frozen=True)
class Answer:
    """An answer.

    Attributes:
        state, sentence: in a word and in a sentence.
        last_clean, first_corrupt: steps as text; "–" without one.
        certainty: "proven", "not proven" or "–" where nothing was found.
        step, layer: what to look at; None where none is named.
        rests_on, limits, disproof: a sentence each.
    """

    state: State
    sentence: str
    last_clean: str
    first_corrupt: str
    certainty: str
    step: int | None
    layer: str | None
    rests_on: tuple[str, ...]
    limits: tuple[str, ...]
    disproof: tuple[str, ...]


def answer_of(told: Told, dtypes: Mapping[str, str]) -> Answer | None:
    """The answer of a session; None while it has none that can be read.

    Args:
        told: the session.
        dtypes: layer to dtype, by their names.
    """
    if told.result is None:
        return None
    found = of_session(told, dtypes)
    named = found.first_corrupt is not None
    layers = [str(one["name"]) for one in found.tensors if isinstance(one.get("name"), str)]
    return Answer(
        state=found.state,
        sentence=found.sentence,
        last_clean=_step(found.last_clean, "the start" if named else "–"),
        first_corrupt=_step(found.first_corrupt, "–"),
        certainty=("proven" if found.proven else "not proven") if named else "–",
        step=found.first_corrupt,
        layer=layers[0] if layers else None,
        rests_on=found.rests_on,
        limits=found.limits,
        disproof=tuple(disproof(found)),
    )


def answer_table(tensors: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The tensors that differ, harmless as Markdown; a column that says nothing is left out."""
    rows = [tensor_cells(dict(one)) for one in tensors]
    columns = {
        head: [plain(bits_text(row[place])) or "–" for row in rows]
        for place, head in enumerate(TENSOR_HEADS)
    }
    return {head: cells for head, cells in columns.items() if set(cells) != {"–"}}


def _step(step: int | None, without: str) -> str:
    return without if step is None else f"{step:,}"
