"""Alerts by HTTP: the training thread queues, one daemon thread posts."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from ..detect.alert import Alert
from ..errors import UsageError
from .gathered import Gathered
from .messages import BODIES, Sender, Style
from .posting import Outcome, Poster, quiet

_log = logging.getLogger("sdc_guard")

QUEUE_LIMIT = 10_000  # alerts; two steps of a model with 5,000 layers
GATHER_SECONDS = 0.5  # what comes within this time of an alert goes out with it
AGAIN_SECONDS = 60.0  # after urllib3 gave up, until the same alerts are tried again
MINUTE = 60.0


class Webhook:
    """Posts alerts to a URL; give it to `Guard(on_alert=...)`.

    A call only queues the alert: it does not block, raise or touch the network. Alerts that come
    together are one message. While the endpoint does not answer they are gathered, and go out
    together later. A process forked from this one posts nothing.

    Args:
        url: where to post, http or https. It is never logged but for its host.
        style: "slack" for Slack's incoming webhooks (and what understands them), "json" for one
            JSON object with the schema "sdc-guard.alerts".
        run: name of the run in the messages.
        headers: more of them, {"Authorization": "Bearer ..."} for example.
        per_minute: messages within a minute at most, at least 2. One of them is kept for `close`.
        timeout: seconds to connect, and seconds to wait for an answer.
        close_seconds: how long `close` waits for the last message.

    Attributes:
        posted: messages that the endpoint took.
        failed: messages that it refused, or that were given up after some retries.

    Raises:
        UsageError: a URL, style or number that cannot be right, or urllib3 is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        style: Style = "json",
        run: str | Path = "",
        headers: Mapping[str, str] | None = None,
        per_minute: int = 6,
        timeout: float = 10.0,
        close_seconds: float = 5.0,
    ) -> None:
        if style not in BODIES:
            raise UsageError(f"no style {style!r}", next_step=f"use one of {', '.join(BODIES)}")
        if per_minute < 2 or timeout <= 0 or close_seconds < 0:
            raise UsageError(
                "per_minute must be at least 2, timeout above 0, and close_seconds not below 0"
            )
        self.posted = self.failed = 0
        self._told: set[str] = set()
        self._owner = os.getpid()
        self._body = BODIES[style]
        self._sender = Sender(str(run), socket.gethostname(), os.environ.get("RANK", ""))
        self._poster = Poster(url, timeout, headers or {})
        self._per_minute = per_minute
        self._close_seconds = close_seconds
        self._posts: deque[float] = deque(maxlen=per_minute)
        self._queue: queue.Queue[Alert | None] = queue.Queue(QUEUE_LIMIT)
        # each counted in one thread: what did not fit the queue, and how much of it a message told
        self._overflown = self._told_of = self._refused = 0
        self._closing = threading.Event()
        # made now: at the end of the interpreter, when the last alerts may come, none can be
        self._thread = threading.Thread(target=self._serve, name="sdc-guard-webhook", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def __repr__(self) -> str:
        return f"Webhook({self._poster.shown!r})"

    @property
    def dropped(self) -> int:
        """Alerts that did not fit the queue, or that the endpoint refused."""
        return self._overflown + self._refused

    def __call__(self, alert: Alert) -> None:
        """Queue an alert; never blocks, never raises."""
        if os.getpid() != self._owner:
            return
        try:
            if self._closing.is_set():
                raise queue.Full
            self._queue.put_nowait(alert)
        except queue.Full:
            self._overflown += 1

    def close(self) -> None:
        """Post what is left, within `close_seconds`, and end the thread. Safe to call twice."""
        if os.getpid() != self._owner or self._closing.is_set():
            return
        self._closing.set()
        atexit.unregister(self.close)
        with contextlib.suppress(queue.Full):  # then the thread is awake, and sees `_closing`
            self._queue.put_nowait(None)
        self._thread.join(self._close_seconds)
        if self._thread.is_alive():
            self._tell("the endpoint does not answer; the last alerts may not have been sent")

    def __enter__(self) -> Webhook:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        with quiet(threading.current_thread()):
            self._post_until_closed()

    def _post_until_closed(self) -> None:
        waiting = Gathered()
        due = 0.0
        while True:
            self._gather(waiting, due)
            if waiting:
                outcome = self._post(waiting)
                due = 0.0
                if outcome.again and not self._closing.is_set():
                    due = time.monotonic() + AGAIN_SECONDS
                else:
                    self._refused += 0 if outcome.delivered else waiting.count
                    waiting = Gathered()
            if self._closing.is_set() and self._queue.empty():
                return

    def _gather(self, waiting: Gathered, due: float) -> None:
        """Take alerts until a message may go out: not before `due`, and not too many a minute."""
        if not waiting:
            self._take(waiting, None)
            due = time.monotonic() + GATHER_SECONDS
        while not self._closing.is_set():
            left = max(due, self._free_at()) - time.monotonic()
            if left <= 0:
                break
            self._take(waiting, left)
        for _ in range(self._queue.qsize()):  # not until it is empty: alerts may go on coming
            self._take(waiting, 0.0)
        overflown = self._overflown
        waiting.dropped += overflown - self._told_of
        self._told_of = overflown

    def _take(self, waiting: Gathered, timeout: float | None) -> None:
        try:
            alert = self._queue.get(timeout=timeout)
        except queue.Empty:
            return
        if alert is not None:
            waiting.add(alert)

    def _free_at(self) -> float:
        """When the next message may go out, without the one that is kept for the end."""
        recent = list(self._posts)[-(self._per_minute - 1) :]
        return recent[0] + MINUTE if len(recent) == self._per_minute - 1 else 0.0

    def _post(self, waiting: Gathered) -> Outcome:
        self._posts.append(time.monotonic())
        try:
            outcome = self._poster.post(self._body(waiting, self._sender, uuid.uuid4().hex))
        except Exception as error:  # noqa: BLE001 - because later alerts need the thread
            outcome = Outcome(False, reason=type(error).__name__)
        if outcome.delivered:
            self.posted += 1
        else:
            self.failed += 1
            self._tell(outcome.reason)
        return outcome

    def _tell(self, reason: str) -> None:
        if reason not in self._told and len(self._told) < 10:
            self._told.add(reason)
            _log.warning(
                "SDC Guard: alerts do not reach %s: %s; training goes on",
                self._poster.shown,
                reason,
            )
