"""How the commands are given an archive: a path of this machine, or a URL."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from ..locations import location


class _Place(click.ParamType[Path]):
    """Gives the Path of `locations.location`; what cannot be one is told in a line."""

    name = "path"

    def convert(self, value: Any, _: click.Parameter | None, __: click.Context | None) -> Path:
        return location(value) if isinstance(value, str) else value


PLACE: Final = _Place()
