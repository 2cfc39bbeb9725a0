"""DuckDB's extensions, without a network: from the packages that carry them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import duckdb

from ..errors import UsageError


def load(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    """Load an extension: from its package, or else as DuckDB itself installed it.

    Raises:
        UsageError: it is not there for this DuckDB.
    """
    file = _packaged(name)
    try:
        connection.execute(f"LOAD '{file}'" if file is not None else f"LOAD {name}")
    except duckdb.Error:
        raise UsageError(
            f"DuckDB {duckdb.__version__} has no extension {name}",
            next_step='in an environment of its own: pip install ".[lake]" in a clone',
        ) from None


def _packaged(name: str) -> Path | None:
    """The file in the package of this extension for the DuckDB that runs."""
    spec = find_spec(f"duckdb_extension_{name}")
    for folder in (spec and spec.submodule_search_locations) or ():
        version = Path(folder) / "extensions" / f"v{duckdb.__version__}"
        file = version / f"{name}.duckdb_extension"
        if file.is_file():
            return file
    return None
