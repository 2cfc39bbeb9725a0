"""`sdc-guard dashboard`: what it starts, and what it refuses to start."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sdc_guard.cli import main
from sdc_guard.hosts import JUDGE_VARIABLE, TOKEN_VARIABLE

TOKEN = "a-token-of-enough-characters"


class Started:
    """Runs the command; `command` is what it would have become."""

    command: tuple[str, ...] = ()

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def become(self, _: str, command: list[str]) -> None:
        self.command = tuple(command)

    def __call__(self, *options: str) -> Result:
        self.command = ()
        words = ["dashboard", str(self._folder), "--port", str(self.port), *options]
        return CliRunner().invoke(main, words)

    def option(self, name: str) -> list[str]:
        pairs = zip(self.command, self.command[1:], strict=False)
        return [value for option, value in pairs if option == f"--{name}"]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Started]:
    started = Started(tmp_path)
    monkeypatch.setattr(os, "execv", started.become)
    before = os.environ.pop(TOKEN_VARIABLE, None)
    yield started
    os.environ.pop(TOKEN_VARIABLE, None)
    if before is not None:
        os.environ[TOKEN_VARIABLE] = before


def refused(result: Result, *texts: str) -> None:
    assert result.exit_code == 2, result.output
    assert len(result.stderr.splitlines()) == 1, result.stderr
    for text in texts:
        assert text in result.stderr


def test_this_machine_needs_no_token_and_is_named_so(start: Started, tmp_path: Path) -> None:
    assert start().exit_code == 0
    assert start.option("server.address") == ["127.0.0.1"]
    assert "localhost" in start.option("server.allowedHosts")
    assert start.command[-2:] == ("--", str(tmp_path))
    assert TOKEN_VARIABLE not in os.environ


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "trainer.example"])
def test_elsewhere_there_is_a_token_or_one_line(start: Started, host: str) -> None:
    refused(start("--host", host), "other machines get nothing without a token", host)
    assert not start.command


def test_a_token_is_in_the_environment_and_on_no_command_line(
    start: Started, tmp_path: Path
) -> None:
    result = start("--host", "0.0.0.0", "--token", TOKEN)
    assert result.exit_code == 0, result.output
    assert os.environ[TOKEN_VARIABLE] == TOKEN
    assert not any(TOKEN in word for word in start.command)
    assert TOKEN not in result.output
    assert start.option("server.allowedHosts") == ["*"]  # its names are not known
    file = tmp_path / "token"
    file.write_text(TOKEN + "2\n")
    file.chmod(0o600)
    result = start("--host", "0.0.0.0", "--token-file", str(file))
    assert (result.exit_code, result.stderr) == (0, "")
    assert os.environ[TOKEN_VARIABLE] == TOKEN + "2"
    file.chmod(0o644)
    assert "others on this machine can read" in start("--token-file", str(file)).stderr


def test_a_token_of_the_environment_counts(start: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    os.environ[TOKEN_VARIABLE] = TOKEN
    assert start("--host", "0.0.0.0").exit_code == 0
    os.environ[TOKEN_VARIABLE] = "short"
    refused(start(), "at least 16 characters", TOKEN_VARIABLE)


def test_auto_makes_a_new_one_each_time_and_prints_it_in_a_link(start: Started) -> None:
    made = set()
    for _ in range(2):
        result = start("--token", "auto")
        token = os.environ.pop(TOKEN_VARIABLE)
        assert f"http://127.0.0.1:{start.port}/?token={token}  " in result.stdout
        assert len(token) >= 32
        assert not any(token in word for word in start.command)
        made.add(token)
    assert len(made) == 2


def test_tokens_that_cannot_be_right(start: Started, tmp_path: Path) -> None:
    refused(start("--token", "short"), "at least 16 characters")
    refused(start("--token", "with a space in between"), "no space")
    refused(start("--token-file", str(tmp_path / "none")), "none")
    (tmp_path / "bytes").write_bytes(b"\xff" * 40)
    refused(start("--token-file", str(tmp_path / "bytes")), "no text")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "empty").chmod(0o600)
    refused(start("--token-file", str(tmp_path / "empty")), "at least 16 characters")
    refused(start("--token", TOKEN, "--token-file", str(tmp_path / "empty")), "two tokens")


def test_a_port_or_an_address_that_is_not_to_be_had(start: Started) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", start.port))
        taken.listen()
        refused(start(), f"port {start.port} of 127.0.0.1 cannot be used")
    refused(start("--host", "192.0.2.1", "--token", TOKEN), "cannot be used")


def test_a_proxy_is_named(start: Started) -> None:
    assert start("--origin", "guard.example", "--origin", "http://other:8080").exit_code == 0
    assert start.option("server.corsAllowedOrigins") == [
        "https://guard.example",
        "http://other:8080",
    ]
    assert {"guard.example", "other"} <= set(start.option("server.allowedHosts"))


def test_a_run_that_is_not_there_yet_is_told(start: Started, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["dashboard", str(tmp_path / "no"), "--port", "65000"])
    assert "the page waits for it" in result.stderr


def test_a_judge_is_allowed_by_its_option_alone(
    start: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(JUDGE_VARIABLE, "of somebody else {ckpt}")
    assert start().exit_code == 0
    assert JUDGE_VARIABLE not in os.environ
    assert start("--judge", "python 'my check.py' {ckpt}").exit_code == 0
    assert os.environ[JUDGE_VARIABLE] == "python 'my check.py' {ckpt}"
    refused(start("--judge", "python check.py"), "names neither {ckpt} nor {step}")
    refused(start("--judge", "python 'check.py {ckpt}"), "no command", "--judge")
