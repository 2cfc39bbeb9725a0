"""Tied weights: one tensor of several names, which formats keep under one name or under each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .content import Content

_Pair = tuple[str | None, str | None]  # the names under which the two checkpoints store a tensor


def same_names(one: Content, other: Content) -> tuple[Content, Content]:
    """The same two checkpoints with the names by which their tensors can be compared.

    Afterwards a name that only one of them has is a tensor that the other lacks. A weight that is
    tied in both has one name, which the rest are aliases of; one that a checkpoint ties and the
    other holds several times has all of its names in both. A name that a checkpoint ties to a
    tensor which both have is not missing in the other: `save_pretrained`, for one, leaves out a
    tied weight without a word.

    Args:
        one: the order of its tensors is kept, and the first of its names where there are several.
        other: the other.
    """
    pairs = _pairs(one, other)
    whole = [pair for pair in pairs.values() if None not in pair]
    by_one = {pair[0]: pair for pair in reversed(whole)}
    by_other = {pair[1]: pair for pair in reversed(whole)}
    first: dict[_Pair, str] = {}
    aliases: dict[str, str] = {}
    for name, pair in pairs.items():
        if pair[1] is None:
            pair = by_one.get(pair[0], pair)
        elif pair[0] is None:
            pair = by_other.get(pair[1], pair)
        kept = first.setdefault(pair, name)
        if kept != name:
            aliases[name] = kept
    left = {name: one.tensors[pair[0]] for pair, name in first.items() if pair[0] is not None}
    right = {name: other.tensors[pair[1]] for pair, name in first.items() if pair[1] is not None}
    return (
        replace(one, tensors=left, aliases=aliases),
        replace(other, tensors=right, aliases=aliases),
    )


@dataclass(frozen=True)
class OtherName:
    """A name of a tied weight that not all checkpoints have, which all have under another name.

    Attributes:
        name: the one.
        held: letters of the checkpoints that have it.
        kept: a name that all of them have.
    """

    name: str
    held: tuple[str, ...]
    kept: str

    @property
    def text(self) -> str:
        """In words."""
        return f"{self.name} is only in {' and '.join(self.held)} (tied to {self.kept})"


def other_names(contents: Sequence[Content]) -> list[OtherName]:
    """Names that `same_names` takes for no difference, though not all of the checkpoints have them.

    Args:
        contents: A, B and so on.
    """
    names = dict.fromkeys(name for one in contents for name in (*one.tensors, *one.aliases))
    held = {name: [_stored(one, name) for one in contents] for name in names}
    everywhere: list[dict[str, str]] = [{} for _ in contents]
    for name, stored in held.items():
        if None not in stored:
            for place, kept in enumerate(stored):
                assert kept is not None
                everywhere[place].setdefault(kept, name)
    found = []
    for name, stored in held.items():
        if None not in stored:
            continue
        kept_by = (everywhere[place].get(kept) for place, kept in enumerate(stored) if kept)
        if (kept_as := next(filter(None, kept_by), None)) is not None:
            letters = tuple(
                letter for letter, kept in zip("ABC", stored, strict=False) if kept is not None
            )
            found.append(OtherName(name, letters, kept_as))
    return found


def _pairs(one: Content, other: Content) -> dict[str, _Pair]:
    """Every name of the two, with what it stands for in each."""
    names = dict.fromkeys([*one.tensors, *other.tensors, *one.aliases, *other.aliases])
    pairs = {name: (_stored(one, name), _stored(other, name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair != (None, None)}


def _stored(content: Content, name: str) -> str | None:
    kept = content.aliases.get(name, name)
    return kept if kept in content.tensors else None
