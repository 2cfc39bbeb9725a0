"""What the many libraries behind fsspec raise, as one of three: an OSError, or unreachable."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from typing import Final

from sdc_guard.errors import ArchiveUnreachable, SdcGuardError, UsageError

from .masking import masked

# by name: each file system brings a library of its own, and none of them is imported here
_UNREACHABLE: Final = frozenset({
    "BotoConnectionError", "HTTPClientError", "ConnectTimeoutError", "ReadTimeoutError",
    "ConnectionClosedError", "EndpointConnectionError", "ClientConnectionError",
    "ServerTimeoutError", "FSTimeoutError", "ConnectionError", "TimeoutError", "ProxyError",
    "gaierror", "ClientPayloadError", "HttpError",
})  # fmt: skip
_NO_KEY: Final = frozenset({
    "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError",
    "TokenRetrievalError", "DefaultCredentialsError", "ProfileNotFound", "NoAuthTokenError",
})  # fmt: skip
_REFUSED: Final = re.compile(
    r"AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|Forbidden|Unauthorized|AuthFailure"
    r"|\(40[13]\)"
)
_BUSY: Final = (errno.EBUSY, getattr(errno, "EREMOTEIO", errno.EBUSY))  # of s3fs: SlowDown, 500
_TOO_MANY, _SERVERS_OWN = 429, 500  # status codes of HTTP: asked too often, and from here on
_DEEPEST: Final = 5
DENIED: Final = "permission denied, or a wrong key"


class StoreBusy(ArchiveUnreachable):
    """A store that answers that it cannot answer now: the same question may be asked again."""


def translated(error: Exception, where: str) -> OSError | SdcGuardError:
    """An error of a file system, without what its own text may give away.

    Args:
        error: as it came.
        where: the URL; its credentials and query are left out.
    """
    where = masked(where)
    if isinstance(error, SdcGuardError):
        return error
    chain = list(_chain(error))
    names = {kind.__name__ for one in chain for kind in type(one).__mro__}
    if names & _NO_KEY:
        return UsageError(
            "no credentials for the store",
            where=where,
            next_step="give them as its own tools take them: AWS_ACCESS_KEY_ID, a profile, a role",
        )
    # first, because of HTTP every failure ends as a file that is not found
    refused = any(getattr(one, "status", 0) in (401, 403) for one in chain)
    if refused or isinstance(error, PermissionError) or _REFUSED.search(str(error)):
        return PermissionError(errno.EACCES, DENIED, where)
    if names & _UNREACHABLE:
        return ArchiveUnreachable(
            f"the store cannot be reached ({_named(chain)})",
            where=where,
            next_step="is the address right and the network there? then run it again",
        )
    if busy := _busy(chain):
        return StoreBusy(
            f"the store cannot be reached (it answers with {busy})",
            where=where,
            next_step="it is overloaded or fails at the moment: run it again later",
        )
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "no such file", where)
    if isinstance(error, NotADirectoryError):
        return NotADirectoryError(errno.ENOTDIR, "not a folder", where)
    known = isinstance(error, OSError) and error.errno not in (None, errno.EIO)
    what = errno.errorcode.get(getattr(error, "errno", 0) or 0, "") if known else ""
    return OSError(errno.EIO, f"the store answers with {what or type(error).__name__}", where)


def _busy(chain: list[BaseException]) -> str:
    """What a store says that fails, or is asked too much, at the moment; "" if it is not so."""
    for one in chain:
        status = _status(one)
        if status == _TOO_MANY or status >= _SERVERS_OWN:
            return f"HTTP {status}"
        if isinstance(one, OSError) and one.errno is not None and one.errno in _BUSY:
            return errno.errorcode[one.errno]
    return ""


def _status(error: BaseException) -> int:
    """The status code of HTTP that an error of aiohttp, or of botocore, has; 0 if it has none."""
    response = getattr(error, "response", None)
    told = response.get("ResponseMetadata") if isinstance(response, dict) else None
    found = told.get("HTTPStatusCode") if isinstance(told, dict) else getattr(error, "status", 0)
    return found if isinstance(found, int) else 0


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it was raised from."""
    for _ in range(_DEEPEST):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _named(chain: list[BaseException]) -> str:
    """The name of the first error of a chain that says that nobody answers."""
    for one in chain:
        if {kind.__name__ for kind in type(one).__mro__} & _UNREACHABLE:
            return type(one).__name__
    return type(chain[0]).__name__
