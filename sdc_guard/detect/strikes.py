"""What strikes say against a device, and when that is enough to leave it out.

A step that its replays contradict says that something happened once. That it was the device, and
nothing in the software that the replay does not put back, shows in how strikes fall on devices:
software that fails at random hits each device as often as it is audited, so the number of strikes
on one of them is binomial. A device is left out only where that is improbable, and it stays out
until it is cleared, under whatever rank it comes back: so a job that restarts on the same bad
device does not go round in circles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from .proportion import at_least, wilson

FEWEST: Final = 3  # strikes below which there is no proof
WINDOW: Final = 30 * 86400.0  # seconds in which they have to come
IMPROBABLE: Final = 0.001  # chance that strikes alike on all devices fall on one like that
PERSISTENT: Final = "persistent on a device"
HEADING: Final = (
    "OUT: exclude this device; in: nothing is proven against it. Strikes are audited steps that "
    "their replays contradict; the percentages, how often that is."
)


@dataclass(frozen=True)
class Entry:
    """A line of the ledger; see there.

    Attributes:
        time: seconds since 1970.
        count: audits of an entry of that kind.
    """

    kind: str
    device: str
    time: float
    host: str = ""
    verdict: str = ""
    count: int = 0
    run: str = ""


@dataclass(frozen=True)
class Standing:
    """How a device stands.

    Attributes:
        hosts: that it was seen in, newest first.
        strikes: since it was cleared last.
        recent: the most of them within 30 days.
        persistent: strikes that name the device by a majority of three.
        audits: audited steps since then.
        rate: strikes for an audit, the ends of Wilson's interval of 95 %.
        chance: that it had so many by software that fails alike on all devices of the ledger,
            times their number; 1 where there is nothing to compare with.
        out: whether to leave it out.
        advice: in words.
    """

    device: str
    hosts: tuple[str, ...]
    strikes: int
    recent: int
    persistent: int
    audits: int
    rate: tuple[float, float]
    chance: float
    out: bool
    advice: str

    def line(self) -> str:
        """For people, in one line whatever the names have in them."""
        low, high = self.rate
        hosts = ", ".join(_shown(host) for host in self.hosts) or "unknown host"
        return (
            f"{'OUT  ' if self.out else 'in   '}{_shown(self.device)} ({hosts}): {self.counts}, "
            f"{low:.2%} to {high:.2%} at 95 %; {self.advice}"
        )

    @property
    def counts(self) -> str:
        """Strikes and audits, for people."""
        strikes = f"{self.strikes} strike{'' if self.strikes == 1 else 's'}"
        return f"{strikes} in {self.audits} audit{'' if self.audits == 1 else 's'}"

    def as_object(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "hosts": list(self.hosts), "rate": list(self.rate)}


def standings(entries: Sequence[Entry]) -> list[Standing]:
    """How each device stands, the worst first.

    Args:
        entries: of a ledger, in any order.
    """
    of_device: dict[str, list[Entry]] = {}
    for entry in entries:
        of_device.setdefault(entry.device, []).append(entry)
    tallies = {device: _Tally.of(_since_cleared(mine)) for device, mine in of_device.items()}
    totals = _Totals(
        len(tallies),
        sum(tally.strikes for tally in tallies.values()),
        sum(tally.audits for tally in tallies.values()),
    )
    found = [_standing(tallies[device], totals, mine) for device, mine in of_device.items()]
    return sorted(found, key=lambda one: (not one.out, -one.strikes, one.device))


def named(text: str, entries: Sequence[Entry]) -> list[str]:
    """Devices of a ledger of this name, or else those whose names begin with it."""
    devices = sorted({entry.device for entry in entries})
    return [text] if text in devices else [one for one in devices if text and one.startswith(text)]


@dataclass(frozen=True)
class _Tally:
    strikes: int
    recent: int
    persistent: int
    recent_persistent: int
    audits: int

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> _Tally:
        strikes = [entry for entry in entries if entry.kind == "strike"]
        persistent = [entry for entry in strikes if entry.verdict == PERSISTENT]
        audits = sum(entry.count for entry in entries if entry.kind == "audits")
        return cls(
            len(strikes),
            _most_within([entry.time for entry in strikes]),
            len(persistent),
            _most_within([entry.time for entry in persistent]),
            max(audits, len(strikes)),  # a killed process did not tell its last audits
        )


@dataclass(frozen=True)
class _Totals:
    devices: int
    strikes: int
    audits: int


def _standing(mine: _Tally, totals: _Totals, entries: Sequence[Entry]) -> Standing:
    """How the device of these entries stands, cleared ones and all."""
    chance = _chance(mine, totals)
    proven = mine.recent_persistent >= FEWEST
    out = mine.recent >= FEWEST and (proven or chance < IMPROBABLE)
    if out:
        why = (
            f"{mine.persistent} strikes name it by a majority of three devices"
            if proven
            else f"chance {chance:.1e} that strikes alike on all devices fall like that"
        )
        advice = f"exclude this device, test it, and clear it when it is repaired ({why})"
    elif mine.strikes == 0:
        advice = "nothing against it"
    elif mine.recent < FEWEST:
        advice = f"no proof: fewer than {FEWEST} strikes within 30 days"
    elif mine.audits == totals.audits:
        advice = "no proof: no other device was audited to compare with; run it on another one"
    else:
        advice = f"no proof: others have strikes, too, or too few (chance {chance:.2g})"
    hosts = [entry.host for entry in sorted(entries, key=lambda entry: -entry.time)]
    return Standing(
        entries[0].device,
        tuple(dict.fromkeys(host for host in hosts if host)),
        mine.strikes,
        mine.recent,
        mine.persistent,
        mine.audits,
        wilson(mine.strikes, mine.audits),
        chance,
        out,
        advice,
    )


def _chance(mine: _Tally, totals: _Totals) -> float:
    if mine.strikes == 0 or totals.audits == mine.audits:
        return 1.0
    share = mine.audits / totals.audits
    # each device of the ledger could have been the one: Bonferroni
    return min(1.0, totals.devices * at_least(mine.strikes, totals.strikes, share))


def _most_within(times: Sequence[float]) -> int:
    """The most of them in any 30 days, in their order."""
    first = most = 0
    for last, time in enumerate(times):
        while time - times[first] > WINDOW:
            first += 1
        most = max(most, last - first + 1)
    return most


def _since_cleared(entries: Sequence[Entry]) -> list[Entry]:
    """Those of one device after it was cleared last, in the order of time."""
    ordered = sorted(entries, key=lambda entry: entry.time)
    cleared = [place for place, entry in enumerate(ordered) if entry.kind == "cleared"]
    return ordered[cleared[-1] + 1 :] if cleared else ordered


def _shown(name: str) -> str:
    """A name from a file: a newline, a terminal's codes, half a surrogate pair are spelled out."""
    if name.isprintable():
        return name
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in name
    )
