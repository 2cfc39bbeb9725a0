"""What `sdc-guard watch` does, apart from its options."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

from ..errors import EXIT_USAGE
from .follow import Following
from .show import news, plain_table, rich_table, urgent_first
from .status import RunStatus


def exit_code(statuses: list[RunStatus]) -> int:
    """1 with an open incident; else 2 if a run cannot be read, or is not there; else 0."""
    if any(status.open_incidents for status in statuses):
        return 1
    unread = any(status.state in ("waiting", "damaged") for status in statuses)
    return EXIT_USAGE if unread else 0


def look_once(folders: list[Path]) -> list[RunStatus]:
    """The runs as they are now."""
    with closing(Following(folders)) as following:
        return following.look(time.time())


def print_table(statuses: list[RunStatus], echo: Callable[[str], object]) -> None:
    """Print the table once."""
    now = time.time()
    if sys.stdout.isatty() and find_spec("rich"):
        from rich.console import Console

        Console().print(rich_table(urgent_first(statuses), now))
        return
    for line in plain_table(urgent_first(statuses), now):
        echo(line)


def follow(folders: list[Path], interval: float, echo: Callable[[str], object]) -> None:
    """Follow until Ctrl-C: a table in a terminal, else a line for each piece of news."""
    with closing(Following(folders)) as following:
        try:
            if sys.stdout.isatty() and find_spec("rich"):
                _redraw(following, interval)
            else:
                _tell_news(following, interval, echo)
        except KeyboardInterrupt:
            return


def _redraw(following: Following, interval: float) -> None:
    from rich.live import Live

    with Live(auto_refresh=False) as live:
        while True:
            now = time.time()
            live.update(rich_table(urgent_first(following.look(now)), now), refresh=True)
            time.sleep(interval)


def _tell_news(following: Following, interval: float, echo: Callable[[str], object]) -> None:
    before: dict[str, RunStatus] = {}
    while True:
        now = time.time()
        statuses = following.look(now)
        for status in statuses:
            line = news(before.get(status.run), status, now)
            if line:
                echo(line)
        before = {status.run: status for status in statuses}
        time.sleep(interval)
