"""What can be hit at a site, what cannot and why, and which of it a fault means."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..errors import InjectionError
from .fault import Draw, Fault, Sampling, Site

_SHOWN = 8  # names in a message
_NUMBER = re.compile(r":\d+$")


@dataclass(frozen=True)
class Scope:
    """What a fault at a site can be aimed at.

    Attributes:
        site: of the fault.
        sizes: name to number of elements; None where it is unknown before the target has run.
        skipped: name of what cannot be hit to the reason.
        named_only: what is hit where it is named, and not drawn.
        aliases: other names.
        kind: what the names are of, in one word.
        known: whether the targets are there already, and not only when the training runs.
        shared: whether ranks hold parts of these tensors, and so have to draw the same.
        numbered: whether a name may end with the number of one of several tensors: "lstm:1".
    """

    site: Site
    sizes: Mapping[str, int | None]
    skipped: Mapping[str, str] = field(default_factory=dict)
    named_only: Iterable[str] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    kind: str = "tensor"
    known: bool = True
    shared: bool = False
    numbered: bool = False

    def sampling(self, fault: Fault) -> Sampling:
        """What an open target is drawn by: each as often where sizes are unknown."""
        known = all(size is not None for size in self.sizes.values())
        return fault.sampling if known else "layer"

    def choose(self, fault: Fault, draw: Draw) -> str:
        """The name that a fault means, drawn if it leaves that open.

        Raises:
            InjectionError: nothing has that name, or what has cannot be hit.
        """
        wanted, number = fault.tensor, ""
        if wanted is not None:
            if self.numbered and (found := _NUMBER.search(wanted)):
                wanted, number = wanted[: found.start()], found[0]
            exact = self.aliases.get(wanted, wanted)
            if exact in self.sizes or exact in self.named_only:
                return exact + number
        return self._drawn(wanted, fault, draw) + number

    def _drawn(self, pattern: str | None, fault: Fault, draw: Draw) -> str:
        fitting = self._fitting(pattern)
        if not fitting:
            raise self._nothing(pattern)
        if self.sampling(fault) == "layer":
            return fitting[draw.below(len(fitting), "tensor")]
        sizes = [self.sizes[name] or 0 for name in fitting]
        if not sum(sizes):
            raise InjectionError(f"no {self.kind} with an element to inject into")
        return fitting[draw.by_size(sizes, "tensor")]

    def _fitting(self, pattern: str | None) -> list[str]:
        if pattern is None:
            return list(self.sizes)
        fitting = fnmatch.filter(self.sizes, pattern)
        return fitting or fnmatch.filter(self.named_only, pattern)

    def _nothing(self, pattern: str | None) -> InjectionError:
        if pattern is not None and pattern in self.skipped:
            return InjectionError(
                f"{self.site} of {pattern} cannot be injected: {self.skipped[pattern]}",
                next_step=self._next(),
            )
        if pattern is None:
            reasons = shown(f"{name}: {reason}" for name, reason in self.skipped.items())
            return InjectionError(
                f"the model has no {self.kind} to inject into"
                + (f": {reasons}" if reasons else ""),
                next_step='outputs of its modules can be hit: site "activation"',
            )
        return InjectionError(f"no {self.kind} named {pattern!r}", next_step=self._next())

    def _next(self) -> str:
        names = shown([*self.sizes, *self.named_only])
        return f"one of {names}" if names else f"the model has no {self.kind} to inject into"


def shown(names: Iterable[str]) -> str:
    """Names for a message: the first few, and how many more."""
    listed = [name for name in names if name]  # the model itself has none
    more = len(listed) - _SHOWN
    return ", ".join(listed[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
