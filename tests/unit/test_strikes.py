"""When strikes are enough to leave a device out, and when they are not."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdc_guard.detect.proportion import at_least
from sdc_guard.detect.strikes import (
    FEWEST,
    IMPROBABLE,
    PERSISTENT,
    WINDOW,
    Entry,
    Standing,
    standings,
)

DAY = 86400.0


def audits(device: str, count: int = 2000, time: float = 0.0) -> Entry:
    return Entry("audits", device, time, host="n1", count=count)


def strike(device: str, time: float = 0.0, verdict: str = "intermittent") -> Entry:
    return Entry("strike", device, time, host="n1", verdict=verdict)


def of(device: str, entries: list[Entry]) -> Standing:
    return next(one for one in standings(entries) if one.device == device)


def eight(*more: Entry) -> list[Entry]:
    return [*(audits(f"GPU-{i}") for i in range(8)), *more]


def test_nothing_is_proven_below_three_strikes() -> None:
    found = of("GPU-1", eight(strike("GPU-1"), strike("GPU-1", DAY)))
    assert not found.out
    assert "no proof" in found.advice


def test_a_device_that_alone_has_them_is_out() -> None:
    found = of("GPU-1", eight(*(strike("GPU-1", i * DAY) for i in range(5))))
    # five of five on one of eight, which could have been any: 8 · (1/8)⁵
    assert found.out
    assert abs(found.chance - 8 * (1 / 8) ** 5) < 1e-12
    assert (found.strikes, found.audits) == (5, 2000)
    low, high = found.rate
    assert low < 5 / 2000 < high


def test_a_device_alone_has_nothing_to_be_compared_with() -> None:
    entries = [audits("GPU-1"), *(strike("GPU-1", i) for i in range(50))]
    found = of("GPU-1", entries)
    assert not found.out
    assert "no other device" in found.advice


def test_two_devices_need_more_than_eight_do() -> None:
    two = [audits("GPU-1"), audits("GPU-2")]
    assert not of("GPU-1", two + [strike("GPU-1", i) for i in range(5)]).out
    assert of("GPU-1", two + [strike("GPU-1", i) for i in range(11)]).out


def test_a_majority_names_a_device_without_statistics() -> None:
    two = [audits("GPU-1", 10), audits("GPU-2", 10)]
    found = of("GPU-1", two + [strike("GPU-1", i, PERSISTENT) for i in range(FEWEST)])
    assert found.out
    assert "majority" in found.advice


def test_strikes_have_to_come_within_thirty_days() -> None:
    months = [strike("GPU-1", i * 0.6 * WINDOW) for i in range(8)]
    assert not of("GPU-1", eight(*months)).out


def test_a_device_stays_out_however_long_it_rests() -> None:
    entries = eight(*(strike("GPU-1", i * DAY) for i in range(5)))
    later = [audits(f"GPU-{i}", 10, 400 * DAY) for i in range(8)]
    assert of("GPU-1", entries + later).out


def test_a_repaired_device_begins_anew() -> None:
    entries = eight(*(strike("GPU-1", i * DAY) for i in range(5)))
    entries.append(Entry("cleared", "GPU-1", 10 * DAY))
    assert not of("GPU-1", entries).out
    assert of("GPU-1", entries).strikes == 0
    entries += [audits("GPU-1", 2000, 11 * DAY), *(strike("GPU-1", 11 * DAY + i) for i in range(5))]
    assert of("GPU-1", entries).out
    entries.append(Entry("cleared", "GPU-1", 12 * DAY))
    assert of("GPU-1", entries).strikes == 0


def test_notes_of_corrected_memory_errors_are_no_strikes() -> None:
    notes = [Entry("note", "GPU-1", i) for i in range(1000)]
    assert of("GPU-1", eight(*notes)).strikes == 0


def test_software_that_fails_at_random_blames_no_device(rng: np.random.Generator) -> None:
    blamed = 0
    for _ in range(300):
        hit = rng.integers(0, 8, size=int(rng.integers(3, 60)))
        entries = eight(*(strike(f"GPU-{i}", float(t)) for t, i in enumerate(hit)))
        blamed += any(one.out for one in standings(entries))
    # at most IMPROBABLE for each trial, summed over the devices
    assert blamed <= 3


def test_a_rare_fault_is_found_among_many_ranks(rng: np.random.Generator) -> None:
    # one of 64 devices differs in one audit of 2,000, nobody else ever does
    entries = [audits(f"GPU-{i}", 10_000) for i in range(64)]
    hits = rng.binomial(10_000, 1 / 2000)
    entries += [strike("GPU-7", float(i)) for i in range(hits)]
    found = of("GPU-7", entries)
    assert hits >= FEWEST, "the seed drew too few"
    assert found.out
    assert found.rate[0] < 1 / 2000 < found.rate[1]


@given(st.permutations(range(12)))
def test_the_order_of_lines_does_not_count(order: list[int]) -> None:
    entries = [*(audits(f"GPU-{i}") for i in range(7)), *(strike("GPU-1", i) for i in range(5))]
    shuffled = [entries[place] for place in order]
    assert standings(shuffled) == standings(entries)


def exactly(hits: int, trials: int, share: Fraction) -> float:
    return float(
        sum(
            math.comb(trials, count) * share**count * (1 - share) ** (trials - count)
            for count in range(hits, trials + 1)
        )
    )


def plainly(device: str, entries: list[Entry]) -> tuple[object, ...]:
    """What the definition says of a device, from all entries for each of them."""

    def counted(name: str, kind: str, verdict: str = "") -> list[Entry]:
        places = sorted(range(len(entries)), key=lambda place: (entries[place].time, place))
        mine = [entries[place] for place in places if entries[place].device == name]
        while any(entry.kind == "cleared" for entry in mine):
            mine.pop(0)
        return [entry for entry in mine if entry.kind == kind and verdict in entry.verdict]

    def recent(found: list[Entry]) -> int:
        return max((sum(0 <= e.time - f.time <= WINDOW for e in found) for f in found), default=0)

    names = {entry.device for entry in entries}
    strikes = {name: len(counted(name, "strike")) for name in names}
    told = {name: sum(entry.count for entry in counted(name, "audits")) for name in names}
    audited = {name: max(told[name], strikes[name]) for name in names}
    hits, total = strikes[device], sum(audited.values())
    chance = 1.0
    if hits and total > audited[device]:
        share = Fraction(audited[device], total)
        chance = min(1.0, len(names) * exactly(hits, sum(strikes.values()), share))
    named = recent(counted(device, "strike", PERSISTENT))
    latest = recent(counted(device, "strike"))
    hosts = [
        entry.host for entry in sorted(entries, key=lambda e: -e.time) if entry.device == device
    ]
    return (
        tuple(dict.fromkeys(host for host in hosts if host)),
        (hits, latest, len(counted(device, "strike", PERSISTENT)), audited[device]),
        pytest.approx(chance, rel=1e-9),
        latest >= FEWEST and (named >= FEWEST or chance < IMPROBABLE),
    )


some_entries = st.builds(
    Entry,
    st.sampled_from(["strike", "strike", "strike", "audits", "note", "cleared"]),
    st.sampled_from(["a", "b", "c"]),
    st.integers(0, 8).map(lambda week: week * 7 * DAY),
    host=st.sampled_from(["", "n1", "n2"]),
    verdict=st.sampled_from(["intermittent", PERSISTENT]),
    count=st.integers(0, 50),
)


@given(st.lists(some_entries, max_size=40))
def test_a_ledger_says_what_its_definition_says(entries: list[Entry]) -> None:
    found = standings(entries)
    assert {one.device for one in found} == {entry.device for entry in entries}
    assert len({one.device for one in found}) == len(found)
    for one in found:
        counts = (one.strikes, one.recent, one.persistent, one.audits)
        assert (one.hosts, counts, one.chance, one.out) == plainly(one.device, entries)


@given(st.integers(1, 300), st.integers(1, 300), st.fractions(0, 1, max_denominator=1000))
def test_the_tail_of_a_binomial_is_exact(hits: int, trials: int, share: Fraction) -> None:
    assert at_least(hits, trials, float(share)) == pytest.approx(
        exactly(hits, trials, share), rel=1e-9, abs=1e-300
    )


def test_a_tail_that_begins_far_below_the_mean_is_whole() -> None:
    # its first terms are below the smallest double
    assert at_least(1, 20_000, 0.5) == pytest.approx(1.0, rel=1e-9)
    assert at_least(10_001, 20_001, 0.5) == pytest.approx(0.5, rel=1e-9)
