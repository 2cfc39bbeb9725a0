"""From digests of two steps to the alerts of what changed between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .archive.compare import solve_change
from .detect.alert import Alert
from .detect.carried import DigestTable, carried_alert, changed
from .digest import Digest
from .digest.reference import MASK64
from .signals.state import Live


def carried_alerts(
    step: int, left: DigestTable | None, found: DigestTable, live: Live, names: Mapping[int, str]
) -> list[Alert]:
    """An alert for each tensor that step `step` did not find as the one before it left it.

    Args:
        left: None if that is not known.
        live: gives this rank's part of a tensor, to read a changed element from.
        names: of the layers.
    """
    if left is None or not found.keys:
        return []
    alerts = []
    for key, old, new in changed(left, found):
        expected, actual = digest_of(left.rows[old]), digest_of(found.rows[new])
        here = live(key)
        single = here and solve_change(here[0], expected, actual, place=here[1])
        location: dict[str, Any] = {}
        if single is not None:
            location = {
                "index": single.index,
                "bits": single.bits,
                "before": f"0x{single.before:x}",
                "after": f"0x{single.after:x}",
            }
        alerts.append(carried_alert(step, key, names[key[1]], location))
    return alerts


def digest_of(row: Any) -> Digest:
    """The digest in a row of a table."""
    return Digest(*(int(value) & MASK64 for value in row))
