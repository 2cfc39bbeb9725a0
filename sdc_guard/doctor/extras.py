"""Packages that are needed: which are missing, for what, and which are of another version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import Distribution
from typing import TYPE_CHECKING, Final

from .clashes import DISTRIBUTION, canonical, installed
from .finding import NOTE, OK, PROBLEM, WARNING, Finding

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# each extra, and what does without it nothing
USES: Final = {
    "app": "sdc-guard dashboard",
    "lake": "sdc-guard upload, and runs at ducklake: for sql, export and dashboard",
    "notify": "alerts to a webhook",
    "metrics": "sdc-guard metrics, and a guard's own metrics",
    "campaign": "sdc-guard campaign",
    "logs": "sdc-guard check-log of TensorBoard's files",
    "watch": "the table of sdc-guard watch (lines without it)",
    "ray": "sdc-bisect run --executor ray",
    "remote": "sdc-bisect on URLs",
    "huggingface": "SdcGuardCallback for the Hugging Face Trainer",
    "lightning": "SdcGuardCallback for Lightning",
    "accelerate": "guard_for with Accelerate",
}


def requirements(path: Sequence[str] | None = None) -> Iterator[Finding]:
    """What the installed distribution asks for, and what of it is not met.

    Args:
        path: folders that are looked through for distributions; sys.path by default.
    """
    found = installed(path)
    if DISTRIBUTION not in found:
        yield Finding(
            NOTE, "installation", "not installed by pip: which packages it needs is not known",
            "pip install . in a clone of SDC Guard",
        )  # fmt: skip
        return
    there = {name: several[0] for name, several in found.items()}
    asked = _asked(there[DISTRIBUTION])
    yield from _core(asked.get("", []), there)
    for extra, uses in USES.items():
        if extra in asked:
            yield from _extra(extra, uses, asked[extra], there)


def _asked(own: Distribution) -> dict[str, list[Requirement]]:
    """The requirements of each extra that hold on this machine; "" for those without one."""
    from packaging.requirements import Requirement

    found: dict[str, list[Requirement]] = {}
    for text in own.requires or ():
        one = Requirement(text)
        for extra in ("", *USES):
            if one.marker is None or one.marker.evaluate({"extra": extra}):
                found.setdefault(extra, []).append(one)
                if not extra:
                    break  # one that all need
    return found


def _core(asked: Sequence[Requirement], there: Mapping[str, Distribution]) -> Iterator[Finding]:
    bad = [line for one in asked if (line := _unmet(one, there))]
    for line in bad:
        yield Finding(PROBLEM, "packages", line, f"pip install {DISTRIBUTION} again, in a clone: .")
    if not bad:
        yield Finding(OK, "packages", f"all {len(asked)} that are always needed are there")


def _extra(
    extra: str, uses: str, asked: Sequence[Requirement], there: Mapping[str, Distribution]
) -> Iterator[Finding]:
    how = f'pip install ".[{extra}]" in a clone of SDC Guard'
    if extra == "lake":  # it needs the DuckDB that its extensions were built for
        how = f"in an environment of its own: {how}"
    missing = [one.name for one in asked if canonical(one.name) not in there]
    if missing:
        yield Finding(NOTE, f"extra {extra}", f"not installed ({', '.join(missing)}): {uses}", how)
        return
    bad = [line for one in asked if (line := _unmet(one, there))]
    for line in bad:
        yield Finding(WARNING, f"extra {extra}", f"{line}: {uses} may not work", how)
    if not bad:
        yield Finding(OK, f"extra {extra}", uses)


def _unmet(one: Requirement, there: Mapping[str, Distribution]) -> str:
    """What is wrong with a package; "" where nothing is."""
    own = there.get(canonical(one.name))
    if own is None:
        return f"{one.name} is not installed"
    # a build of one's own (2.9.0a0+git) is of that release
    if one.specifier.contains(own.version, prereleases=True):
        return ""
    return f"{one.name} {own.version} is installed, {one.specifier} is needed"
