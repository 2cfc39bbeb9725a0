"""What of a URL is never shown: name and password before its host, and its query.

Tokens are in both. A secret key may hold slashes, and a URL of one is cut in the wrong place by
whoever looks for its host: where what could be the host has a colon and is no host with a port,
all before the last "@" is taken for credentials.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_URL: Final = re.compile(r"((?:[a-z0-9]+::)*[a-z][a-z0-9+.-]*)://(.*)", re.DOTALL | re.IGNORECASE)
_QUERY: Final = re.compile(r"\?[\w.~%-]+=")
_PORT: Final = re.compile(r"(?:[^:@]*|\[[0-9a-fA-F:.]*\]):\d+")
_HTTP: Final = ("http", "https")
_KEYS: Final = ("s3", "s3a")  # a colon before the first slash is no port there


class Parts(NamedTuple):
    """A URL's text after "://".

    Attributes:
        user: name and password; "" for none.
        rest: host and path.
        query: with its question mark; "" for none.
        cut: whether a slash in `user` is not written as %2F, and where it ends is a guess.
    """

    user: str
    rest: str
    query: str
    cut: bool = False


def parts_of(protocol: str, text: str) -> Parts:
    """The parts of a URL's text after "://".

    A question mark begins a query in HTTP. Elsewhere a name may hold one, and it does where a
    word and "=" follow.
    """
    first, slash, path = text.partition("/")
    if "@" in first:
        user, _, host = first.rpartition("@")
        cut = False
        rest = f"{host}{slash}{path}"
    elif "@" in path and ":" in first and not _is_place(protocol, first):
        user, _, rest = text.rpartition("@")
        cut = True
    else:
        user, rest, cut = "", text, False
    if protocol in _HTTP:
        plain, mark, query = rest.partition("?")
        return Parts(user, plain, mark + query, cut)
    found = _QUERY.search(rest)
    at = len(rest) if found is None else found.start()
    return Parts(user, rest[:at], rest[at:], cut)


def _is_place(protocol: str, first: str) -> bool:
    """Whether what stands before the first slash is a host with a port, or an S3 access point."""
    if protocol in _KEYS:
        return first.startswith("arn:")
    return _PORT.fullmatch(first) is not None


def masked(text: str) -> str:
    """A URL without credentials and without its query; any other text as it is."""
    match = _URL.fullmatch(text)
    if match is None:
        return text
    protocol = match[1].lower().rpartition("::")[2]
    parts = parts_of(protocol, match[2])
    secret = parts.cut or ":" in parts.user or protocol in (*_HTTP, *_KEYS)
    shown = parts.rest if secret or not parts.user else f"{parts.user}@{parts.rest}"
    return f"{match[1]}://{shown}"
