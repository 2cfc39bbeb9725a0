"""Reading a trace while it is being written: an in-memory DuckDB with views over its files.

Nothing here opens a file that anybody writes, so there is no lock to wait for.

The tables come by their own names and hold the run as it is now: where a resume repeated steps,
only the newest attempt's. The schema `every` holds the rows of all attempts. Beside the tables
there are `layer_names` and `attempts` from run.json, and the views of `whole` over all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb

from .lineage import lineage
from .run_file import RunFile
from .schema import TABLES
from .segment_file import segment_columns, segment_damage
from .segments import Listing, listing, quoted, rank_folder, ranks
from .trace_reader import TraceReader, in_memory

__all__ = ["RunReader", "lineage"]


class RunReader(TraceReader):
    """A run's tables by SQL; safe to use from several threads.

    Args:
        run: the run's folder.
        attempt: read the run as it was during this attempt; the newest by default.

    Attributes:
        run_file: names, layers and attempts of the run.
        damaged: files that could not be read, with the reason; their rows are missing. A segment
            is checked when it is first seen, a seal when it is opened and when a query meets
            the damage.

    Raises:
        RunNotFound, RunFormatError: as `RunFile.read`.
        UsageError: the run has no such attempt.
    """

    def __init__(self, run: str | Path, *, attempt: int | None = None) -> None:
        run_file = RunFile.read(Path(run))
        self.run = Path(run).absolute()  # its views must outlive a change of the working folder
        self._attached: dict[Path, str] = {}
        # with their columns: a resume may have been recorded by a version that knows more of them
        self._sound_segments: dict[Path, tuple[str, ...]] = {}
        super().__init__(run_file, attempt, in_memory())
        self.refresh()

    def refresh(self) -> None:
        """See what was published since the reader was made, all tables at once."""
        with self._lock:
            self.run_file = RunFile.read(self.run)
            self._define(
                {
                    table: [
                        source
                        for rank in ranks(self.run, table)
                        for source in self._sources(table, rank)
                    ]
                    for table in TABLES
                }
            )

    def _remedies(self) -> list[Callable[[], None]]:
        # first remedy: a segment was folded into a seal after it was listed
        return [self.refresh, self._look_for_damage]

    def _sources(self, table: str, rank: int) -> list[str]:
        found = listing(rank_folder(self.run, table, rank))
        # a damaged seal hides nothing: segments that it covers may still be there
        sound = {span: path for span, path in found.seals.items() if self._attach(path, table)}
        live = Listing(found.segments, sound)
        sources = [
            f"SELECT *, {rank} AS rank FROM {self._attached[seal]}.{table}"
            for seal in live.live_seals()
        ]
        segments: dict[tuple[str, ...], list[str]] = {}
        for path in live.live_segments():
            if self._segment_is_sound(path):
                segments.setdefault(self._sound_segments[path], []).append(quoted(path))
        sources += [
            f"SELECT *, {rank} AS rank"
            f" FROM read_parquet([{', '.join(files)}], hive_partitioning = false)"
            for files in segments.values()
        ]
        return sources

    def _segment_is_sound(self, path: Path) -> bool:
        if path in self._sound_segments:
            return True
        try:
            damage = segment_damage(path)
            columns = segment_columns(path) if damage is None else ()
        except FileNotFoundError:
            return False  # folded into a seal since it was listed; the seal is in the list
        if damage is not None:
            self.damaged[path] = damage
            return False
        self._sound_segments[path] = columns
        return True

    def _attach(self, path: Path, table: str) -> bool:
        if path in self.damaged:
            return False
        if path in self._attached:
            return True
        name = f"seal_{len(self._attached)}"
        try:
            self._connection.execute(f"ATTACH {_text(path)} AS {name} (READ_ONLY)")
            self._connection.execute(f"SELECT * FROM {name}.{table} LIMIT 0")
        except duckdb.Error as error:
            self.damaged[path] = str(error).splitlines()[0]
            return False
        self._attached[path] = name
        return True

    def _look_for_damage(self) -> None:
        """Read every file of the trace whole, leave out those that fail, and refresh."""
        with self._lock:
            self._sound_segments.clear()
            for path, name in self._attached.items():
                table = path.parent.parent.name
                try:
                    self._connection.cursor().execute(
                        f"SELECT bit_xor(hash(t)) FROM {name}.{table} AS t"
                    ).fetchall()
                except duckdb.Error as error:
                    self.damaged[path] = str(error).splitlines()[0]
            self.refresh()


def _text(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
