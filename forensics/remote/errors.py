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
_DEEPEST: Final = 5
DENIED: Final = "permission denied, or a wrong key"


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
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "no such file", where)
    if isinstance(error, NotADirectoryError):
        return NotADirectoryError(errno.ENOTDIR, "not a folder", where)
    known = isinstance(error, OSError) and error.errno not in (None, errno.EIO)
    what = errno.errorcode.get(getattr(error, "errno", 0) or 0, "") if known else ""
    return OSError(errno.EIO, f"the store answers with {what or type(error).__name__}", where)


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
