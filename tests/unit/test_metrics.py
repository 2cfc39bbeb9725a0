"""Metrics: what Prometheus reads is what the guard and the tables say."""

from __future__ import annotations

import gc
import os
import socket
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from torch import nn
from traces import make_run, step, write

from sdc_guard import Guard
from sdc_guard.delivery import serve_metrics
from sdc_guard.delivery.metrics import MetricsServer
from sdc_guard.delivery.run_metrics import RunMetrics
from sdc_guard.errors import UsageError
from sdc_guard.inject.injector import flip_bit
from sdc_guard.watch.follow import Following

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(server: MetricsServer) -> Samples:
    """(name, labels) to value; the folder of the run is left out of the labels."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{server.port}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted((k, v) for k, v in sample.labels.items() if k != "run"))): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[Guard]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    made = Guard(model, optimizer, run=tmp_path, policy="record", digest_budget=None)
    made.train = lambda: train(model, optimizer)  # type: ignore[attr-defined] # for the tests here
    made.flip = lambda: flip_bit(model.weight.data, 2, 4)  # type: ignore[attr-defined] # likewise
    yield made
    made.close()


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(5, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_guard_is_read_at_each_scrape(guard: Any) -> None:
    rank = ("rank", "0")
    with closing(serve_metrics(guard, 0)) as server:
        assert ("sdc_guard_step", (rank,)) not in scrape(server)
        for _ in range(5):
            guard.train()
        assert guard.flush()
        quiet = scrape(server)
        assert quiet[("sdc_guard_step", (rank,))] == 4
        assert quiet[("sdc_guard_queue_depth", (rank,))] == 0
        assert quiet[("sdc_guard_incidents_open", (rank,))] == 0
        assert quiet[("sdc_guard_rows_written_total", (rank,))] == guard.health.written > 0
        assert not [name for name, _ in quiet if name == "sdc_guard_alerts_total"]
        guard.flip()
        guard.train()
        guard.health.dropped += 7
        guard.health.trouble("a test", OSError("no disk"))
        loud = scrape(server)
        kind = (("detector", "carried_digest"), rank, ("severity", "proven"))
        assert loud[("sdc_guard_alerts_total", kind)] == 1
        assert loud[("sdc_guard_incidents_open", (rank,))] == 1
        assert loud[("sdc_guard_step", (rank,))] == 5
        assert loud[("sdc_guard_rows_dropped_total", (rank,))] == 7
        assert loud[("sdc_guard_errors_total", (rank,))] == 1


def test_a_scrape_does_not_settle_a_step_that_the_scaler_skipped(tmp_path: Path) -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    options: dict[str, Any] = {"run": tmp_path, "scaler": scaler, "policy": "record"}
    with Guard(model, optimizer, **options) as guard, closing(serve_metrics(guard, 0)) as server:
        for value in (1.0, float("inf")):
            scaler.scale(model(torch.full((2, 4), value)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert scrape(server)[("sdc_guard_step", (("rank", "0"),))] == 0
        assert guard.step == 2  # asked in the training's thread, it does


def test_the_server_keeps_no_guard_alive(tmp_path: Path) -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer, run=tmp_path, policy="record")
    with closing(serve_metrics(guard, 0)) as server:
        assert scrape(server)
        guard.close()
        del guard, model, optimizer
        gc.collect()
        assert scrape(server) == {}


def test_a_port_that_is_taken_is_told_and_the_training_goes_on(guard: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = serve_metrics(guard, taken.getsockname()[1])
        assert server.port is None
        server.close()
    assert guard.health.errors == 1
    assert "serving metrics" in guard.health.last_error
    for port in (-1, 65536):
        with pytest.raises(UsageError, match="is no port"):
            serve_metrics(guard, port)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # it knows of the threads
def test_a_forked_worker_does_not_hold_the_port(guard: Any) -> None:
    with closing(serve_metrics(guard, 0)) as server:
        port = server.port
        read, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(write_end)
            os.read(read, 1)  # until the parent is done
            os._exit(0)
        try:
            os.close(read)
            server.close()
            with socket.socket() as again:
                again.bind(("127.0.0.1", port))  # type: ignore[arg-type] # because it was there
                again.listen()
        finally:
            os.close(write_end)
            os.waitpid(child, 0)


def test_without_prometheus_client_one_line_says_what_to_install(
    guard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UsageError, match=r"prometheus_client is not .*metrics"):
        serve_metrics(guard, 0)


def test_runs_are_read_from_their_folders(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")
    rows: list[Any] = [
        step(n, time=1000.0 + n, step_seconds=0.25, loss=1.5 * n) for n in (0, 1, 2, 5)
    ]
    columns = {"step": 2, "layer": 1, "score": 2.0, "threshold": 1.0, "detail": "{}"}
    rows += [("alerts", {**columns, "detector": "norm", "severity": "suspect"})] * 3
    rows += [("incidents", {"step": 2, "incident": 1, "opened": 2, "evidence": "{}"})]
    write(run, rows)
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "run.json").write_text("{", encoding="utf-8")
    with closing(Following([tmp_path])) as following, closing(MetricsServer()) as server:
        server.start(RunMetrics(following), 0, "127.0.0.1")
        found = scrape(server)
    assert {name: found[(f"sdc_guard_{name}", ())] for name in (
        "step", "steps_per_second", "loss", "last_step_time_seconds", "incidents_open",
        "missing_steps", "ranks", "damaged_files",
    )} == {
        "step": 5, "steps_per_second": 4, "loss": 7.5, "last_step_time_seconds": 1005,
        "incidents_open": 1, "missing_steps": 2, "ranks": 1, "damaged_files": 0,
    }  # fmt: skip
    alerts = (("detector", "norm"), ("severity", "suspect"))
    assert found[("sdc_guard_alerts_total", alerts)] == 3
    states = {labels[0][1]: value for (name, labels), value in found.items() if "state" in name}
    assert states["damaged"] == 1
