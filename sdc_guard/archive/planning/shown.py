"""A plan as tables for people."""

from __future__ import annotations

from collections.abc import Iterator

from .inputs import FIELDS, Inputs
from .plan import Plan
from .units import bytes_text, hours_text, money_text, share_text, time_text

Row = tuple[str, str, str]  # what, how much, a word on it


def lines(plan: Plan) -> Iterator[str]:
    """The tables, line by line."""
    sections = {
        "CHECKPOINT": _checkpoint(plan),
        "HOW OFTEN": _interval(plan),
        "A FAILURE": _failure(plan),
        "A CORRUPTION SEEN LATE": _corruption(plan),
        "WHAT TO KEEP": _keeping(plan),
        "A MONTH": _month(plan),
    }
    if plan.cache is not None:
        sections["THE CACHE"] = _cache(plan)
    for title, rows in sections.items():
        yield title
        for what, value, word in rows:
            yield f"  {what:<34}{value:>12}  {word}".rstrip()
        yield ""
    for note in plan.notes:
        yield f"NOTE {note}"
    if plan.notes:
        yield ""
    yield from _assumed(plan.inputs)


def _of(inputs: Inputs, name: str) -> str:
    """The option, and whether its number was assumed."""
    flag = FIELDS[name].flag
    origin = inputs.values[name].origin
    return flag if origin == "given" else f"{flag} ({origin})"


def _checkpoint(plan: Plan) -> list[Row]:
    inputs = plan.inputs
    size = inputs.values["size"]
    return [
        ("size", bytes_text(size.number), size.why or _of(inputs, "size")),
        ("time to write", time_text(plan.writing), f"at {bytes_text(inputs['write'], '/s')}"),
        ("time to load", time_text(plan.failures.load), f"at {bytes_text(inputs['load'], '/s')}"),
        ("price of keeping it", money_text(plan.dollars_each), "a month"),
    ]


def _interval(plan: Plan) -> list[Row]:
    inputs, interval = plan.inputs, plan.interval
    devices = inputs["devices"]
    stall = "the training waits for the write (assumed: no --stall)"
    rows = [
        ("the system fails every", time_text(plan.failures.mtbf),
         f"{devices:,.0f} devices, each every {hours_text(inputs['mtbf'])}"),
        ("a checkpoint stalls for", time_text(interval.stall),
         stall if plan.waits else _of(inputs, "stall")),
    ]  # fmt: skip
    how = "Daly's optimum"
    if interval.fixed:
        how = f"--every; the optimum is {time_text(interval.best_period)}"
    elif interval.limited:
        how = "the shortest in which a write finishes"
    rows.append(("save every", time_text(interval.period), how))
    if plan.interval_steps is not None:
        what = _of(inputs, "step_time")
        rows.append(("in steps", f"{plan.interval_steps:,}", f"of {what}"))
    rows += [
        ("useful time", share_text(plan.failures.useful), "of the wall time"),
        ("waiting for checkpoints", share_text(plan.failures.stalled), ""),
        ("failures", share_text(1 - plan.failures.useful - plan.failures.stalled), ""),
    ]
    return rows


def _failure(plan: Plan) -> list[Row]:
    one = plan.failures
    replay = "lost work, the mean"
    if not plan.waits:
        replay += f"; {time_text(plan.writing)} of it while a write is not finished"
    return [
        ("detect", time_text(one.detect), _of(plan.inputs, "detect")),
        ("decide, allocate, start", time_text(one.restart), _of(plan.inputs, "restart")),
        ("load", time_text(one.load), ""),
        ("until the training runs", time_text(one.until_running), ""),
        ("replay", time_text(one.replay), replay),
        ("until the work is where it was", time_text(one.total), ""),
    ]


def _corruption(plan: Plan) -> list[Row]:
    inputs, keeping = plan.inputs, plan.keeping
    day = inputs["devices"] * inputs["device_hour"] * 24
    return [
        ("incidents a month", f"{inputs['incidents']:.3g}", _of(inputs, "incidents")),
        ("unseen for", time_text(inputs.latency.mean),
         f"the mean; {inputs.latency.words} ({inputs.latency_origin})"),
        ("older checkpoint than needed", time_text(keeping.excess), "the mean"),
        ("restart and load", time_text(plan.failures.restart + plan.failures.load), ""),
        ("lost in all", time_text(plan.rollback), f"a day of work costs {money_text(day)}"),
    ]  # fmt: skip


def _keeping(plan: Plan) -> list[Row]:
    keeping = plan.keeping
    given = plan.inputs.get("keep") is not None
    rows = [("best number without a limit", f"{keeping.best:,.0f}", "K*, for saves at any moment")]
    if round(keeping.possible) < round(keeping.best):
        rows.append(("of it at this interval", f"{keeping.possible:,.0f}", ""))
    rows.append(("keep", f"{keeping.count:,}", "--keep" if given else "the newest among them"))
    if keeping.count > 1:
        rows.append(("the oldest is kept for", time_text(float(keeping.ages[-1])), ""))
    rows.append(("storage", bytes_text(keeping.count * plan.inputs["size"]), ""))
    return rows


def _month(plan: Plan) -> list[Row]:
    costs = plan.costs
    price = plan.inputs["price"]
    return [
        ("storage", money_text(costs.storage), f"at ${price:g} per GB and month"),
        ("waiting for checkpoints", money_text(costs.stalls), ""),
        ("failures", money_text(costs.failures), ""),
        ("corruption", money_text(costs.corruption), ""),
        ("in all", money_text(costs.total), ""),
    ]


def _cache(plan: Plan) -> list[Row]:
    cache = plan.cache
    assert cache is not None
    rows = [
        ("load from it", time_text(cache.load), f"instead of {time_text(plan.failures.load)}"),
        ("saved a month", money_text(max(cache.dollars, 0.0)), "if each failure is served by it"),
    ]
    if cache.fits is not None:
        rows.append(("checkpoints that fit", f"{cache.fits:,}", ""))
    return rows


def _assumed(inputs: Inputs) -> Iterator[str]:
    """What nobody gave, so that it can be given."""
    assumed = [
        (FIELDS[name].flag, _written(name, value.number), value.why)
        for name, value in inputs.values.items()
        if value.origin == "assumed" and name != "size"
    ]
    if inputs.latency_origin == "assumed":
        assumed.append(("--latency", "72min..100d", inputs.latency.words))
    if assumed:
        yield "ASSUMED, as it was not given"
    for flag, value, why in assumed:
        yield f"  {flag:<24}{value:>14}  {why}".rstrip()


def _written(name: str, value: float) -> str:
    unit = FIELDS[name].unit
    if name == "mtbf":
        return hours_text(value)
    if unit == "seconds":
        return time_text(value)
    if unit.startswith("bytes") and FIELDS[name].units != {"": 1.0}:
        return bytes_text(value, "/s" if unit.endswith("second") else "")
    return f"{value:.3g}"
