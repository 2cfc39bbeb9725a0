"""Processes that are killed while they restore, or use a cache together; what is left is whole.

    restore_killed.py FOLDER SEED

Prints "ok" and what happened. Copies are slowed down, so that a kill comes in the middle of them.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

from sdc_guard import Guard, load_checkpoint
from sdc_guard.archive.cache.cache import Cache
from sdc_guard.archive.compare import check_bytes
from sdc_guard.archive.manifest import FileEntry, Manifest
from sdc_guard.archive.recovery import copying
from sdc_guard.archive.recovery.candidates import candidates
from sdc_guard.archive.recovery.choice import newest_first
from sdc_guard.archive.recovery.restoring import restore

KILLS, READERS, SECONDS = 8, 3, 0.8
LIMIT = 100_000  # bytes
PIECE, PAUSE = 2048, 0.005  # bytes, and seconds for each
COPY = 40_000 / PIECE * PAUSE  # of the weights


def child(call: Callable[[], object]) -> int:
    """Its process id."""
    number = os.fork()
    if number:
        return number
    code = 1
    try:
        call()
        code = 0
    except BaseException:  # noqa: BLE001 - because it is a process's own end, told below it
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(number: int) -> int:
    """0, or what ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def trained(folder: Path) -> Path:
    torch.manual_seed(0)
    model = torch.nn.Linear(100, 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"policy": "record", "archive_format": "dcp"}
    with Guard(model, optimizer, run=folder, first_step=1, **options) as guard:
        model(torch.ones(2, 100)).sum().backward()
        optimizer.step()
        guard.checkpoint({"model": model}, 1)
    return folder


def killed_restores(run: Path, folder: Path, draw: random.Random, happened: Counter[str]) -> None:
    expected = load_checkpoint(run)["model"]["weight"]
    restore(newest_first(candidates(run)), folder / "first")  # compiles, once for all
    for kill in range(KILLS):
        to = folder / f"to-{kill}"
        number = child(lambda to=to: restore(newest_first(candidates(run)), to))  # type: ignore[misc]
        until = time.monotonic() + 30
        while not list(folder.glob(f".{to.name}.*.partial")) and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 1.2 * COPY))
        os.kill(number, signal.SIGKILL)
        code = ended(number)
        if not to.exists():
            assert code == -signal.SIGKILL
            happened["partial" if list(folder.glob(f".{to.name}.*.partial")) else "none"] += 1
            continue
        happened["whole"] += 1
        manifest = Manifest.read(to)
        assert check_bytes(to, manifest).sound
        assert torch.equal(load_checkpoint(to)["model"]["weight"], expected)


def files(folder: Path, draw: random.Random) -> list[tuple[FileEntry, Path, bytes]]:
    found = []
    for number, size in enumerate((9_000, 20_000, 35_000, 50_000, 64_000, 90_000)):
        path = folder / f"file-{number}"
        content = draw.randbytes(size)
        path.write_bytes(content)
        (entry,) = [FileEntry(path.name, size, copying.xxhash.xxh3_128_hexdigest(content))]
        found.append((entry, path, content))
    return found


def on_disk(cache: Path) -> int:
    total = 0
    for path in cache.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # it was deleted meanwhile
            continue
    return total


def shared_cache(folder: Path, draw: random.Random, happened: Counter[str]) -> None:
    """Readers, of which now and then one is killed, entries damaged by a stranger."""
    given, place = files(folder, draw), folder / "cache"

    def reads(seed: int) -> None:
        logging.disable()
        mine, cache = random.Random(seed), Cache(place, LIMIT)
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            entry, source, content = mine.choice(given)
            held = cache.fetch(entry, source)
            if held is not None:
                with held:
                    assert held.path.read_bytes() == content
            assert cache.entries.used() <= LIMIT
            if mine.random() < 0.2 and held is not None:
                damaged(cache, mine)

    readers = {child(lambda n=n: reads(n)) for n in range(READERS)}  # type: ignore[misc]
    until, seed = time.monotonic() + SECONDS, READERS
    while time.monotonic() < until:
        time.sleep(draw.uniform(0.02, 0.15))
        number = draw.choice(sorted(readers))
        os.kill(number, signal.SIGKILL)
        assert ended(number) in (0, -signal.SIGKILL)
        readers.remove(number)
        readers.add(child(lambda n=seed: reads(n)))  # type: ignore[misc]
        seed += 1
        happened["killed reader"] += 1
    assert [ended(number) for number in readers] == [0] * READERS
    cache = Cache(place, LIMIT, lambda _: None)
    assert on_disk(place) <= LIMIT
    for entry, source, content in given:
        if (there := cache.hit(entry)) is not None:
            happened["entry"] += 1
            there.close()
        held = cache.fetch(entry, source)
        assert held is not None
        with held:
            assert held.path.read_bytes() == content


def damaged(cache: Cache, draw: random.Random) -> None:
    """A new file with a flipped bit in the place of an entry: who reads it by now is not hit."""
    place = cache.entries.folder
    with cache.entries._alone():  # else it may be evicted meanwhile, and come back without room
        there = sorted(cache.entries.entries.iterdir())
        if there:
            path = draw.choice(there)
            content = bytearray(path.read_bytes())
            content[draw.randrange(len(content))] ^= 1
            other = place.with_name(f"other-{os.getpid()}")
            other.write_bytes(content)
            other.replace(path)


def main(folder: Path, seed: int) -> None:
    torch.set_num_threads(1)
    draw, happened = random.Random(seed), Counter[str]()
    write = copying._write

    def slowly(*given: object) -> None:
        time.sleep(PAUSE)
        write(*given)  # type: ignore[arg-type]

    copying.PIECE, copying._write = PIECE, slowly
    run = trained(folder / "run")
    killed_restores(run, folder, draw, happened)
    copying.PIECE = 8192
    shared_cache(folder, draw, happened)
    print("ok", dict(happened))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
