"""The webhook: alerts arrive together, and no endpoint reaches the training."""

from __future__ import annotations

import copy
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from endpoint import SECRET, Endpoint, endpoint, until
from torch import nn

from sdc_guard import Alert, Guard
from sdc_guard.delivery import Webhook, posting, webhook
from sdc_guard.errors import UsageError
from sdc_guard.inject.injector import flip_bit


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(webhook, "GATHER_SECONDS", 0.02)
    monkeypatch.setattr(webhook, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(posting, "BACKOFF", 0.002)


@pytest.fixture
def server() -> Iterator[Endpoint]:
    with endpoint() as made:
        yield made


@pytest.fixture
def hook(server: Endpoint) -> Iterator[Callable[..., Webhook]]:
    made: list[Webhook] = []

    def make(url: str | None = None, **options: Any) -> Webhook:
        options.setdefault("per_minute", 1000)
        options.setdefault("timeout", 5.0)
        made.append(Webhook(url or server.url, **options))
        return made[-1]

    yield make
    server.release.set()
    for one in made:
        one.close()


def alert(step: int, layer: str = "w", **changes: Any) -> Alert:
    values = {"score": 2.0, "threshold": 1.0, "severity": "suspect", **changes}
    return Alert(step, values.pop("detector", "norm"), 0, layer, **values)


def told(server: Endpoint) -> int:
    return sum(body["count"] for body in server.bodies())


def test_the_alerts_of_a_step_are_one_message(
    server: Endpoint, hook: Callable[..., Webhook]
) -> None:
    one = hook(run="pretrain")
    for number in range(5000):
        one(alert(7, f"layer.{number}"))
    one.close()
    assert told(server) == 5000
    assert len(server.posts) <= 5
    body = server.bodies()[0]
    assert body["schema"] == {"name": "sdc-guard.alerts", "version": 1}
    assert (body["run"], body["first_step"], body["last_step"]) == ("pretrain", 7, 7)
    assert [one["layer"] for one in body["alerts"]] == [f"layer.{n}" for n in range(20)]
    assert server.posts[0][1] == f"/services/{SECRET}"
    assert (one.failed, one.dropped) == (0, 0)


def test_slack_gets_its_format(server: Endpoint, hook: Callable[..., Webhook]) -> None:
    one = hook(style="slack", run="pretrain")
    one(alert(7, "<!channel> & co", severity="proven"))
    one.close()
    (body,) = server.bodies()
    assert list(body) == ["text"]
    first, second = body["text"].splitlines()
    assert first.startswith("*SDC Guard* pretrain (")
    assert first.endswith("1 alert, 1 proven, at step 7: 1 norm")
    assert second == "• step 7: norm in &lt;!channel&gt; &amp; co"


def test_an_endpoint_in_trouble_is_tried_again(
    server: Endpoint, hook: Callable[..., Webhook]
) -> None:
    server.answers = [500, "close", 503]
    one = hook()
    one(alert(1))
    until(lambda: one.posted)
    assert (len(server.posts), one.failed) == (4, 0)
    assert len({body["id"] for body in server.bodies()}) == 1


def test_what_was_given_up_goes_out_with_the_next(
    server: Endpoint, hook: Callable[..., Webhook]
) -> None:
    server.otherwise = 500
    one = hook()
    one(alert(1))
    until(lambda: one.failed)
    one(alert(2))
    server.otherwise = 200
    until(lambda: one.posted and told(server) and server.bodies()[-1]["last_step"] == 2)
    last = server.bodies()[-1]
    if last["count"] == 1:  # the second came when the first had just been sent
        assert server.bodies()[-2]["first_step"] == 1
    else:
        assert (last["count"], last["first_step"]) == (2, 1)
    assert one.dropped == 0


def test_too_many_requests_with_a_time_to_wait(
    server: Endpoint, hook: Callable[..., Webhook]
) -> None:
    server.answers = [(429, 1)]
    one = hook()
    one(alert(1))
    until(lambda: one.posted)
    (first, _, _), (second, _, _) = server.posts
    assert second - first >= 1.0
    assert one.failed == 0


def test_an_endpoint_cannot_ask_for_hours(
    server: Endpoint, hook: Callable[..., Webhook], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting, "RETRY_AFTER_MAX", 0.01)
    server.answers = [(429, 86_400), (503, "Wed, 21 Oct 2099 07:28:00 GMT")]
    one = hook()
    one(alert(1))
    until(lambda: one.posted)
    assert len(server.posts) == 3


@pytest.mark.parametrize("status", [302, 400, 403, 404, 410])
def test_a_refusal_is_final_and_told_once(
    server: Endpoint, hook: Callable[..., Webhook], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    server.otherwise = status
    one = hook()
    for number in (1, 2):
        one(alert(number))
        until(lambda number=number: one.failed == number)
    one.close()
    assert len(server.posts) == 2
    assert (one.posted, one.dropped) == (0, 2)
    lines = [r.getMessage() for r in caplog.records if r.name == "sdc_guard"]
    assert len(lines) == 1
    assert f"HTTP status {status}; training goes on" in lines[0]


def test_no_more_messages_a_minute_than_asked(
    server: Endpoint, hook: Callable[..., Webhook]
) -> None:
    one = hook(per_minute=3)
    for number in range(40):
        one(alert(number))
        if number < 2:
            until(lambda number=number: told(server) == number + 1)
    one.close()
    assert [body["count"] for body in server.bodies()] == [1, 1, 38]
    assert server.bodies()[-1]["first_step"] == 2


def test_the_next_minute_has_messages_of_its_own(
    server: Endpoint, hook: Callable[..., Webhook], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "MINUTE", 0.2)
    one = hook(per_minute=2)
    for number in range(4):
        one(alert(number))
        until(lambda number=number: told(server) == number + 1)
    assert len(server.posts) == 4
    earlier, later = one._posts
    assert later - earlier >= 0.2


def test_alerts_beyond_the_queue_are_counted_and_told(
    server: Endpoint, hook: Callable[..., Webhook], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "QUEUE_LIMIT", 10)
    server.answers = ["hang"]
    one = hook()
    one(alert(0))
    until(lambda: server.posts)
    for number in range(1, 101):
        one(alert(number))
    assert one.dropped == 90
    server.release.set()
    until(lambda: one.posted == 2)
    assert [body["count"] for body in server.bodies()][-2:] == [1, 10]
    assert server.bodies()[-1]["dropped"] == 90
    assert "90 more were dropped" in server.bodies()[-1]["text"]


def test_the_url_is_a_secret(
    server: Endpoint, hook: Callable[..., Webhook], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.answers = [500, "close", 200]
    one = hook()
    one(alert(1))
    until(lambda: one.posted)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        absent = hook(f"http://127.0.0.1:{unused.getsockname()[1]}/services/{SECRET}")
        absent(alert(1))
        until(lambda: absent.failed)
    said = [record.getMessage() + repr(record.args) for record in caplog.records]
    said += [repr(one), str(one)]
    assert any("NewConnectionError" in line for line in said)
    assert not [line for line in said if "SECRET" in line]
    with pytest.raises(UsageError) as caught:
        Webhook(f"ftp://example.org/{SECRET}")
    assert "SECRET" not in str(caught.value)


def test_other_users_of_urllib3_still_log(
    server: Endpoint, hook: Callable[..., Webhook], caplog: pytest.LogCaptureFixture
) -> None:
    import urllib3

    caplog.set_level(logging.DEBUG)
    hook()
    with urllib3.PoolManager() as manager:
        manager.request("POST", f"http://127.0.0.1:{server.port}/other", body=b"{}")
    assert any("/other" in record.getMessage() for record in caplog.records)


def test_closing_is_over_soon_and_ends_the_thread(
    server: Endpoint, hook: Callable[..., Webhook], caplog: pytest.LogCaptureFixture
) -> None:
    one = hook()
    one.close()
    one.close()
    assert not one._thread.is_alive()
    one(alert(1))
    assert (one.dropped, server.posts) == (1, [])
    server.otherwise = "hang"
    stuck = hook(close_seconds=0.05)
    stuck(alert(1))
    stuck.close()
    assert stuck._thread.is_alive()
    assert "the endpoint does not answer" in caplog.text


@pytest.mark.parametrize("answer", [500, 404, "hang", "close", "refused"])
def test_no_endpoint_touches_the_training(
    server: Endpoint, hook: Callable[..., Webhook], tmp_path: Path, answer: Any
) -> None:
    server.otherwise = answer
    url = server.url
    if answer == "refused":
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{unused.getsockname()[1]}/x"
    states = []
    for guarded in (False, True):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = torch.optim.AdamW(model.parameters())
        one = hook(url, close_seconds=0.05) if guarded else None
        options: dict[str, Any] = {"policy": "record", "digest_budget": None, "on_alert": one}
        guard = Guard(model, optimizer, run=tmp_path, **options) if guarded else None
        for step in range(8):
            if step == 4:
                flip_bit(model[2].weight.data, 5, 3)
            model(torch.randn(4, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        states.append(copy.deepcopy([*model.state_dict().values()]))
        if guard is not None and one is not None:
            guard.close()
            one.close()
            assert guard.health.alerts[("carried_digest", "proven")] == 1
            assert guard.health.errors == 0
            assert one.posted == 0
    assert all(torch.equal(plain, watched) for plain, watched in zip(*states, strict=True))


def test_a_proxy_is_used_where_the_environment_names_one(
    server: Endpoint, hook: Callable[..., Webhook], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.port}")
    one = hook("http://sdc-guard.invalid/hook")
    one(alert(1))
    until(lambda: one.posted)
    assert server.posts[0][1] == "http://sdc-guard.invalid/hook"


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"url": "hooks.example.org/x"}, "https://host/path"), ({"url": "https://"}, "https://host"),
     ({"url": "http://a:70000/"}, "https://host"), ({"url": "https://me:pw@a/"}, "https://host"),
     ({"style": "teams"}, "slack, json"), ({"per_minute": 1}, "at least 2"),
     ({"timeout": 0}, "timeout above 0"), ({"close_seconds": -1}, "not below 0")],
)  # fmt: skip
def test_arguments_that_cannot_be_right(changes: dict[str, Any], says: str) -> None:
    threads = threading.active_count()
    with pytest.raises(UsageError) as caught:
        Webhook(**{"url": "https://example.org/x", **changes})
    assert says in str(caught.value)
    assert threading.active_count() == threads


def test_without_urllib3_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "urllib3", None)
    with pytest.raises(UsageError, match=r"urllib3 is not installed .*notify"):
        Webhook("https://example.org/x")


SCRIPT = """
import os, sys
from sdc_guard import Alert
from sdc_guard.delivery import Webhook
hook = Webhook(sys.argv[1], close_seconds=float(sys.argv[2]))
child = os.fork()
hook(Alert(1 if child else 2, "norm", None, "", 2.0, 1.0, "suspect"))
if child:
    assert os.waitpid(child, 0)[1] == 0
else:  # nor does it touch the queue, whose lock the other thread may have held at the fork
    assert hook._queue.empty()
print("parent" if child else "child", flush=True)
"""


@pytest.mark.parametrize("answer", [200, "hang"])
def test_the_last_alerts_go_out_at_exit_and_only_from_the_parent(
    server: Endpoint, answer: Any
) -> None:
    server.otherwise = answer
    patience = "15" if answer == 200 else "0.2"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, server.url, patience],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "no_proxy": "*"},
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "child\nparent\n"), done.stderr
    assert "Traceback" not in done.stderr
    if answer == 200:
        assert [body["first_step"] for body in server.bodies()] == [1]
