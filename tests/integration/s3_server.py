"""A stand-in for S3 on this machine, which the libraries of the real one talk to."""

from __future__ import annotations

import contextlib
import logging
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import s3fs
from moto.server import ThreadedMotoServer

BUCKET = "bucket"


@dataclass(frozen=True)
class Bucket:
    """A bucket of a running server.

    Attributes:
        address: of the server.
        fs: to write into it.
    """

    address: str
    fs: Any

    def put(self, folder: Path, name: str) -> str:
        """Copy what is in a folder, or a file, to there; the URL."""
        if folder.is_file():
            self.fs.put_file(str(folder), f"{BUCKET}/{name}")
        for file in folder.rglob("*"):
            if file.is_file():
                inner = file.relative_to(folder).as_posix()
                self.fs.pipe_file(f"{BUCKET}/{name}/{inner}", file.read_bytes())
        return f"s3://{BUCKET}/{name}"

    def sizes(self, name: str) -> int:
        """Bytes below a name."""
        self.fs.invalidate_cache()
        return int(self.fs.du(f"{BUCKET}/{name}"))


@contextlib.contextmanager
def s3_server() -> Iterator[Bucket]:
    """Run a server; credentials and address are in the environment meanwhile."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line per request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ACCESS_KEY_ID", "testing")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-test")
            patch.setenv("AWS_ENDPOINT_URL", address)
            patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
            patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
            forget()
            _emptied(address)
            fs = s3fs.S3FileSystem()
            fs.mkdir(BUCKET)
            yield Bucket(address, fs)
    finally:
        forget()
        server.stop()


def _emptied(address: str) -> None:
    """What an earlier server of this process was given is kept by the process."""
    request = urllib.request.Request(f"{address}/moto-api/reset", method="POST")
    with urllib.request.urlopen(request, timeout=20):
        pass


def forget() -> None:
    """fsspec keeps its instances, with the address and the credentials of before."""
    s3fs.S3FileSystem.clear_instance_cache()
