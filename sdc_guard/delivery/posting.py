"""Posting to a URL that nobody else may learn: urllib3, its retries, and silence in its logs."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from ..errors import UsageError
from .extras import optional

RETRIES = 3
BACKOFF = 0.5  # seconds; urllib3 waits 0, 1, 2, ... times that between its tries
RETRY_AFTER_MAX = 60.0  # seconds; an endpoint may ask for hours
_WORTH_A_RETRY = frozenset({408, 425, 429, 500, 502, 503, 504})
_TELLTALES = ("connection", "connectionpool", "poolmanager", "response", "util.retry")


@dataclass(frozen=True)
class Outcome:
    """How a post ended.

    Attributes:
        delivered: the endpoint took it.
        again: worth to be tried again later.
        reason: what went wrong, without the URL.
    """

    delivered: bool
    again: bool = False
    reason: str = ""


class Poster:
    """Posts bodies to one URL, a try after the other.

    Args:
        url: http or https. A webhook's path and query are its password: they are in no message.
        timeout: seconds to connect, and seconds without an answer.
        headers: more of them, for an endpoint that asks for a token.

    Raises:
        UsageError: no such URL, or urllib3 is not installed.
    """

    def __init__(self, url: str, timeout: float, headers: Mapping[str, str]) -> None:
        self._url = url
        self._headers = {"Content-Type": "application/json", "User-Agent": "sdc-guard", **headers}
        self.shown = _shown(url)
        urllib3 = optional("urllib3", "notify")
        proxy = _proxy(url)
        manager = urllib3.ProxyManager(proxy) if proxy else urllib3.PoolManager()
        self._manager: Any = manager
        self._errors = urllib3.exceptions
        self._timeout = urllib3.Timeout(connect=timeout, read=timeout)
        self._retries = _retries(urllib3)

    def post(self, body: bytes) -> Outcome:
        """Post, with retries; takes some minutes at most."""
        try:
            response = self._manager.request(
                "POST",
                self._url,
                body=body,
                headers=self._headers,
                timeout=self._timeout,
                retries=self._retries,
                redirect=False,
                preload_content=False,
            )
        except self._errors.MaxRetryError as error:
            return Outcome(False, again=True, reason=self._reason(error.reason or error))
        except self._errors.HTTPError as error:
            return Outcome(False, again=True, reason=self._reason(error))
        status = int(response.status)
        # its body is of no use, and an endpoint that drips it must not hold the thread
        response.close()
        if 200 <= status < 300:
            return Outcome(True)
        return Outcome(False, again=status in _WORTH_A_RETRY, reason=f"HTTP status {status}")

    def _reason(self, error: Exception) -> str:
        name, text = type(error).__name__, str(error)
        secrets = re.split(r"[/?&=#]", self._url.partition("://")[2])[1:]
        return name if any(part and part in text for part in secrets) else f"{name}: {text}"


@contextlib.contextmanager
def quiet(thread: threading.Thread) -> Iterator[None]:
    """Leave out what urllib3 logs in `thread`: its lines hold the path of the URL."""

    def elsewhere(_: logging.LogRecord) -> bool:
        return threading.current_thread() is not thread

    loggers = [logging.getLogger(f"urllib3.{name}") for name in _TELLTALES]
    for logger in loggers:
        logger.addFilter(elsewhere)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(elsewhere)


def _retries(urllib3: Any) -> Any:
    class Patient(urllib3.Retry):  # type: ignore[misc] # because urllib3 is imported when needed
        def get_retry_after(self, response: Any) -> float | None:
            asked = super().get_retry_after(response)
            return None if asked is None else min(float(asked), RETRY_AFTER_MAX)

    return Patient(
        total=RETRIES,
        redirect=False,
        status_forcelist=_WORTH_A_RETRY,
        allowed_methods=None,  # POST too: a message that comes twice is better than none
        backoff_factor=BACKOFF,
        raise_on_status=False,
        respect_retry_after_header=True,
    )


def _shown(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        parts, port = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise UsageError(
            "a webhook's URL must be https://host/path or http://host/path",
            next_step="copy it from the service that is to get the alerts",
        )
    return f"{parts.scheme}://{parts.hostname}{port}/…"


def _proxy(url: str) -> str | None:
    parts = urlsplit(url)
    proxy = getproxies().get(parts.scheme)
    return None if not proxy or proxy_bypass(parts.netloc) else proxy
