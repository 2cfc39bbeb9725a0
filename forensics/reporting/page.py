"""A report as one HTML page that needs no other file and asks no other machine."""

from __future__ import annotations

from typing import Any, Final

from sdc_guard.shown import shown

from ..watched import percent
from .facts import WHERE_ONLY, Report
from .figures import Figure, Missing, timeline
from .headline import element_text
from .result_lines import TENSOR_HEADS, tensor_cells, utc

TEMPLATE: Final = "page.html.jinja"
SYMBOLS: Final = {
    "corrupt": "✖",
    "suspect": "▲",
    "clean": "●",
    "unknown": "?",
    "untested": "□",
    "untestable": "?",
    "skipped": "–",
}


def page(report: Report) -> str:
    """The page; every text in it is escaped, and what no screen shows told as its escape."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("forensics.reporting", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_harmless,
    )
    environment.filters.update(
        utc=utc, percent=percent, element_text=element_text, number=_number, cells=tensor_cells
    )
    figure = timeline(report)
    drawing = figure if isinstance(figure, Figure) else None
    return environment.get_template(TEMPLATE).render(
        report=report,
        checkpoints=report.told_checkpoints(),
        figure=drawing,
        body=Markup(drawing.body) if drawing else "",  # numbers alone: see Figure
        missing=figure if isinstance(figure, Missing) else None,
        symbols=SYMBOLS,
        tensor_heads=TENSOR_HEADS,
        where_only=WHERE_ONLY,
    )


def _harmless(value: Any) -> Any:
    """Text without what moves a cursor, turns the writing round, or cannot be encoded."""
    if value is None:
        return ""
    return shown(value) if type(value) is str else value


def _number(value: float | None) -> str:
    """In six significant digits; – when there is none."""
    return "–" if value is None else f"{value:.6g}"
