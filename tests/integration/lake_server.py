"""A PostgreSQL of the tests' own, and the commands in an environment that has DuckLake."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from conftest import ROOT, Answer

PACKAGES = Path(sys.prefix) / "lake"
_USER = "nobody"  # PostgreSQL refuses to run as root


def missing() -> str | None:
    """What this machine lacks for these tests, or None."""
    if _program("pg_ctl") is None or _program("initdb") is None:
        return "no PostgreSQL on this machine (looked for pg_ctl and initdb)"
    if not (PACKAGES / "duckdb").is_dir():
        return "no DuckDB with DuckLake (make .venv/lake/.ready)"
    return None


def require() -> None:
    """Skip a test that cannot run here, or fail it where it must run."""
    reason = missing()
    if reason is None:
        return
    if os.environ.get("REQUIRE_POSTGRES") == "1":
        pytest.fail(f"{reason}, and REQUIRE_POSTGRES=1")
    pytest.skip(reason)  # it says what is missing


def require_packages() -> None:
    """The same for a test that needs DuckLake, and no PostgreSQL."""
    if (PACKAGES / "duckdb").is_dir():
        return
    reason = "no DuckDB with DuckLake (make .venv/lake/.ready)"
    if os.environ.get("REQUIRE_POSTGRES") == "1":
        pytest.fail(f"{reason}, and REQUIRE_POSTGRES=1")
    pytest.skip(reason)  # because it says what is missing


class Server:
    """A running PostgreSQL, on a Unix socket in its folder alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self) -> None:
        """Start it, or start it again after `stop`."""
        options = f"-c listen_addresses= -c fsync=off -c max_connections=50 -k {self.folder}"
        data, log = self.folder / "data", self.folder / "log"
        _as_user("pg_ctl", "start", "-w", "-D", data, "-l", log, "-o", options)

    def stop(self) -> None:
        """Stop it at once, as by a power cut."""
        _as_user("pg_ctl", "stop", "-w", "-m", "immediate", "-D", self.folder / "data")

    def catalog(self, name: str) -> str:
        """A new database for a lake, as DuckLake takes it."""
        _as_user("createdb", "-h", self.folder, "-U", "sdc", name)
        return f"postgres:dbname={name} host={self.folder} user=sdc"

    def query(self, catalog: str, query: str) -> str:
        """A value from the database of a catalog, by PostgreSQL's own client."""
        done = subprocess.run(
            [str(_program("psql")), catalog.removeprefix("postgres:"), "-Atc", query],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()


@contextlib.contextmanager
def server() -> Iterator[Server]:
    """A new server; stopped and deleted at the end."""
    # not in the tests' own folder: that is closed to other users
    folder = Path(tempfile.mkdtemp(prefix="sdc-postgres-"))
    if os.geteuid() == 0:
        shutil.chown(folder, _USER)
    running = Server(folder)
    try:
        _as_user("initdb", "-D", folder / "data", "-A", "trust", "-U", "sdc", "--no-sync")
        running.start()
        try:
            yield running
        finally:
            running.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def environment() -> dict[str, str]:
    """The variables of a process that has DuckLake."""
    return {**os.environ, "PYTHONPATH": f"{PACKAGES}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}


def lake_python(*arguments: object) -> subprocess.Popen[str]:
    """Python with DuckLake, started."""
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=ROOT,
    )


class Worker:
    """One process with DuckLake for many commands and scripts: to start one takes a second."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "lake_worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=ROOT,
        )

    def command(self, *arguments: object, module: str = "sdc_guard.cli") -> Answer:
        """A command line, by default of sdc-guard."""
        return self._ask({"command": [module, *map(str, arguments)]})

    def script(self, text: str, *arguments: object) -> str:
        """A script; what it printed. Fails the test when the script fails."""
        answer = self._ask({"script": text, "arguments": [*map(str, arguments)]})
        assert answer.code == 0, answer.err
        return answer.out

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _ask(self, request: dict[str, object]) -> Answer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return Answer(**json.loads(self._process.stdout.readline()))


def _program(name: str) -> str | None:
    found = shutil.which(name)
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return found or (str(installed[-1]) if installed else None)


def _as_user(name: str, *arguments: object) -> None:
    command: Sequence[object] = (_program(name), *arguments)
    if os.geteuid() == 0:
        command = ("runuser", "-u", _USER, "--", *command)
    done = subprocess.run(
        list(map(str, command)),
        stdout=subprocess.DEVNULL,  # no pipe: the server inherits it and keeps it open
        stderr=subprocess.DEVNULL,
        check=False,
        cwd="/",
    )
    assert done.returncode == 0, f"{name} failed with exit code {done.returncode}"
