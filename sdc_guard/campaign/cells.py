"""Numbers as the report's tables print them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

NONE = "–"


def percent(share: float) -> str:
    """`71 %`; `0.4 %` below one; never 0 or 100 for what is not."""
    number = 100 * share
    if 0 < number < 1 or 99 < number < 100:
        return f"{min(max(number, 0.1), 99.9):.1f} %"
    return f"{number:.0f} %"


def rate(content: dict[str, Any] | None) -> str:
    """A share and its interval: `71 % (62 to 79)`; `–` without a trial."""
    if not content or not content["of"]:
        return NONE
    low, high = 100 * content["low"], 100 * content["high"]
    return f"{percent(content['share'])} ({low:.0f} to {high:.0f})"


def exact(content: dict[str, Any] | None) -> str:
    """A share without its interval, of what finds all or nothing: `100 %`."""
    return percent(content["share"]) if content and content["of"] else NONE


def part(content: dict[str, Any] | None) -> str:
    """A count of few: `9 of 12`."""
    return f"{content['hits']} of {content['of']}" if content and content["of"] else NONE


def steps(content: dict[str, Any]) -> str:
    """Latency: `0, 2`, the median and the 90th percentile."""
    if content["latency_median"] is None:
        return NONE
    return f"{content['latency_median']:.0f}, {content['latency_p90']:.0f}"


def false(content: dict[str, Any]) -> str:
    """False incidents in 10,000 steps, and the interval: `2.5 (0.7 to 9.1)`."""
    if not content["steps"]:
        return NONE
    return "{} ({} to {})".format(*(_few(1e4 * content[key]) for key in ("rate", "low", "high")))


def _few(value: float) -> str:
    """Two significant digits, or a whole number."""
    return f"{value:,.0f}" if value >= 10 or value < 1e-6 else f"{value:.2g}"


def number(value: float | None) -> str:
    """Four significant digits; `∞` for a threshold that nothing exceeds."""
    return "∞" if value is None else f"{value:.4g}"


def chance(p: float) -> str:
    """A p-value: `0.03`, `< 0.001`."""
    return "< 0.001" if p < 0.001 else f"{p:.2g}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table, its first column to the left and the others to the right."""
    rule = ["---", *("---:" for _ in head[1:])]
    lines = [[_escaped(cell) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in ([*head], rule, *lines))


def _escaped(cell: object) -> str:
    return " ".join(str(cell).replace("|", "\\|").split())
