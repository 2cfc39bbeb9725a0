"""What a plan is made from: each number given, measured, or assumed, and said which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from ...errors import UsageError
from .latency import Latency, log_uniform, measured
from .units import DAY, HOUR, MINUTE, MONTH, NONE, RATES, SIZES, TIMES, number

Origin = Literal["given", "assumed", "measured"]

# Llama 3 405B, 54 days on 16,384 H100 (Llama Team, "The Llama 3 Herd of Models", 2024,
# arXiv:2407.21783, section 3.3.4 and table 5): 419 unexpected interruptions, 6 of them by silent
# data corruption
_DEVICE_HOURS: Final = 16_384 * 54 * 24
_INTERRUPTIONS: Final = 419
_CORRUPTIONS: Final = 6
LATENCIES: Final = (0.05 * DAY, 100 * DAY)


@dataclass(frozen=True)
class Field:
    """An input: its option, unit, bounds, and what is assumed without it.

    Attributes:
        flag: the option.
        units: what its text may have.
        unit: what its number is in.
        least, most: what is accepted, in `unit`.
        default: None where nothing is assumed.
        why: where the default comes from.
    """

    flag: str
    units: dict[str, float]
    unit: str
    least: float
    most: float
    default: float | None = None
    why: str = ""


_TIME = (TIMES, "seconds")
_SPEED = (RATES, "bytes per second", 1.0, 1e18)
FIELDS: Final[dict[str, Field]] = {
    "size": Field("--size", SIZES, "bytes", 1.0, 1e18),
    "parameters": Field("--parameters", NONE, "", 1.0, 1e16),
    "bytes_per_parameter": Field(
        "--bytes-per-parameter", NONE, "bytes", 0.01, 1000.0, 6.0,
        "weight and two moments, 2 bytes each; 14 with a float32 master copy and moments",
    ),
    "devices": Field("--devices", NONE, "", 1.0, 1e8),
    "price": Field(
        "--price", NONE, "dollars per GB and month", 1e-6, 1000.0, 0.02, "object storage, about"
    ),
    "write": Field("--write", *_SPEED, 10e9, "a parallel file system, about"),
    "load": Field("--load", *_SPEED, 5e9, "half of --write's default"),
    "mtbf": Field(
        "--mtbf", *_TIME, 1.0, 1e6 * 365.25 * DAY, _DEVICE_HOURS / _INTERRUPTIONS * HOUR,
        "Llama 3 405B: 419 interruptions on 16,384 devices in 54 days",
    ),
    "device_hour": Field("--device-hour", NONE, "dollars", 1e-4, 1e5, 2.5, "a rented H100, about"),
    "incidents": Field("--incidents", NONE, "per month", 1e-9, 1e5),
    "detect": Field("--detect", *_TIME, 0.001, 30 * DAY, MINUTE, "until a failure is noticed"),
    "restart": Field(
        "--restart", *_TIME, 0.001, 30 * DAY, 5 * MINUTE, "until devices are found and it is up"
    ),
    "step_time": Field("--step-time", *_TIME, 1e-3, 30 * DAY),
    "stall": Field("--stall", *_TIME, 0.001, 30 * DAY),
    "every": Field("--every", *_TIME, 0.001, 3660 * DAY),
    "keep": Field("--keep", NONE, "", 1.0, 1e6),
    "cache_load": Field("--cache-load", *_SPEED),
    "cache_size": Field("--cache-size", SIZES, "bytes", 1.0, 1e21),
}  # fmt: skip
_WHOLE: Final = ("devices", "keep", "parameters")


@dataclass(frozen=True)
class Value:
    """A number, where it comes from, and a word on it."""

    number: float
    origin: Origin
    why: str = ""


@dataclass(frozen=True)
class Inputs:
    """All numbers of a plan, in bytes, seconds and dollars; None where there is none.

    Attributes:
        values: by name in FIELDS; those that are neither given nor assumed are missing.
        latency: density of the detection latency.
        latency_origin: where it comes from.
    """

    values: Mapping[str, Value]
    latency: Latency
    latency_origin: Origin

    def __getitem__(self, name: str) -> float:
        return self.values[name].number

    def get(self, name: str) -> float | None:
        """The number, or None."""
        return self.values[name].number if name in self.values else None

    def as_object(self) -> dict[str, Any]:
        """The inputs in JSON output, with units."""
        found: dict[str, Any] = {
            name: {
                "value": value.number, "unit": FIELDS[name].unit, "origin": value.origin,
                "why": value.why,
            }
            for name, value in self.values.items()
        }  # fmt: skip
        ends = {"shortest": float(self.latency.edges[0]), "longest": self.latency.longest}
        words = {"unit": "seconds", "origin": self.latency_origin, "why": self.latency.words}
        return {**found, "latency": {**ends, "mean": self.latency.mean, **words}}


def inputs_of(
    texts: Mapping[str, str | None],
    measurements: Mapping[str, Value] | None = None,
    latency: Latency | None = None,
) -> Inputs:
    """The inputs that these options make.

    Args:
        texts: by name in FIELDS, and "latency"; None for an option that was not given.
        measurements: what was measured; an option goes before it.
        latency: the density that was measured; it goes before the text.

    Raises:
        UsageError: a text that cannot be read, a number out of its bounds, or none for the size or
            the devices.
    """
    values = dict(measurements or {})
    for name, field in FIELDS.items():
        text = texts.get(name)
        if text is not None:
            read = number(text, field.units, field.flag, field.least, field.most)
            if name in _WHOLE and read != int(read):
                raise UsageError(f"{text!r} is no whole number", where=field.flag)
            values[name] = Value(read, "given")
        elif field.default is not None and name not in values:
            values[name] = Value(field.default, "assumed", field.why)
    _settle_size(values, texts)
    if "devices" not in values:
        raise UsageError("how many devices train?", next_step="give --devices")
    if "incidents" not in values:
        rate = _CORRUPTIONS / _DEVICE_HOURS * MONTH / HOUR * values["devices"].number
        why = "Llama 3 405B: 6 of silent corruption on 16,384 devices in 54 days"
        values["incidents"] = Value(rate, "assumed", why)
    if "cache_size" in values and "cache_load" not in values:
        raise UsageError("--cache-size without --cache-load", next_step="how fast is the cache?")
    if latency is not None:
        return Inputs(values, latency, "measured")
    text = texts.get("latency")
    words = "log-uniform from 72 min to 100 d"
    if text is None:
        return Inputs(values, log_uniform(*LATENCIES, words), "assumed")
    return Inputs(values, parse_latency(text), "given")


def _settle_size(values: dict[str, Value], texts: Mapping[str, str | None]) -> None:
    parameters = values.get("parameters")
    if texts.get("size") is not None and parameters is not None:
        raise UsageError("--size and --parameters", next_step="give one of them")
    if parameters is not None:
        each = values["bytes_per_parameter"]
        why = f"{parameters.number:,.0f} parameters of {each.number:g} bytes"
        values["size"] = Value(parameters.number * each.number, each.origin, why)
        return
    if texts.get("bytes_per_parameter") is not None:
        raise UsageError(
            "--bytes-per-parameter without --parameters", next_step="give --parameters, too"
        )
    del values["bytes_per_parameter"]
    if "size" not in values:
        raise UsageError(
            "how large is a checkpoint?",
            next_step="give --size, --parameters, or a run's folder or a checkpoint",
        )


def parse_latency(text: str) -> Latency:
    """A latency from text: "1h..100d" is log-uniform, "1h,2d,30d" are measured ones.

    Raises:
        UsageError: it is neither.
    """
    if ".." in text:
        least, most = (_latency(part) for part in text.split("..", 1))
        if not least * 1.001 <= most:
            raise UsageError("the first is not below the second", where=f"--latency {text}")
        return log_uniform(least, most, f"log-uniform, {text}")
    times = [_latency(part) for part in text.split(",")]
    return from_measured(times)


def _latency(text: str) -> float:
    return number(text, TIMES, "--latency", 0.001, 3660 * DAY)


def from_measured(times: Sequence[float], where: str = "") -> Latency:
    """The density estimated from latencies in seconds; `where` they were measured, for people."""
    count = f"{len(times)} latencies" if len(times) > 1 else "1 latency"
    return measured(times, f"estimated from {count}{where and f' of {where}'}")
