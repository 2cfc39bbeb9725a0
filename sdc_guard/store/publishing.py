"""Publishing rows as the next segment of a rank's table."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa

from .atomic import publish
from .seal_file import read_contents
from .segment_file import encode
from .segments import next_number, rank_folder, seals_over, segment_path


def publish_rows(
    run: Path,
    table: str,
    rank: int,
    rows: pa.Table,
    *,
    writer: str,
    rows_before: int,
    newest: int | None = None,
) -> int:
    """Publish rows of `table`; they survive a power cut from then on.

    Args:
        run: the run's folder.
        table: of the trace.
        rank: whose rows they are.
        rows: with the columns of the table.
        writer, rows_before: see `segment_file.encode`.
        newest: number of the segment that this writer published last in that folder, if it knows:
            then the folder need not be searched for it.

    Returns:
        the segment's number.

    Raises:
        OSError: as the file system gave it (disk full, read-only, the run's folder is gone).
    """
    folder = rank_folder(run, table, rank)
    if not run.is_dir():
        raise FileNotFoundError(f"the run's folder {run} is gone")
    folder.mkdir(parents=True, exist_ok=True)
    content = encode(rows, writer=writer, rows_before=rows_before)
    number = next_number(folder) if newest is None else newest + 1

    def write(path: Path) -> None:
        path.write_bytes(content)

    while True:
        try:
            publish(segment_path(folder, number), write, replace=False)
        except FileExistsError:  # another process, not quite dead, writes for this rank too
            number += 1
            continue
        if all(_holds(seal, writer, number) for seal in seals_over(folder, number)):
            return number
        # others published and sealed this number meanwhile: nobody would look under their seal
        segment_path(folder, number).unlink(missing_ok=True)
        number = next_number(folder)


def _holds(seal: Path, writer: str, number: int) -> bool:
    """Whether a seal was made of this writer's segment, too."""
    with duckdb.connect(":memory:") as connection:
        try:
            found = read_contents(connection, seal)
        except duckdb.Error:
            return False
    parts = found[1] if found is not None else []
    return any(
        part.writer == writer and part.first_segment <= number <= part.last_segment
        for part in parts
    )
