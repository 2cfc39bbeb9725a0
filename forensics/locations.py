"""Where archives are: paths of this machine, and URLs of what fsspec reads."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any, Final, cast
from urllib.parse import unquote

from sdc_guard.errors import UsageError

from .remote.errors import DENIED, translated
from .remote.masking import Parts, masked, parts_of
from .remote.path import RemotePath
from .remote.store import Store

_URL: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://(.*)", re.DOTALL)
_CHAINED: Final = re.compile(r"[a-z]+::[a-z0-9]+://")
_LAKE: Final = "ducklake:"
_S3: Final = ("s3", "s3a")
_TOKENS: Final = (*_S3, "http", "https")  # whose URLs have secrets before the "@", and no users
# seconds, and tries after the first: what does not answer within half a minute is told
_PATIENCE: Final = {"connect_timeout": 5, "read_timeout": 10, "retries": {"max_attempts": 1}}


def is_url(text: str) -> bool:
    """Whether an argument is a URL; a lake's name is not meant."""
    return not text.startswith(_LAKE) and _URL.fullmatch(text) is not None


def is_local(path: Path) -> bool:
    """Whether a path is one of this machine, which can be mapped, written and given to commands."""
    return not isinstance(path, RemotePath)


def location(text: str) -> Path:
    """The path that an argument means: of this machine, or behind a URL.

    What is behind a URL is a RemotePath. It has all methods of Path by which the readers read, and
    is no Path: `cast` says that it stands for one, here and nowhere else. What needs a real one
    asks `is_local`.

    Raises:
        UsageError: a URL that cannot be right, or whose package is not installed.
    """
    if _CHAINED.match(text):
        raise UsageError(
            "a chain of file systems is not read",
            where=masked(text),
            next_step="give the URL of the last one alone",
        )
    match = None if text.startswith(_LAKE) else _URL.fullmatch(text)
    if match is None:
        return Path(text)
    protocol, rest = match[1].lower(), match[2]
    if protocol in ("file", "local"):
        return Path(unquote(rest.removeprefix("localhost")))
    parts = parts_of(protocol, rest)
    rest, options = _without_credentials(protocol, parts)
    return cast(Path, _remote(protocol, rest.rstrip("/"), options, parts.query))


def _without_credentials(protocol: str, parts: Parts) -> tuple[str, dict[str, Any]]:
    """A URL's text after "://" without name, password and query, which are never shown."""
    shown = f"{protocol}://{parts.rest}"
    if parts.cut:
        raise UsageError(
            "a URL with a password in it, and a slash in that",
            where=shown,
            next_step="write the slash as %2F, or give it as the store's own tools take it",
        )
    if not parts.user:
        return parts.rest, {}
    if ":" not in parts.user and protocol not in _TOKENS:
        return f"{parts.user}@{parts.rest}", {}  # a user, or a container in an account
    if protocol not in _S3 or ":" not in parts.user:
        raise UsageError(
            "a URL with a password in it is not taken",
            where=shown,
            next_step="give it as the file system's own tools take it",
        )
    key, _, secret = parts.user.partition(":")
    return parts.rest, {"key": unquote(key), "secret": unquote(secret)}


def _remote(protocol: str, rest: str, options: dict[str, Any], query: str) -> RemotePath:
    url = f"{protocol}://{rest}"
    if not rest and protocol != "memory":
        raise UsageError("the URL names nothing", where=url, next_step="s3://BUCKET/FOLDER")
    if protocol in _S3:
        options["config_kwargs"] = _PATIENCE
    fs = _file_system(protocol, url, options)
    full = str(fs._strip_protocol(url)).rstrip("/")
    inner = full.partition("://")[2] if "://" in full else full.lstrip("/")
    shown = url.removesuffix(inner) if url.endswith(inner) else f"{protocol}://"
    store = Store(fs, protocol, full.removesuffix(inner), shown, query)
    if store.before == "" and protocol == "memory":
        store.before = "/"
    return RemotePath(store, PurePosixPath(inner))


def _file_system(protocol: str, url: str, options: dict[str, Any]) -> Any:
    try:
        from fsspec.core import url_to_fs  # type: ignore[attr-defined,unused-ignore]

        fs, _ = url_to_fs(url, **options)
    except ImportError as error:
        named = re.search(r"\b(\w+fs|aiohttp|paramiko)\b", str(error))
        package = "sdc-guard-torch[remote]" if protocol in _S3 else named[1] if named else "fsspec"
        raise UsageError(
            f"{protocol}:// needs a package that is not installed",
            where=url,
            next_step=f"pip install {package}",
        ) from None
    except ValueError:
        raise UsageError(
            f"no file system is known by {protocol}://",
            where=url,
            next_step="give a folder, or a URL that fsspec reads: s3://BUCKET/FOLDER",
        ) from None
    except Exception as error:  # noqa: BLE001 - because each file system connects and checks in its own way
        told = translated(error, url)
    else:
        if protocol in _S3:
            fs.retries = 1  # s3fs would try each of those tries five times
        fs.invalidate_cache()  # of a command before, in the same process
        return fs
    raise told


def look_up(path: Path) -> bool:
    """Whether there is anything at a path.

    Raises:
        UsageError: it may not be looked at.
        ArchiveUnreachable: the store does not answer.
    """
    try:
        return path.exists()
    except PermissionError:
        if is_local(path):
            raise
        raise UsageError(
            DENIED, where=str(path), next_step="which credentials does the store take from you?"
        ) from None


def still_there(path: Path) -> None:
    """Raises ArchiveUnreachable if a store stopped answering: what was read meanwhile is no answer.

    Readers take what cannot be read for damage, and that would be wrong here.
    """
    if isinstance(path, RemotePath) and path.store.down is not None:
        raise path.store.down


def only_local(path: Path, what: str, next_step: str) -> None:
    """Raises UsageError if a path is behind a URL.

    Args:
        what: cannot be done then.
    """
    if not is_local(path):
        raise UsageError(f"{what} behind a URL", where=str(path), next_step=next_step)
