"""Walking through what a pickle describes, in bounded time.

A structure can share its parts, and so have far more paths than bytes: what is visited is counted,
against the bytes that it takes to describe as much without sharing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from .rebuilt import Inert, StoredTensor

DEEPEST: Final = 100  # containers in containers
_FREE: Final = 100_000  # visits of what is shared
_MOST: Final = 5_000_000  # visits in all
_LONG_NAME: Final = 256  # characters, of which each so many count as a visit
_LONGEST_WORD: Final = 1_000  # characters of a key
_MOST_NUMBERS: Final = 1_000  # of one list: a longer one is data, and no setting
_TOO_MANY: Final = "more values than are read"
_TOO_DEEP: Final = "containers in containers, without an end"

_Children = Iterator[tuple[str, Any]]


def leaves(root: Any, size: int, *, inside: bool = True) -> _Children:
    """What a structure holds, by dotted path: what is no container, and no None.

    A list of more than 1,000 numbers is one leaf. Tensors are found in placeholders, too: a module
    that was saved whole has its own there. Numbers and classes in it say nothing without its class.

    Args:
        root: of a structure of `InertUnpickler`.
        size: bytes of its pickle.
        inside: whether to look into placeholders.

    Raises:
        RecursionError: containers in containers without an end, or more values than that many
            bytes can say.
    """
    left = min(_MOST, _FREE + size)
    seen: set[int] = set()  # placeholders, which may hold each other
    stack: list[tuple[_Children, int, bool]] = [(iter([("", root)]), 0, False)]
    while stack:
        children, depth, within = stack[-1]
        for name, node in children:
            left -= 1 + len(name) // _LONG_NAME
            if left < 0:
                raise RecursionError(_TOO_MANY)
            if type(node) is StoredTensor:
                yield name, node
            elif isinstance(node, (dict, list, tuple)):
                if depth > DEEPEST:
                    if within:  # of what is left alone anyway
                        continue
                    raise RecursionError(_TOO_DEEP)
                if len(node) > _MOST_NUMBERS and not isinstance(node, dict):
                    left -= len(node)
                    if all(isinstance(value, (bool, int, float, str)) for value in node):
                        if not within:
                            yield name, node
                        continue
                stack.append((_children(name, node, depth), depth + 1, within))
                break
            elif node is not None:
                if not within:
                    yield name, node
                if inside and isinstance(node, Inert) and id(node) not in seen:
                    seen.add(id(node))
                    stack.append((_parts(name, node), depth, True))
                    break
        else:
            stack.pop()


def _children(name: str, node: Any, depth: int) -> _Children:
    before = f"{name}." if depth else ""
    if isinstance(node, dict):
        for key, value in node.items():
            word = key if type(key) is str else str(key)
            yield before + word[:_LONGEST_WORD], value
    else:
        for index, value in enumerate(node):
            yield f"{before}{index}", value


def _parts(name: str, node: Inert) -> _Children:
    """The containers that a placeholder was given, as if they were what it stands for."""
    state = node.state
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
        state = [part for part in state if isinstance(part, dict)]  # one of them of slots
    for part in (node.arguments, *(state if isinstance(state, list) else [state]), node.items):
        if isinstance(part, (dict, list, tuple)):
            yield name, part
