"""A method replaced on one object, for as long as it is wanted."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Replaced:
    """A method replaced on one object, until `undo`.

    Args:
        owner: the object. Its class and other objects of it stay as they are.
        name: of the method.
        around: called in its place, with the method itself as the first argument.
    """

    def __init__(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        self.owner = owner
        self._name = name
        self._before = vars(owner).get(name)
        # a partial of two bound methods, because that can be copied and pickled with its owner
        self._mine = functools.partial(around, getattr(owner, name))
        setattr(owner, name, self._mine)

    def undo(self) -> None:
        """Put the method back, unless somebody else has replaced it since."""
        if vars(self.owner).get(self._name) is not self._mine:
            return
        if self._before is None:
            delattr(self.owner, self._name)
        else:
            setattr(self.owner, self._name, self._before)
