"""PLAN.toml: a seed and faults, each mistake said in one line with its place.

seed = 3

[[fault]]
site = "weight"
step = 100
tensor = "blocks.*.weight"
bits = [30]
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InjectionError
from .checked import check_fault
from .fault import Fault

_TABLE = re.compile(r"^\s*\[\[\s*fault\s*\]\]")
_KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "site": ("a string", (str,)),
    "step": ("a whole number", (int,)),
    "tensor": ("a string", (str,)),
    "index": ("a whole number, or a list of one for each dimension", (int, list)),
    "bit": ("a whole number", (int,)),
    "bits": ("a list of whole numbers", (list,)),
    "change": ("a string", (str,)),
    "value": ("a number", (int, float)),
    "exponent": ("a whole number", (int,)),
    "pattern": ("a string", (str,)),
    "height": ("a whole number", (int,)),
    "width": ("a whole number", (int,)),
    "period": ("a whole number", (int,)),
    "recurrence": ("a string", (str,)),
    "until": ("a whole number", (int,)),
    "probability": ("a number", (int, float)),
    "sampling": ("a string", (str,)),
    "effect": ("a string", (str,)),
    "rank": ("a whole number", (int,)),
}
_TOP = {"seed", "fault"}


@dataclass(frozen=True)
class Plan:
    """What a plan file says."""

    seed: int
    faults: tuple[Fault, ...]


def read_plan(path: Path) -> Plan:
    """Read a plan.

    Raises:
        InjectionError: it is not there, is no TOML, or says what cannot be; with the line, the key
            and what is allowed.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors put a mark before it
        content = tomllib.loads(text)
    except RecursionError:
        raise InjectionError("no TOML: nested too deep", where=str(path)) from None
    except ValueError as error:  # of TOML, of UTF-8, or of a number with thousands of digits
        raise InjectionError(f"no TOML: {error}", where=str(path)) from None
    except OSError as error:
        raise InjectionError(
            f"the plan cannot be read: {error.strerror}", where=str(path)
        ) from None
    return _Reader(path, text.splitlines()).plan(content)


@dataclass(frozen=True)
class _Reader:
    """Knows the lines, for what is said of a mistake."""

    path: Path
    lines: list[str]

    def plan(self, content: dict[str, Any]) -> Plan:
        for key in content.keys() - _TOP:
            raise self._wrong(self._line_of(key), f"no key {key!r}", "seed, and [[fault]] tables")
        seed = content.get("seed", 0)
        if not _is(seed, (int,)):
            raise self._wrong(self._line_of("seed"), f"seed = {seed!r}", "a whole number")
        tables = content.get("fault")
        if not isinstance(tables, list) or not tables or not all(_is(t, (dict,)) for t in tables):
            raise self._wrong(None, "no fault", "[[fault]] with a site and a step")
        starts = [number for number, line in enumerate(self.lines) if _TABLE.match(line)]
        places = starts if len(starts) == len(tables) else [0] * len(tables)
        pairs = zip(tables, places, strict=True)
        return Plan(seed, tuple(self._fault(table, start) for table, start in pairs))

    def _fault(self, table: dict[str, Any], start: int) -> Fault:
        for key, value in table.items():
            self._check(key, value, start)
        for key in ("site", "step"):
            if key not in table:
                raise self._wrong(start + 1, f"a fault without {key}", _KINDS[key][0])
        given: dict[str, Any] = {k: tuple(x) if _is(x, (list,)) else x for k, x in table.items()}
        fault = Fault(**given)
        try:
            check_fault(fault)
        except InjectionError as error:
            named = next((key for key in table if re.search(rf"\b{key}\b", error.what)), "site")
            raise self._wrong(self._line_of(named, start), error.what, error.next_step) from None
        return fault

    def _check(self, key: str, value: Any, start: int) -> None:
        line = self._line_of(key, start)
        if key not in _KINDS:
            raise self._wrong(line, f"no key {key!r} of a fault", ", ".join(_KINDS))
        words, kinds = _KINDS[key]
        whole = not isinstance(value, list) or all(_is(x, (int,)) for x in value)
        if not (_is(value, kinds) and whole):
            raise self._wrong(line, f"{key} = {value!r}", words)

    def _line_of(self, key: str, start: int = 0) -> int | None:
        """Number, from 1, of the line that sets a key of the table that begins there."""
        name = re.escape(key)
        sets = re.compile(rf"""^\s*["']?{name}["']?\s*[=.]|^\s*\[+\s*{name}\s*\]""")
        for number in range(start, len(self.lines)):
            if number > start and _TABLE.match(self.lines[number]):
                break
            if sets.match(self.lines[number]):
                return number + 1
        return None

    def _wrong(self, line: int | None, what: str, allowed: str) -> InjectionError:
        where = str(self.path) if line is None else f"{self.path} line {line}"
        return InjectionError(what, where=where, next_step=allowed)


def _is(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)
