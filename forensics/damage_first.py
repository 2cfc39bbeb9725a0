"""Damaged files that a search of the state met: they are the answer where nothing else is.

A judge of the state passes over a damaged file. Where it finds nothing corrupt besides, saying so
alone would hide that nobody can restore from that one. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from .result import STORED_BYTES, Result
from .two_findings import State, of_files, told_apart


def damage_first(result: Result) -> Result:
    """The same answer, which names the first damaged file, or says besides which are damaged.

    Whether a file before it is damaged, too, was not asked of each, so it is a range and, as in a
    search by checksums, not proven to be the first; the state is known as far as it was judged.

    Args:
        result: of a search by the state, with its probes.
    """
    if not result.damaged_files or result.kind == STORED_BYTES:
        return result
    first = result.damaged_files[0]
    whys = [str(one["reason"]) for one in result.probes if one["step"] == first and one["reason"]]
    why = whys[-1] if whys else "its bytes are not those that were written"
    if result.first_corrupt is not None or result.first_good or not result.stable:
        steps = ", ".join(map(str, result.damaged_files))
        said = f"damaged files, not to be restored from: {steps}; of {first}: {why}"
        return replace(result, evidence=(*result.evidence, said))
    state = State("unknown", result.last_clean)
    more = told_apart(result.damaged_files, state)
    return replace(
        result,
        last_clean=None,
        first_corrupt=first,
        exact=False,
        proven=False,
        kind=STORED_BYTES,
        verdict="undetermined",
        claim="transition",
        skipped=tuple(step for step in result.skipped if step not in result.damaged_files),
        state=state,
        evidence=(f"checkpoint {first}: {why}", *more, *result.evidence, *of_files("transition")),
    )
