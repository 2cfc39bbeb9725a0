"""Puts the scoreboard of a campaign's file into a page, with its figure beside it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from ..errors import UsageError

_NEEDED: Final = {"sklearn": "scikit-learn", "matplotlib": "matplotlib"}


def check_publishable(page: Path) -> None:
    """Raise before a long campaign what would be raised after it.

    Raises:
        UsageError: scikit-learn or matplotlib is missing; the page has no place for a report, or
            its folder is not there.
    """
    from .report import check_place

    if not page.parent.is_dir():
        raise UsageError(
            "no such folder", where=str(page.parent), next_step="make it, or give another page"
        )
    check_place(page)
    missing = [name for module, name in _NEEDED.items() if find_spec(module) is None]
    if missing:
        raise UsageError(
            f"a report needs {' and '.join(missing)}",
            next_step='pip install "sdc-guard-torch[campaign]"',
        )


def publish(file: Path, page: Path) -> dict[str, Any]:
    """Score a campaign, and write its report into a page and its figure to the SVG beside it.

    Args:
        file: of the campaign.
        page: Markdown with the two markers of `report`, or a page that is not there yet.

    Returns:
        the numbers of the report.

    Raises:
        RunNotFound, RunFormatError, UsageError: as `reading.CampaignFile`; a package is missing;
            the page has no place for a report, or its folder is not there.
        OSError: the page cannot be written.
    """
    check_publishable(page)
    from .figure import draw
    from .report import markdown, write_into
    from .score import score
    from .scoreboard import scoreboard

    numbers = scoreboard(score(file))
    figure = page.with_suffix(".svg")
    drawn = draw(numbers, figure)
    write_into(page, markdown(numbers, figure.name if drawn else None))
    return numbers
