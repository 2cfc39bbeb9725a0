"""The Ray cluster that is judged on: one that is there, or one that ends with this process."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from sdc_guard.errors import UsageError

ADDRESS: Final = "RAY_ADDRESS"
_PATIENCE: Final = 5.0  # seconds to answer a connection
_STORE: Final = 80 * 2**20  # bytes for objects: near Ray's least; judgements are small
# Read by Ray when it is imported and when it starts; what the user has set stays.
_QUIET: Final = {"RAY_USAGE_STATS_ENABLED": "0"}
# Of a cluster of our own: commands that a killed worker leaves behind are ended.
_OWN: Final = {"RAY_process_group_cleanup_enabled": "1"}


@dataclass(frozen=True)
class RayCluster:
    """A connection.

    Attributes:
        ray: the package.
        folder: of the cluster's files, if it was started here; None of one that was there.
        joined: whether somebody else in this process had connected.
    """

    ray: Any
    folder: str | None
    joined: bool = False

    @classmethod
    def of(cls, jobs: int) -> RayCluster:
        """Connect to the cluster that RAY_ADDRESS names; without it start one of `jobs` CPUs.

        Raises:
            UsageError: Ray is not installed, or no cluster can be reached or started.
        """
        address = os.environ.get(ADDRESS)
        for name, value in {**_QUIET, **({} if address else _OWN)}.items():
            os.environ.setdefault(name, value)
        if not address:
            _token()
        else:
            _reachable(address)
        ray = _imported()
        logging.getLogger("ray").setLevel(logging.ERROR)
        if ray.is_initialized():
            return cls(ray, None, True)
        quiet = {"log_to_driver": False, "configure_logging": False, "logging_level": "ERROR"}
        if address:
            _init(ray, address, {"address": address, **quiet})
            return cls(ray, None)
        # short: the path of a socket in it may have 107 bytes
        folder = tempfile.mkdtemp(prefix="sdc-ray-")
        try:
            _init(
                ray,
                "this machine",
                {
                    "address": "local",
                    "num_cpus": jobs,
                    "num_gpus": 0,
                    "include_dashboard": False,
                    "object_store_memory": _STORE,
                    "_temp_dir": folder,
                    **quiet,
                },
            )
        except BaseException:
            cls(ray, folder).close()
            raise
        return cls(ray, folder)

    def close(self) -> None:
        """End it if it was started here; else leave it."""
        if not self.joined:
            self.ray.shutdown()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def _token() -> None:
    """Let only this process in: Ray would make a token, and write it into the user's home."""
    if "RAY_AUTH_MODE" in os.environ:
        return
    os.environ["RAY_AUTH_MODE"] = "token"
    if "RAY_AUTH_TOKEN_PATH" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def _imported() -> Any:
    try:
        import ray
    except ImportError:
        raise UsageError(
            "--executor ray needs Ray, which is not installed",
            next_step="pip install ray, or leave it out: --jobs N runs here, in threads",
        ) from None
    return ray


def _reachable(address: str) -> None:
    """Refuse an address where nobody listens: Ray would try for minutes, and say so in many lines.

    Raises:
        UsageError: nobody does. Names that only Ray understands ("auto") are left to it.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(str(error), address) from None


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Start Ray without its words on stderr, and without its thread that prints on stdout.

    What does not reach a cluster says so many times, past Python; the error that is raised in the
    end is told. The thread prints which worker died, and we tell that; no setting is there for
    it, and where Ray has renamed it, it prints.
    """
    with _without_stderr(), _without_listener():
        yield


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextlib.contextmanager
def _without_listener() -> Iterator[None]:
    module = sys.modules.get("ray._private.worker")
    name = "listen_error_messages"
    listen = getattr(module, name, None)
    if module is None or listen is None:
        yield
        return
    setattr(module, name, lambda *_: None)
    try:
        yield
    finally:
        setattr(module, name, listen)


def _init(ray: Any, where: str, options: dict[str, Any]) -> None:
    try:
        with _silent():
            ray.init(**options)
    except Exception as error:  # noqa: BLE001 - because Ray raises many kinds
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise _no_cluster(text, where) from None


def _no_cluster(text: str, where: str) -> UsageError:
    return UsageError(
        f"no Ray cluster: {text}",
        where=where,
        next_step=f"{ADDRESS} names a cluster that is there, RAY_AUTH_TOKEN its token if it has "
        f"one; without {ADDRESS} one is started here",
    )
