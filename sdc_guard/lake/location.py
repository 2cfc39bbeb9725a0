"""Where a lake is, and how the commands are told.

    ducklake:CATALOG?data=DATA&run=RUN

CATALOG is what DuckLake takes after "ducklake:", `postgres:dbname=sdc host=db` for one. Both
keys may be missing: the catalog knows where its data is, and a lake may hold one run alone.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import unquote

from ..errors import UsageError

PREFIX = "ducklake:"
_KEYS = ("data", "run")
_REMOTE = re.compile(r"[a-z][a-z0-9]+://")
_PASSWORD = re.compile(
    r"""(password\s*=\s*)('[^']*'|[^\s"&]+)|(://[^:/@\s]+:)[^@\s]+(?=@)""", re.IGNORECASE
)


@dataclass(frozen=True)
class Lake:
    """A catalog and, where it is known, the folder or bucket of its data.

    Attributes:
        catalog: as DuckLake takes it after "ducklake:".
        data: an absolute folder or a URL; None for what the catalog says.
    """

    catalog: str
    data: str | None = None

    @classmethod
    def of(cls, catalog: str, data: str | None = None) -> Lake:
        """A lake as the command line names it: with or without prefix, a folder from here.

        Raises:
            UsageError: no catalog is named.
        """
        catalog = catalog.removeprefix(PREFIX).strip()
        if not catalog:
            raise UsageError("no catalog named", next_step="for one postgres:dbname=sdc host=db")
        if data is not None and not _REMOTE.match(data):
            data = os.path.abspath(os.path.expanduser(data))  # noqa: PTH100, PTH111 - because a Path would take "//" from a URL
        return cls(catalog, data or None)

    def __str__(self) -> str:
        """The catalog, without a password."""
        return without_password(PREFIX + self.catalog)


def is_lake(location: object) -> bool:
    """Whether a location names a run in a lake, and not a folder."""
    return str(location).startswith(PREFIX)


def parse(location: str) -> tuple[Lake, str | None]:
    """The lake of a location, and the run if it names one.

    Raises:
        UsageError: not such a location; an unknown key.
    """
    if not is_lake(location):
        raise UsageError(
            "not a lake", where=location, next_step=f"{PREFIX}CATALOG?data=DATA&run=RUN"
        )
    catalog, mark, query = location.removeprefix(PREFIX).rpartition("?")
    keys = dict(part.partition("=")[::2] for part in query.split("&")) if mark else {}
    if not mark or not (set(keys) & set(_KEYS)):
        catalog, keys = location.removeprefix(PREFIX), {}  # the "?" is the catalog's own
    unknown = sorted(set(keys) - set(_KEYS))
    if unknown:
        raise UsageError(
            f"a lake's location has no key {', '.join(unknown)}",
            where=without_password(location),
            next_step="it has data and run; write & as %26 and ? as %3F in them",
        )
    values = {key: unquote(value) for key, value in keys.items()}
    return Lake.of(catalog, values.get("data")), values.get("run") or None


def without_password(text: str) -> str:
    """A connection string, or a message that quotes one, fit to be shown."""
    return _PASSWORD.sub(lambda found: f"{found[1] or found[3]}***", text)
