"""The part of a `.metadata` that one save after the other has in common, read once.

DCP writes what is where first, and at the end which save it was. The saves of a run mostly have
the first part in common to the byte: what the machine makes of it is kept, and the end is read by
itself. The end is given nothing of the first part but its texts, and placeholders for the rest:
where it touches one of them, or asks for what was remembered, all is read as usual.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from ..inert_pickle import Inert
from .dcp_pickle import MetadataEntry, MetadataUnpickler

_END: Final = b"\x8c\x0cstorage_meta"  # the key of what differs
_FRAME: Final = 0x95  # an operation that says a length, and does nothing
_FRAME_BYTES: Final = slice(2, 11)  # where the first one is, after the protocol
_MOST_BYTES: Final = 2 << 20  # of a layout that is kept: in memory it takes some twenty times that
_KEPT: Final = 2


class _Held(Inert):
    """Stands for what the first part made; can be no key, as a dict cannot."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment] # as of everything that changes


class _Texts(dict[int, Any]):
    """What was remembered, as far as it is text; counted as if all were there."""

    def __init__(self, texts: Mapping[int, Any], others: int) -> None:
        super().__init__(texts)
        self._others = others

    def __len__(self) -> int:
        return super().__len__() + self._others


@dataclass(frozen=True)
class _Layout:
    """Where the machine stood at the end of the first part.

    Attributes:
        values: by name, what `Metadata` was given until then.
        texts: those that were remembered, by number.
        others: how many other things were.
        stack: what it stood on: the object, its state, a mark, and names and values in turns.
    """

    values: Mapping[str, Any]
    texts: Mapping[int, str]
    others: int
    stack: tuple[Any, ...]


def known_layout(content: bytes) -> Mapping[str, Any] | None:
    """The attributes of `Metadata` that a layout says; None if the file has to be read as a whole.

    The same object for the same layout: nobody may change it.
    """
    end = content.rfind(_END)
    if not 0 < end <= _MOST_BYTES:
        return None
    try:
        layout = _layout(_unframed(content[:end]))
        return layout.values if layout is not None and _ends(content[end:], layout) else None
    except Exception:  # noqa: BLE001 - because damaged pickles raise errors of every kind, and are read again
        return None


def _unframed(part: bytes) -> bytes:
    """Without the length of the first frame, which the end has a share in."""
    return part[:2] + part[_FRAME_BYTES.stop :] if part[2] == _FRAME else part


@lru_cache(_KEPT)
def _layout(part: bytes) -> _Layout | None:
    machine = MetadataUnpickler(part)
    try:
        machine.load()
        return None
    except EOFError:
        if machine.at != len(part):
            return None
    stack = machine.stack
    names, values = stack[3::2], stack[4::2]
    if len(stack) < 5 or len(names) != len(values) or not all(type(x) is str for x in names):
        return None
    if type(stack[0]) is not MetadataEntry or vars(stack[0]) or stack[1] != {}:
        return None
    if any(value is stack[2] for value in (*names, *values)) or type(stack[2]) is not object:
        return None
    texts = {index: value for index, value in machine.memo.items() if type(value) is str}
    others = len(machine.memo) - len(texts)
    return _Layout(dict(zip(names, values, strict=True)), texts, others, tuple(stack))


def _ends(rest: bytes, layout: _Layout) -> bool:
    """Whether the end of a file leaves what the layout says as it is."""
    machine = MetadataUnpickler(rest)
    held = {name: _Held(name) for name in layout.values}
    root = MetadataEntry()
    machine.memo = _Texts(layout.texts, layout.others)
    machine.stack = [root, {}, layout.stack[2]]
    for name in layout.stack[3::2]:
        machine.stack += [name, held[name]]
    if machine.load() is not root or machine.stack:
        return False
    untouched = all(one.state is None and not one.items for one in held.values())
    return untouched and all(vars(root).get(name) is one for name, one in held.items())
