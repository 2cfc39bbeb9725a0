"""From step counters that are not what they should be to alerts and digests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from .detect.alert import Alert
from .detect.carried import DigestTable
from .detect.counters import KIND, CounterChange, counter_alert
from .digest import Digest
from .digest.reference import mix64
from .evidence import Counters


def wrong_of(counters: Iterable[Counters]) -> list[CounterChange]:
    """Those that are not what they should be; waits for copies."""
    return [change for part in counters for change in part.wrong()]


def alerts_of(step: int, changes: list[CounterChange], names: Mapping[int, str]) -> list[Alert]:
    """An alert for each; `names` are those of the layers."""
    return [counter_alert(step, change, names[change.layer]) for change in changes]


def digests_of(changes: list[CounterChange]) -> tuple[DigestTable, DigestTable]:
    """Digests of these counters as they were before and after, as those of other state."""
    keys = tuple((KIND, change.layer) for change in changes)
    before = [counter_digest(change.before) for change in changes]
    after = [counter_digest(change.after) for change in changes]
    rows = (np.array(part, dtype=np.uint64).reshape(-1, 3) for part in (before, after))
    tables = [DigestTable(keys, part.view(np.int64)) for part in rows]
    return tables[0], tables[1]


def counter_digest(bits: int) -> Digest:
    """The digest of a tensor of one element with these bits."""
    return Digest(mix64(bits), bits, bits)
