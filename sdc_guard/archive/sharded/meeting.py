"""Ranks that agree on a checkpoint, through the key-value store of the process group.

It is no collective: a rank that is not there is named after a time-out, and nothing that others do
between them gets out of order. Rank 0 hears what each rank is about to save, and gives the verdict.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, Final

from ...errors import SdcGuardError
from ...shown import shown

_LONGEST_NAMED: Final = 20  # ranks
_AFTER_ABSENCE: Final = 10.0  # seconds to wait, if a rank did not come the last time
_VERDICT_SECONDS: Final = 30.0  # that rank 0 may take for it, once all came or were waited for


class NotSaved(SdcGuardError):
    """A checkpoint that is not written, with the reason; the ones before it stay."""


@dataclass(frozen=True)
class Arrival:
    """What a rank is about to save.

    Attributes:
        step: the script's number.
        newest: the guard's own, of the newest step; None before the first.
        attempt: of the run.
        save: on rank 0, a name for this save.
        busy: the step of a save that this rank is still writing.
        trouble: why this rank cannot save.
    """

    step: int
    newest: int | None
    attempt: int
    save: str = ""
    busy: int | None = None
    trouble: str = ""


class Meeting:
    """The meetings of one guard's ranks.

    Args:
        rank, world_size: of this process.
        client: makes a client of the store for this object alone; None for a single rank.
        key: makes keys that no other guard uses.
    """

    def __init__(
        self, rank: int, world_size: int, client: Callable[[], Any], key: Callable[[str], str]
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self._make, self._key = client, key
        self._clients: dict[str, Any] = {}
        self._number = 0
        self._missed = False  # a rank that this one waited for, the last time

    @property
    def number(self) -> int:
        """Of the newest meeting."""
        return self._number

    def agree(self, arrival: Arrival, patience: float) -> str:
        """Meet the other ranks; returns rank 0's name for this save.

        Args:
            arrival: of this rank.
            patience: seconds to wait for another rank; no more than 10 after a meeting to which
                one did not come, until all come again.

        Raises:
            NotSaved: ranks are at other steps, one did not come in time or is still busy, or the
                store does not answer.
        """
        if self.world_size == 1:
            self._number += 1
            told = _judged([arrival])
        else:
            try:
                told = self._meet(arrival, patience)
            except RuntimeError as error:
                reason = str(error).strip().splitlines()[0]
                raise NotSaved(f"the ranks' store does not answer ({reason})") from None
        if told.get("error"):
            raise NotSaved(told["error"])
        return str(told["save"])

    def tell(self, number: int, name: str, content: str) -> None:
        """Leave something for the others of a meeting to hear; nothing if the store is gone."""
        if self.world_size > 1:
            with contextlib.suppress(RuntimeError):
                self._client("background").set(self._at(number, name), content)

    def heard(self, number: int, name: str) -> str | None:
        """What was left under a name; None if nothing was, or the store is gone."""
        if self.world_size == 1:
            return None
        with contextlib.suppress(RuntimeError):
            client, key = self._client("background"), self._at(number, name)
            if client.check([key]):
                return str(client.get(key).decode())
        return None

    @property
    def beats_apart(self) -> bool:
        """Whether a beat waits for no other caller of the store: whether it has a client alone."""
        return self.world_size > 1 and self._client("beat") is not self._client("background")

    def beat(self, number: int, count: int) -> None:
        """Tell that this rank lives; nothing if the store is gone. For a thread of its own."""
        with contextlib.suppress(RuntimeError):
            self._client("beat").set(self._at(number, f"beat/{self.rank}"), str(count))

    def beats(self, number: int, ranks: Sequence[int]) -> dict[int, str] | None:
        """The newest beat of each of these ranks that gave one; None if the store is gone."""
        found = {}
        try:
            client = self._client("background")
            for rank in ranks:
                if client.check([key := self._at(number, f"beat/{rank}")]):
                    found[rank] = str(client.get(key).decode())
        except RuntimeError:
            return None
        return found

    def _meet(self, arrival: Arrival, patience: float) -> dict[str, Any]:
        client = self._client("foreground")
        if self.rank:
            return self._follow(client, arrival, patience)
        self._number += 1
        number = self._number
        _set(client, self._at(number, "arrived/0"), asdict(arrival))
        arrivals: list[Arrival | None] = [arrival]
        patience = self._patience(patience)
        end = time.monotonic() + patience
        for rank in range(1, self.world_size):
            told = _heard(client, self._at(number, f"arrived/{rank}"), end)
            arrivals.append(None if told is None else Arrival(**told))
        self._missed = None in arrivals
        verdict = _judged(arrivals, patience)
        _set(client, self._at(number, "verdict"), verdict)
        self._forget(client, number - 2)
        return verdict

    def _follow(self, client: Any, arrival: Arrival, patience: float) -> dict[str, Any]:
        number = self._number + 1
        while client.check([self._at(number, "verdict")]):  # one that this rank was not at
            self._number = number
            verdict = json.loads(client.get(self._at(number, "verdict")))
            if verdict["step"] == arrival.step:
                return {"error": f"rank {self.rank} came late: {verdict['error']}"}
            number += 1
        mine = self._at(number, f"arrived/{self.rank}")
        _set(client, mine, asdict(arrival))
        waited = self._patience(patience)
        end = time.monotonic() + waited
        self._missed = _heard(client, self._at(number, "arrived/0"), end) is None
        if self._missed:
            client.set(mine, "")  # rank 0 would take it for another step's
            return {"error": _absent([0], arrival.step, waited)}
        self._number = number
        # rank 0 may not have missed anyone, and wait for all of it
        end = time.monotonic() + patience + _VERDICT_SECONDS
        verdict = _heard(client, self._at(number, "verdict"), end)
        return verdict or {"error": "rank 0 gave no verdict"}

    def _patience(self, patience: float) -> float:
        return min(patience, _AFTER_ABSENCE) if self._missed else patience

    def _forget(self, client: Any, number: int) -> None:
        names = [
            f"{kind}/{rank}" for kind in ("arrived", "beat") for rank in range(self.world_size)
        ]
        with contextlib.suppress(RuntimeError, AttributeError):
            for name in (*names, "verdict", "outcome") if number > 0 else ():
                client.delete_key(self._at(number, name))

    def _at(self, number: int, name: str) -> str:
        return self._key(f"checkpoint/{number}/{name}")

    def _client(self, thread: str) -> Any:
        """A client that waits lets no other caller in: each thread has its own."""
        if thread not in self._clients:
            self._clients[thread] = self._make()
        return self._clients[thread]


def listed(ranks: Sequence[int]) -> str:
    """ "rank 3" or "ranks 1, 3"."""
    some = ", ".join(map(str, ranks[:_LONGEST_NAMED]))
    more = f" and {len(ranks) - _LONGEST_NAMED} more" if len(ranks) > _LONGEST_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {some}{more}"


def _set(client: Any, key: str, content: Any) -> None:
    client.set(key, json.dumps(content))


def _heard(client: Any, key: str, end: float) -> Any:
    """What another rank set, before the clock says `end`; None if it did not."""
    while True:
        left = end - time.monotonic()
        if left <= 0 and not client.check([key]):
            return None
        with contextlib.suppress(RuntimeError):  # what a wait that ends in vain raises
            client.wait([key], timedelta(seconds=max(left, 0.05)))
        if client.check([key]) and (told := client.get(key)):
            return json.loads(told)
        if left <= 0:
            return None
        time.sleep(0.01)


def _judged(arrivals: Sequence[Arrival | None], patience: float = 0.0) -> dict[str, Any]:
    """Rank 0's verdict on who came, by rank."""
    first = arrivals[0]
    assert first is not None
    return {"step": first.step, "save": first.save, "error": _wrong(arrivals, patience)}


