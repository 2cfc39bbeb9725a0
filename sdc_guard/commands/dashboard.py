"""The command that serves the dashboard."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click

from ..errors import UsageError
from ..hosts import JUDGE_VARIABLE, TOKEN_VARIABLE, is_loopback, is_wildcard
from .group import say

_SHORTEST: Final = 16  # characters of a token
_LARGEST: Final = 4_096  # bytes of a token's file


@click.command()
@click.argument("runs", nargs=-1, required=True)
@click.option("--port", type=click.IntRange(1, 65_535), default=8501, show_default=True)
@click.option(
    "--host", default="127.0.0.1", show_default=True,
    help="Address to listen on. Elsewhere than on this machine a token is needed.",
)  # fmt: skip
@click.option(
    "--token", metavar="TEXT|auto",
    help="Ask for this token before anything is shown; auto makes one and prints it. "
    f"Or set {TOKEN_VARIABLE}, which no list of processes shows.",
)  # fmt: skip
@click.option(
    "--token-file", type=click.Path(path_type=Path), metavar="FILE",
    help="Read the token from a file.",
)  # fmt: skip
@click.option(
    "--origin", "origins", multiple=True, metavar="NAME",
    help="Name by which browsers reach it, of a proxy say; may be given again.",
)  # fmt: skip
@click.option(
    "--judge", metavar="COMMAND",
    help="Allow pages to search by this command, as `sdc-bisect run RUN -- COMMAND` does: "
    "'python check.py {ckpt}'. Pages start no other command of yours.",
)  # fmt: skip
def dashboard(
    runs: tuple[str, ...],
    port: int,
    host: str,
    token: str | None,
    token_file: Path | None,
    origins: tuple[str, ...],
    judge: str | None,
) -> None:
    """Open the investigation of RUNS in a browser, by default on this machine only.

    Each of RUNS is a run's folder, a folder with runs in it, or ducklake:CATALOG?run=NAME for a
    run that was uploaded.
    """
    entry = _entry()
    _set_judge(judge)
    secret = _token(token, token_file)
    if secret is None and not is_loopback(host):
        raise UsageError(
            "other machines get nothing without a token", where=f"--host {host}",
            next_step=f"--token auto makes one; or --token-file FILE, or {TOKEN_VARIABLE}",
        )  # fmt: skip
    _check_port(host, port)
    for run in runs:
        if not run.startswith("ducklake:") and not Path(run).expanduser().is_dir():
            say(f"sdc-guard: no folder {run} yet; the page waits for it", err=True)
    address = f"http://{_shown(host)}:{port}"
    say(f"{address}{f'/?token={secret}' if token == 'auto' else ''}  (Ctrl-C ends it)")
    sys.stdout.flush()
    if secret is not None:
        os.environ[TOKEN_VARIABLE] = secret
    options = _options(host, port, origins, open_to_all=secret is not None)
    command = [sys.executable, str(entry.with_name("serve.py")), "run", str(entry), *options]
    # in place of this process, so that whoever ends it ends the server, and the token that stood
    # on its command line is in no list of processes any more
    os.execv(sys.executable, [*command, "--", *runs])


def _set_judge(command: str | None) -> None:
    """Let the server know; without one, what the environment has counts for nothing.

    Raises:
        UsageError: it cannot be split into words, or judges the same thing each time.
    """
    import shlex

    os.environ.pop(JUDGE_VARIABLE, None)
    if command is None:
        return
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"no command ({error})", where=f"--judge {command}") from None
    if not any("{ckpt}" in word or "{step}" in word for word in words):
        raise UsageError(
            "the command names neither {ckpt} nor {step}",
            where=f"--judge {command}",
            next_step="--judge 'python check.py {ckpt}'",
        )
    os.environ[JUDGE_VARIABLE] = command


def _entry() -> Path:
    from importlib.util import find_spec

    spec = find_spec("app")
    if find_spec("streamlit") is None or spec is None or not spec.submodule_search_locations:
        raise UsageError(
            "the dashboard's packages are not installed",
            next_step='pip install ".[app]" in a clone of SDC Guard',
        )
    return Path(next(iter(spec.submodule_search_locations))) / "main.py"


def _token(given: str | None, file: Path | None) -> str | None:
    """The token to ask for; None for none.

    Raises:
        UsageError: two are given, or one that is short or has spaces.
    """
    import secrets

    if given is not None and file is not None:
        raise UsageError("two tokens", where=f"--token and --token-file {file}")
    if given == "auto":
        return secrets.token_urlsafe(24)
    where = "--token"
    if file is not None:
        given, where = _of_file(file), f"--token-file {file}"
    elif given is None:
        given, where = os.environ.get(TOKEN_VARIABLE) or None, TOKEN_VARIABLE
    if given is None:
        return None
    if len(given) < _SHORTEST or not given.isprintable() or " " in given:
        raise UsageError(
            f"a token has at least {_SHORTEST} characters and no space", where=where,
            next_step="--token auto makes one",
        )  # fmt: skip
    return given


def _of_file(file: Path) -> str:
    try:
        with file.open("rb") as content:
            mode = os.fstat(content.fileno()).st_mode
            text = content.read(_LARGEST).decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError("no text", where=f"--token-file {file}") from None
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        say(f"sdc-guard: others on this machine can read {file}; chmod 600 it", err=True)
    return text.strip()


def _options(host: str, port: int, origins: tuple[str, ...], *, open_to_all: bool) -> list[str]:
    """Streamlit's options that hang on where it listens; the rest is in app/.streamlit."""
    named = {
        "server.address": host,
        "server.port": str(port),
        "server.headless": "true",
        "server.fileWatcherType": "none",
        "server.maxUploadSize": "1",
        "browser.gatherUsageStats": "false",
        # compared with a browser's origin before Streamlit would look for this machine's others
        "browser.serverAddress": socket.gethostname() if is_wildcard(host) else host,
    }
    options = [text for name, value in named.items() for text in (f"--{name}", value)]
    for origin in origins:
        options += ["--server.corsAllowedOrigins", _as_origin(origin)]
    # without a token a web page could reach this machine under a name of its own
    names = [urlsplit(_as_origin(origin)).hostname or origin for origin in origins]
    known = ("localhost", "127.0.0.1", "::1", host, *names)
    for name in ("*",) if open_to_all else dict.fromkeys(known):
        options += ["--server.allowedHosts", name]
    return options


def _as_origin(name: str) -> str:
    return name if "://" in name else f"https://{name}"


def _shown(host: str) -> str:
    if is_wildcard(host):
        return socket.gethostname()
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _check_port(host: str, port: int) -> None:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise UsageError(
            f"no such address ({error.strerror})", where=f"--host {host}",
            next_step="an address of this machine, 0.0.0.0 for all",
        ) from None  # fmt: skip
    family, kind, _, _, address = found[0]
    with contextlib.closing(socket.socket(family, kind)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise UsageError(
                f"port {port} of {host} cannot be used ({error.strerror})",
                next_step="give another --port",
            ) from None
