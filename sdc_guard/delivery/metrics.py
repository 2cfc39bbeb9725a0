"""A training process as Prometheus sees it: read at each scrape, nothing in the training loop."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from .extras import optional
from .guard_state import GuardState, guard_state

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from ..guard import Guard

LABELS = ("run", "rank")


def serve_metrics(guard: Guard, port: int, addr: str = "127.0.0.1") -> MetricsServer:
    """Serve a guard's metrics on http://addr:port/metrics from a daemon thread.

    Args:
        guard: read at each scrape; not kept alive.
        port: 0 for a free one. Each rank of a machine needs a port of its own.
        addr: "0.0.0.0" to be reached from other machines; there is no password.

    Returns:
        The server. Where the port cannot be had, that is told in the log and counted in
        `guard.health`, and its `port` is None: the training goes on without.

    Raises:
        UsageError: a port out of its range, or prometheus_client is not installed.
    """
    check_port(port)
    optional("prometheus_client", "metrics")
    server = MetricsServer()
    try:
        server.start(GuardMetrics(guard), port, addr)
    except (OSError, OverflowError) as error:
        guard.health.trouble(f"serving metrics on {addr} port {port}", error)
    return server


def check_port(port: int) -> None:
    """Refuse what is no port.

    Raises:
        UsageError: it is none.
    """
    if not 0 <= port <= 65535:
        raise UsageError(f"{port} is no port", next_step="give 0 to 65535; 0 takes a free one")


class MetricsServer:
    """An HTTP server of one collector, in a daemon thread.

    Attributes:
        port: that it listens on, or None.
    """

    def __init__(self) -> None:
        self.port: int | None = None
        self._server: Any = None

    def start(self, collector: Any, port: int, addr: str) -> None:
        """Listen.

        Args:
            collector: has collect(), as prometheus_client's collectors.

        Raises:
            OSError: the port is taken, or there is no such address.
        """
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        registry.register(collector)
        self._server, self._thread = start_http_server(port, addr, registry)
        self.port = int(self._server.server_port)
        _close_in_children(self._server)

    def wait(self) -> None:
        """Until it is closed."""
        self._thread.join()

    def close(self) -> None:
        """End it. Safe to call twice."""
        if self._server is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._server = self.port = None


class GuardMetrics:
    """A collector for prometheus_client: the state of one guard.

    For a registry of your own: `registry.register(GuardMetrics(guard))`.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = weakref.ref(guard)

    def describe(self) -> list[Metric]:
        """Nothing is asked of the guard before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now; none after the guard is gone."""
        guard = self._guard()
        if guard is not None:
            yield from metrics_of(guard_state(guard))


def metrics_of(state: GuardState) -> Iterator[Metric]:
    """A guard's state as metrics."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    place = [state.run, str(state.rank)]
    for name, text, value in (
        ("step", "Number of the newest step", state.step),
        ("queue_depth", "Batches of rows that wait for the writer's thread", state.queued),
        ("incidents_open", "Open incidents", state.incidents_open),
    ):
        gauge = GaugeMetricFamily(f"sdc_guard_{name}", text, labels=LABELS)
        if value is not None:
            gauge.add_metric(place, value)
        yield gauge
    for name, text, value in (
        ("rows_written", "Rows on disk", state.written),
        ("rows_dropped", "Rows given up", state.dropped),
        (
            "errors",
            "Troubles that did not reach the training, of the disk and others",
            state.errors,
        ),
    ):
        counter = CounterMetricFamily(f"sdc_guard_{name}", text, labels=LABELS)
        counter.add_metric(place, value)
        yield counter
    alerts = CounterMetricFamily(
        "sdc_guard_alerts", "Alerts raised", labels=(*LABELS, "detector", "severity")
    )
    for kind, count in sorted(state.alerts.items()):
        alerts.add_metric([*place, *kind], count)
    yield alerts


_SERVERS: weakref.WeakSet[Any] = weakref.WeakSet()


def _close_in_children(server: Any) -> None:
    """A worker forked from the training must not hold its port after it ended."""
    _watch_forks()
    _SERVERS.add(server)


@functools.cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_close_sockets)


def _close_sockets() -> None:
    for server in list(_SERVERS):
        server.socket.close()
