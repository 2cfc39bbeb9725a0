"""A connection to a lake: DuckDB in memory with the lake attached as `lake`."""

from __future__ import annotations

import contextlib
import os
import re

import duckdb

from ..errors import LakeUnavailable, UsageError
from ..store.trace_reader import in_memory
from . import extensions
from .location import Lake, without_password

NAME = "lake"
# DuckLake's own retries of a commit that met another's; its default of 10 is too few for 8 writers
_RETRIES = 100
_LOCKED = "Could not set lock on file"
_OTHER_DATA = "does not match existing data path"
# it quotes the whole connection string, twice, before it says what is wrong
_PREAMBLE = re.compile(
    r'^.*(at path \+ "[^"]*"|Unable to connect to Postgres at "[^"]*":)', re.DOTALL
)
_S3 = {
    "KEY_ID": ("AWS_ACCESS_KEY_ID",),
    "SECRET": ("AWS_SECRET_ACCESS_KEY",),
    "SESSION_TOKEN": ("AWS_SESSION_TOKEN",),
    "REGION": ("AWS_REGION", "AWS_DEFAULT_REGION"),
}
_ENDPOINT = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


def connect(lake: Lake, *, read_only: bool = False) -> duckdb.DuckDBPyConnection:
    """Attach a lake.

    Raises:
        UsageError: an extension is missing; the lake keeps its data elsewhere.
        LakeUnavailable: its catalog does not answer, or there is none and it is only to be read.
    """
    connection = in_memory()
    extensions.load(connection, "ducklake")
    if lake.catalog.startswith(("postgres:", "postgresql:")):
        extensions.load(connection, "postgres_scanner")
    if lake.data is None:
        with contextlib.suppress(UsageError):  # only the catalog knows whether it is needed
            _reach_servers(connection)
    elif "://" in lake.data:
        _reach_servers(connection)
    connection.execute(f"SET ducklake_max_retry_count = {_RETRIES}")
    options = ["READ_ONLY"] if read_only else []
    options += [f"DATA_PATH {text(lake.data)}"] if lake.data is not None else []
    what = f"ATTACH {text('ducklake:' + lake.catalog)} AS {NAME}"
    try:
        connection.execute(f"{what} ({', '.join(options)})" if options else what)
    except duckdb.Error as error:
        if _OTHER_DATA in str(error):
            raise UsageError(
                f"this lake does not keep its data in {lake.data}",
                where=str(lake),
                next_step="leave it out: the catalog knows where its data is",
            ) from None
        raise unavailable(lake, error) from None
    return connection


def unavailable(lake: Lake, error: duckdb.Error) -> LakeUnavailable:
    """The error as one line."""
    next_step = "is the catalog's server up, and may this user read and write there?"
    if _LOCKED in str(error):
        next_step = (
            "a catalog in a file has one writer or several readers: end the others, a dashboard "
            "for one; a catalog on PostgreSQL has both"
        )
    return LakeUnavailable(
        f"the lake cannot be used ({reason(error)})", where=str(lake), next_step=next_step
    )


def reason(error: duckdb.Error) -> str:
    """DuckDB's message in one line, without a password."""
    message = _PREAMBLE.sub("", str(error))
    lines = [line.strip().rstrip(".") for line in message.splitlines() if line.strip()]
    return without_password("; ".join(lines)[:400])


def _reach_servers(connection: duckdb.DuckDBPyConnection) -> None:
    """Load what is needed for data on a server, with the keys for S3 from the environment."""
    extensions.load(connection, "httpfs")
    values = {
        option: os.environ[name]
        for option, names in _S3.items()
        for name in names
        if name in os.environ
    }
    endpoint = next((os.environ[name] for name in _ENDPOINT if name in os.environ), None)
    if endpoint is not None:
        scheme, _, host = endpoint.rpartition("://")
        values |= {"ENDPOINT": host.rstrip("/"), "URL_STYLE": "path"}
        values |= {"USE_SSL": "false"} if scheme == "http" else {}
    if values:
        options = "".join(f", {option} {text(value)}" for option, value in values.items())
        connection.execute(f"CREATE OR REPLACE SECRET lake_data (TYPE s3{options})")


def text(value: str) -> str:
    """A SQL string."""
    return "'" + value.replace("'", "''") + "'"
