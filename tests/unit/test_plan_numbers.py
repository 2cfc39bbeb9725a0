"""A plan from numbers to numbers: arithmetic that is known from elsewhere."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdc_guard.archive.planning.as_json import as_object
from sdc_guard.archive.planning.chart import text_chart
from sdc_guard.archive.planning.inputs import FIELDS, Value, inputs_of
from sdc_guard.archive.planning.latency import log_uniform
from sdc_guard.archive.planning.plan import Plan, make_plan
from sdc_guard.archive.planning.shown import lines
from sdc_guard.archive.planning.units import (
    NONE,
    RATES,
    SIZES,
    TIMES,
    bytes_text,
    money_text,
    number,
    time_text,
)
from sdc_guard.errors import UsageError

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
MODEL = {"parameters": "70e9", "devices": "512", "incidents": "1"}


def plan(**texts: str) -> Plan:
    return make_plan(inputs_of(texts))


def test_70_billion_parameters_with_their_optimizer() -> None:
    made = plan(**MODEL, write="10GB/s", load="5GB/s", price="0.02", keep="100")
    assert made.inputs["size"] == 420e9
    assert made.writing == 42
    assert made.failures.load == 84
    assert made.dollars_each == pytest.approx(8.40)
    assert made.keeping.count == 100
    assert made.costs.storage == pytest.approx(840)


def test_ten_thousand_devices_fail_every_six_minutes() -> None:
    made = plan(size="420GB", devices="10000", mtbf="1000h")
    assert made.failures.mtbf == pytest.approx(6 * MINUTE)
    assert any("only" in note and "6 min" in note for note in made.notes)


@pytest.mark.parametrize(
    ("detect", "restart", "minutes"), [("36s", "3min", 5), ("96s", "7min", 10), (None, None, 7.4)]
)
def test_a_recovery_takes_five_to_ten_minutes(
    detect: str | None, restart: str | None, minutes: float
) -> None:
    """Detection, allocation and start, and 84 s of loading."""
    parts = {"detect": detect, "restart": restart}
    made = plan(**MODEL, **{name: text for name, text in parts.items() if text})
    assert made.failures.until_running == pytest.approx(minutes * MINUTE)


@pytest.mark.parametrize(
    ("detect", "restart", "minutes"), [("36s", "3min", 35), ("96s", "7min", 40)]
)
def test_with_hourly_checkpoints_a_failure_costs_35_to_40_minutes(
    detect: str, restart: str, minutes: float
) -> None:
    """5 to 10 minutes until it runs, and half an hour of work that is done again."""
    made = plan(**MODEL, every="1h", detect=detect, restart=restart)
    assert made.failures.total / MINUTE == pytest.approx(minutes, abs=0.2)


@pytest.mark.parametrize(("incidents", "count"), [("1", 303), ("0.1", 96)])
def test_how_many_to_keep(incidents: str, count: int) -> None:
    made = plan(**(MODEL | {"incidents": incidents}), device_hour="2.50", stall="5s")
    assert round(made.keeping.best) == made.keeping.count == count


def test_of_rare_saves_fewer_are_kept_than_would_be_best() -> None:
    made = plan(**MODEL, every="6h")
    assert made.keeping.count == round(made.keeping.possible) < 0.85 * made.keeping.best


def test_what_is_cheap_to_keep_costs_as_much_as_what_it_saves() -> None:
    """At K* the two halves of the cost are equal: ρ·C·excess = c·K."""
    made = plan(**MODEL, stall="5s", latency="2h..50d")
    excess = made.keeping.excess / DAY * 512 * 2.5 * 24
    assert excess == pytest.approx(made.costs.storage, rel=0.05)


def test_losses_and_stalls_add_up_to_the_time() -> None:
    made = plan(**MODEL, stall="5s")
    month = 365.25 / 12 * 24 * 512 * 2.5
    assert made.costs.stalls + made.costs.failures == pytest.approx(
        (1 - made.failures.useful) * month
    )
    parts = (made.costs.storage, made.costs.stalls, made.costs.failures, made.costs.corruption)
    assert made.costs.total == pytest.approx(sum(parts))


def test_a_write_that_is_too_slow_for_the_optimum_names_the_bandwidth() -> None:
    made = plan(size="420GB", devices="10000", mtbf="1000h", stall="1s")
    assert made.interval.period == 42
    assert any("15.5 GB/s" in note for note in made.notes)
    faster = plan(size="420GB", devices="10000", mtbf="1000h", stall="1s", write="15.5GB/s")
    assert not faster.interval.limited


def test_a_training_that_waits_stalls_for_the_whole_write() -> None:
    assert plan(**MODEL).interval.stall == 42
    assert plan(**MODEL).failures.pending == 0
    behind = plan(**MODEL, stall="5s")
    assert (behind.interval.stall, behind.failures.pending) == (5, 42)
    assert behind.failures.useful > plan(**MODEL).failures.useful


def test_the_interval_is_whole_steps_and_no_shorter_than_the_write() -> None:
    made = plan(size="420GB", devices="10000", mtbf="1000h", stall="1s", step_time="3s")
    assert made.interval_steps == 14  # 14·3 + 1 = 43 s; 13 would be 40 s
    longer = plan(size="420GB", devices="10000", mtbf="1000h", stall="1s", step_time="4s")
    assert longer.interval_steps == 11  # the nearest to 41 s is 10, and 10·4 + 1 < 42
    slow = plan(**MODEL, step_time="7d")
    assert slow.interval_steps == 1


def test_what_a_cache_saves() -> None:
    common = {"size": "420GB", "devices": "10000", "mtbf": "10000h", "stall": "1s"}
    made = plan(**common, cache_load="100GB/s", cache_size="1TB")
    assert made.cache is not None
    assert (made.cache.load, made.cache.saved, made.cache.fits) == (4.2, 79.8, 2)
    # as if --load were so fast
    faster = plan(**common, load="100GB/s")
    gained = (faster.failures.useful - made.failures.useful) * 365.25 / 12 * 24 * 10_000 * 2.5
    assert made.cache.dollars == pytest.approx(gained)
    small = plan(**common, cache_load="100GB/s", cache_size="419GB")
    assert small.cache is not None
    assert (small.cache.fits, small.cache.dollars) == (0, 0.0)
    assert any("no checkpoint fits" in note for note in small.notes)
    slow = plan(**common, cache_load="5GB/s")
    assert any("no faster" in note for note in slow.notes)


def test_what_is_assumed_is_said_and_what_is_given_is_not() -> None:
    made = plan(**MODEL)
    assumed = {name for name, one in made.inputs.values.items() if one.origin == "assumed"}
    assert assumed == {
        "size", "bytes_per_parameter", "price", "write", "load", "mtbf", "device_hour", "detect",
        "restart",
    }  # fmt: skip
    assert made.inputs.latency_origin == "assumed"
    # 16,384 devices, 54 days: 419 interruptions, 6 by corruption
    everything = make_plan(inputs_of({"size": "1TB", "devices": "16384"})).inputs
    assert everything["mtbf"] / 16_384 * 419 == pytest.approx(54 * DAY)
    assert everything["incidents"] / (365.25 / 12) * 54 == pytest.approx(6)


def test_one_kept_checkpoint_covers_no_late_corruption() -> None:
    made = plan(**MODEL, keep="1")
    assert made.keeping.uncovered > 0.9
    assert any("older than all" in note for note in made.notes)
    assert all(math.isfinite(cost) for cost in vars(made.costs).values())


def test_ages_are_handed_out_with_the_newest_first() -> None:
    made = plan(**MODEL, every="1h", keep="12")
    assert made.keeping.ages[0] == 0
    assert (np.diff(made.keeping.ages) > 0).all()
    assert made.keeping.ages[-1] == 100 * DAY


@pytest.mark.parametrize(
    ("text", "units", "value"),
    [
        ("420GB", SIZES, 420e9), ("1 GiB", SIZES, 2**30), ("1.5kB", SIZES, 1500),
        ("10GB/s", RATES, 10e9), ("80Gbit/s", RATES, 10e9), ("6min", TIMES, 360),
        ("1.5h", TIMES, 5400), ("2 d", TIMES, 172_800), ("250ms", TIMES, 0.25),
        ("70e9", NONE, 70e9), (".5", NONE, 0.5), ("1e3s", TIMES, 1000),
    ],
)  # fmt: skip
def test_numbers_with_units(text: str, units: dict[str, float], value: float) -> None:
    assert number(text, units, "--x", 0, 1e15) == pytest.approx(value)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"size": "420"}, "'420' has no unit: --size"),
        ({"size": "420Gb"}, "GB are bytes, Gbit bits"),
        ({"size": "0GB"}, "from 1 B"),
        ({"size": "-1GB"}, "from 1 B"),
        ({"size": "nanGB"}, "not a finite number"),
        ({"size": "infGB"}, "not a finite number"),
        ({"size": "1e30GB"}, "'1e30GB' cannot be"),
        ({"size": "1e999GB"}, "not a finite number"),
        ({"size": "big"}, "no number: 'big'"),
        ({"size": ""}, "no number"),
        ({"size": "1GB", "parameters": "7e9"}, "give one of them"),
        ({"parameters": "1.5"}, "no whole number"),
        ({"size": "1GB", "bytes_per_parameter": "6"}, "give --parameters"),
        ({"size": "1GB", "devices": "0"}, "'0' cannot be"),
        ({"size": "1GB", "devices": "2.5"}, "no whole number"),
        ({"size": "1GB", "devices": "8GB"}, "unit 'GB' is not understood"),
        ({"size": "1GB", "mtbf": "1000"}, "has no unit"),
        ({"size": "1GB", "mtbf": "10m"}, "min are minutes"),
        ({"size": "1GB", "write": "10Gbps"}, "Gbit/s are bits"),
        ({"size": "1GB", "stall": "0s"}, "from 1 ms"),
        ({"size": "1GB", "price": "0"}, "cannot be"),
        ({"size": "1GB", "keep": "0"}, "cannot be"),
        ({"size": "1GB", "incidents": "0"}, "cannot be"),
        ({"size": "1GB", "latency": "3d..1h"}, "not below the second"),
        ({"size": "1GB", "latency": "1h,,2h"}, "no number"),
        ({"size": "1GB", "latency": "0s,2h"}, "'0s' cannot be"),
        ({"size": "1GB", "cache_size": "1TB"}, "--cache-size without --cache-load"),
        ({"size": "420GB", "every": "42s"}, "too long for this period: --every 42 s"),
        ({"size": "1B", "price": "1e-6", "stall": "1ms", "every": "1s"}, "more than a million"),
        ({"size": "1B", "write": "1e6TB/s"}, "shorter than a millisecond"),
        ({}, "how large is a checkpoint?"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(texts: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        plan(**({"devices": "8"} | texts))
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_number_of_devices_is_asked_for() -> None:
    with pytest.raises(UsageError, match="how many devices"):
        plan(size="1GB")


def test_numbers_are_told_in_units_that_fit() -> None:
    assert [time_text(s) for s in (0.25, 42, 84, 119, 360, 3599, 3600, 90_000, 2e5)] == [
        "250 ms", "42 s", "84 s", "119 s", "6 min", "60 min", "1 h", "25 h", "2.31 d",
    ]  # fmt: skip
    assert [bytes_text(b) for b in (0, 999, 1000, 420e9, 42e12)] == [
        "0 B", "999 B", "1 kB", "420 GB", "42 TB",
    ]  # fmt: skip
    assert [money_text(d) for d in (0, 8.4, 99.99, 840, 12_345.6)] == [
        "$0.00", "$8.40", "$99.99", "$840", "$12,346",
    ]  # fmt: skip


EXTREMES = {
    name: st.sampled_from([field.least, field.most]) | st.floats(field.least, field.most)
    for name, field in FIELDS.items()
    if name not in ("parameters", "bytes_per_parameter", "keep", "devices", "every")
}


@settings(max_examples=120, deadline=None)
@given(
    EXTREMES["size"],
    st.fixed_dictionaries({}, optional=EXTREMES),
    st.sampled_from([1.0, 512.0, 1e8]),
    st.sampled_from([None, 1.0, 12.0]),
    st.tuples(st.floats(1e-3, 1e8), st.floats(1.01, 1e9)),
)
def test_any_accepted_numbers_make_a_plan_or_one_line(
    size: float,
    numbers: dict[str, float],
    devices: float,
    keep: float | None,
    times: tuple[float, float],
) -> None:
    chosen = (
        {"size": size} | numbers | {"devices": devices} | ({} if keep is None else {"keep": keep})
    )
    values = {name: Value(value, "measured") for name, value in chosen.items()}
    if "cache_size" in values and "cache_load" not in values:
        del values["cache_size"]
    latency = log_uniform(times[0], min(times[0] * times[1], 3660 * DAY))
    try:
        made = make_plan(inputs_of({}, values, latency))
    except UsageError:  # that is one line: it joins its words
        return
    assert 0 <= made.failures.useful <= 1
    assert 0 <= made.failures.stalled <= 1
    assert made.interval.period >= made.writing * (1 - 1e-9)
    costs = np.array(list(vars(made.costs).values()))
    assert np.isfinite(costs).all()
    assert (costs >= -1e-6 * costs.max()).all()
    json.dumps(as_object(made), allow_nan=False)
    assert list(lines(made))
    assert text_chart(latency, made.keeping.ages)