def _wrong(arrivals: Sequence[Arrival | None], patience: float) -> str:
    first = arrivals[0]
    assert first is not None
    absent = [rank for rank, arrival in enumerate(arrivals) if arrival is None]
    if absent:
        return _absent(absent, first.step, patience)
    came = [arrival for arrival in arrivals if arrival is not None]
    # what a rank cannot do is told after what the ranks are not agreed on
    said = [replace(arrival, save="", busy=None, trouble="") for arrival in came]
    if any(one != said[0] for one in said):
        return _apart(said)
    for rank, arrival in enumerate(came):
        if arrival.trouble:
            return f"rank {rank}: {arrival.trouble}"
    busy = {rank: one.busy for rank, one in enumerate(came) if one.busy is not None}
    if busy:
        writes = "writes" if len(busy) == 1 else "write"
        return f"{listed(list(busy))} still {writes} that of step {min(busy.values())}"
    return ""


def _absent(ranks: Sequence[int], step: int, patience: float) -> str:
    did = "did not come to guard.checkpoint of step"
    return shown(
        f"{listed(ranks)} {did} {step} within {patience:g} s: call it on every rank, or on rank 0 "
        'alone with a full state dict and Guard(archive_format="torch")'
    )


def _apart(said: Sequence[Arrival]) -> str:
    """Who is where: "ranks 1, 3 are at step 499, the others at step 500"."""
    places = [_place(one, said) for one in said]
    (common, count), *rest = Counter(places).most_common()
    most = not rest or count > rest[0][1]
    groups: dict[str, list[int]] = {}
    for rank, place in enumerate(places):
        if not (most and place == common):
            groups.setdefault(place, []).append(rank)
    told = [
        f"{listed(ranks)} {'are' if len(ranks) > 1 else 'is'} {place}"
        for place, ranks in groups.items()
    ]
    return "; ".join(told) + (f", the others {common}" if most else "")


def _place(one: Arrival, said: Sequence[Arrival]) -> str:
    if any(other.attempt != one.attempt for other in said):
        return f"in attempt {one.attempt} at step {one.step}"
    if any(other.step != one.step for other in said):
        return f"at step {one.step}"
    return f"at step {one.step}, and recorded {'none' if one.newest is None else one.newest}"
