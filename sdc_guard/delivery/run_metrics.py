"""Runs as Prometheus sees them from their folders, without their processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..watch.follow import Following
from ..watch.status import RunStatus
from .extras import optional
from .metrics import MetricsServer

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_STATES = ("waiting", "damaged", "recording", "silent", "ended")


def serve_runs(folders: list[Path], port: int, addr: str, echo: Callable[[str], object]) -> None:
    """Serve the metrics of runs until Ctrl-C.

    Args:
        folders: runs, or folders that hold runs.
        port: 0 for a free one.
        addr: to listen on.
        echo: told the address.

    Raises:
        UsageError: the port is taken, there is no such address, or prometheus_client is not
            installed.
    """
    optional("prometheus_client", "metrics")
    server = MetricsServer()
    with closing(Following(folders)) as following, closing(server):
        try:
            server.start(RunMetrics(following), port, addr)
        except OSError as error:
            raise UsageError(error.strerror or str(error), where=f"{addr} port {port}") from None
        echo(f"http://{addr}:{server.port}/metrics  (Ctrl-C ends it)")
        with suppress(KeyboardInterrupt):
            server.wait()


class RunMetrics:
    """A collector for prometheus_client: the status of each run that is followed.

    Args:
        following: looks at each scrape, at one scrape at a time.
    """

    def __init__(self, following: Following) -> None:
        self._following = following
        self._lock = threading.Lock()

    def describe(self) -> list[Metric]:
        """Nothing is read before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        with self._lock:
            statuses = self._following.look(time.time())
        yield from metrics_of_runs(statuses)


def metrics_of_runs(statuses: Iterable[RunStatus]) -> Iterator[Metric]:
    """Statuses as metrics; what is not known of a run has no sample."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    readable = []
    state = GaugeMetricFamily("sdc_guard_run_state", "1 for the state", labels=("run", "state"))
    for status in statuses:
        for name in _STATES:
            state.add_metric([status.run, name], float(name == status.state))
        if not status.problem:
            readable.append(status)
    yield state
    for name, text in (
        ("step", "Number of the newest step"),
        ("steps_per_second", "By the median of the newest steps"),
        ("loss", "At the newest step"),
        ("last_step_time_seconds", "When the newest step was recorded, since the epoch"),
        ("incidents_open", "Open incidents of all ranks"),
        ("missing_steps", "Steps without a row"),
        ("ranks", "Ranks that record"),
        ("damaged_files", "Files of the trace that cannot be read"),
    ):
        gauge = GaugeMetricFamily(f"sdc_guard_{name}", text, labels=("run",))
        for status in readable:
            value = _value(name, status)
            if value is not None:
                gauge.add_metric([status.run], value)
        yield gauge
    alerts = CounterMetricFamily(
        "sdc_guard_alerts", "Alerts raised", labels=("run", "detector", "severity")
    )
    for status in readable:
        for detector, severity, count in status.alerts:
            alerts.add_metric([status.run, detector, severity], count)
    yield alerts


def _value(name: str, status: RunStatus) -> float | None:
    values: dict[str, float | None] = {
        "step": status.last_step,
        "steps_per_second": status.steps_per_second,
        "loss": status.loss,
        "last_step_time_seconds": status.newest,
        "incidents_open": status.open_incidents,
        "missing_steps": status.missing_steps,
        "ranks": status.ranks,
        "damaged_files": status.damaged_files,
    }
    return values[name]
