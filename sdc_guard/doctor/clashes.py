"""Names of ours that somebody else has too: another distribution, or a folder in the way."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from .finding import OK, PROBLEM, WARNING, Finding

DISTRIBUTION: Final = "sdc-guard-torch"
NAMES: Final = ("sdc_guard", "forensics", "app")
_OWNED: Final = re.compile(rf"^({'|'.join(NAMES)})(?:/|\.py,|\.[\w.-]+\.so,)", re.MULTILINE)


def canonical(name: str) -> str:
    """A distribution's name as all ways to write it have it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(path: Sequence[str] | None = None) -> dict[str, list[Distribution]]:
    """The distributions on a path, by canonical name, those first that are found first.

    Args:
        path: folders; sys.path by default.
    """
    found: dict[str, list[Distribution]] = {}
    for one in distributions(path=list(sys.path if path is None else path)):
        # a folder that an interrupted removal left behind has no name
        if name := _name_of(one):
            found.setdefault(canonical(name), []).append(one)
    return found


def _name_of(one: Distribution) -> str | None:
    try:
        return one.metadata["Name"]
    except Exception:  # noqa: BLE001 - because a broken metadata file may raise in any way
        return None


def owned(one: Distribution) -> set[str]:
    """Our top-level names that a distribution's own lists say it installs."""
    tops = set((one.read_text("top_level.txt") or "").split()) & set(NAMES)
    return tops | set(_OWNED.findall(one.read_text("RECORD") or ""))


def owners(path: Sequence[str] | None = None) -> Iterator[Finding]:
    """Other distributions that install a package of our names, PyPI's `forensics` for one.

    Args:
        path: folders; sys.path by default.
    """
    found = installed(path)
    own = list(dict.fromkeys(_place(one) for one in found.pop(DISTRIBUTION, [])))
    taken = list(_taken(found, own))
    yield from taken
    if len(own) > 1:
        yield Finding(
            WARNING, "installation", f"there {len(own)} times: {', '.join(own)}",
            f"pip uninstall {DISTRIBUTION} until it is gone, and install it once",
        )  # fmt: skip
    if not taken:
        yield Finding(OK, "packages", f"no other distribution has {', '.join(NAMES)}")


def _taken(others: Mapping[str, Sequence[Distribution]], own: Sequence[str]) -> Iterator[Finding]:
    for name, several in others.items():
        for one in several:
            names, place = " and ".join(sorted(owned(one))), _place(one)
            if names and place in own:
                yield Finding(
                    PROBLEM, "packages",
                    f"the distribution {name} ({place}) has {names} too, in the same folder: "
                    "whichever was installed last overwrote files of the other",
                    f"pip uninstall {name}, then install SDC Guard again; or an environment each",
                )  # fmt: skip
            elif names:
                yield Finding(
                    WARNING, "packages",
                    f"the distribution {name} ({place}) has {names} too: the one that comes "
                    "first on the path hides the other", "give each an environment of its own",
                )  # fmt: skip


def _place(one: Distribution) -> str:
    return str(Path(str(one.locate_file(""))).resolve())


def resolved(home: Path, path: Sequence[str] | None = None) -> Iterator[Finding]:
    """Where an import of our names leads.

    Args:
        home: the folder that holds the three packages.
        path: folders; by default what Python imports from, hooks of editable installs included.
    """
    for name in NAMES:
        spec = find_spec(name) if path is None else PathFinder.find_spec(name, list(path))
        if spec is None:
            level = WARNING if name == "app" else PROBLEM
            yield Finding(level, f"import {name}", "not found", "install SDC Guard again")
            continue
        where = next(iter(spec.submodule_search_locations or ()), spec.origin or "")
        if Path(where).resolve() == (home / name).resolve():
            yield Finding(OK, f"import {name}", where)
        else:
            yield Finding(
                PROBLEM, f"import {name}", f"leads to {where}, which is not SDC Guard's",
                "rename it, or take its folder off PYTHONPATH",
            )  # fmt: skip


def shadows(folder: Path, home: Path) -> Iterator[Finding]:
    """What in a folder an import would take for ours, from a script or `python -m` there.

    A folder without an __init__.py is none: a package further on the path goes before it.

    Args:
        folder: the one that commands are called from.
        home: the folder that holds the three packages.
    """
    if folder.resolve() == home.resolve():
        return
    for name in NAMES:
        for found in (folder / name / "__init__.py", folder / f"{name}.py"):
            if found.exists():
                yield Finding(
                    WARNING, "this folder",
                    f"{found} comes before SDC Guard's {name} for scripts that lie here and for "
                    "python -m", "rename it, or call the commands from elsewhere",
                )  # fmt: skip
