"""Faults in the bytes of archives that a guard made or sealed: each is named, in its step.

And nothing else is: not the other steps, not an archive without a fault. What loads is the truth.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import archive_bytes as made
import pytest
import torch
from archive_bytes import KINDS, SEALED, STEPS, Archive, Fault, Kind
from distributed_launch import launch
from in_process import bisect

from sdc_guard import load_checkpoint
from sdc_guard.errors import SdcGuardError

NAMES: Final = ("guard", "ranks", *SEALED)
OPTIMIZERS: Final = (
    torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RMSprop,
    torch.optim.Adagrad, torch.optim.Adamax, torch.optim.RAdam,
)  # fmt: skip
DTYPES: Final = (torch.float32, torch.bfloat16, torch.float64)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Archive]:
    """One of each kind."""
    folders = {name: tmp_path_factory.mktemp(name) for name in NAMES}
    two = launch(tmp_path_factory.mktemp("two"), 2, ("archive_bytes",))
    found = {name: made.sealed(folders[name], name) for name in SEALED}
    return found | {
        "guard": made.by_guard(folders["guard"]),
        "ranks": made.by_ranks(folders["ranks"], two),
    }


def wrong(one: Archive, fault: Fault) -> Iterator[str]:
    """What is told, or loaded, and should not be, of an archive with a fault."""
    answer = bisect("scan", one.root / "run", "--json", "--jobs", 1)
    rows: dict[int, list[dict[str, Any]]] = {}
    for row in answer.json["checkpoints"]:
        rows.setdefault(row["step"], []).append(row)
    if "Traceback" in answer.out + answer.err:
        yield answer.out + answer.err
    if rows.keys() - set(STEPS):
        yield f"steps {sorted(rows)}"
    said = False
    for step in STEPS:
        statuses = [row["status"] for row in rows.get(step, [])]
        if step in fault.steps and not fault.harmless:
            named = all(row["reasons"] or row["unchecked_why"] for row in rows.get(step, []))
            said |= bool(statuses) and "clean" not in statuses and named
            if not fault.gone and (not statuses or "clean" in statuses or not named):
                yield f"step {step}: {statuses}, {rows.get(step)}"
        elif statuses != ["clean"]:
            yield f"step {step} is accused: {rows.get(step)}"
    gone = not rows.keys() >= set(fault.steps)
    if fault.gone and not (said or gone or answer.json["remarks"]):
        yield "not a word of what is gone"
    if said and answer.code not in (1, 5) and not fault.gone:
        unchecked = [row["unchecked_why"] for step in fault.steps for row in rows[step]]
        if not all(unchecked):
            yield f"exit code {answer.code}"
    yield from loaded(one, fault)


def loaded(one: Archive, fault: Fault) -> Iterator[str]:
    """What loads with other bits than were saved, or raises what it should not."""
    if not one.truth:
        return
    for place in (one.root / "run", *((one.root / one.files[step][0]).parent for step in STEPS)):
        try:
            content = load_checkpoint(place)
        except SdcGuardError as error:
            if "\n" in str(error):
                yield f"{place.name}: {error}"
            if fault.harmless or (place.name != "run" and _step(place) not in fault.steps):
                yield f"{place.name} is refused: {error}"
            continue
        found = made.stored(content)
        truth = one.truth.get(content["step"], {})
        if not truth or any(found.get(name) != value for name, value in truth.items()):
            yield f"{place.name}: other bits than those of step {content['step']}"
        if place.name != "run" and content["step"] != _step(place):
            yield f"{place.name} gives step {content['step']}"


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix("step="))


def campaign(
    archives: Mapping[str, Archive], folder: Path, seed: int, count: int
) -> tuple[int, list[str]]:
    """Faults of each kind in each archive in turn; how many were harmful, and what went wrong."""
    chosen, harmful, told = random.Random(seed), 0, []
    turns = [(name, kind) for kind in KINDS for name in NAMES]
    chosen.shuffle(turns)
    for number in range(count):
        name, kind = turns[number % len(turns)]
        place = folder / str(number)
        one = archives[name].copied(place)
        fault = made.damage(one, kind, chosen)
        harmful += not fault.harmless
        told += [f"{number}, {name}: {fault.text}: {what}" for what in wrong(one, fault)]
        shutil.rmtree(place)
    return harmful, told


def test_a_fault_is_named_in_its_step_and_nothing_wrong_is_loaded(
    archives: Mapping[str, Archive], tmp_path: Path, seed: int
) -> None:
    harmful, told = campaign(archives, tmp_path, seed, 12)
    assert told == []
    assert harmful >= 6


@pytest.mark.slow
def test_five_hundred_faults(archives: Mapping[str, Archive], tmp_path: Path, seed: int) -> None:
    harmful, told = campaign(archives, tmp_path, seed + 1, 500)
    assert told == []
    assert harmful >= 400


@pytest.mark.parametrize("name", ["guard", "ranks"])
def test_a_flipped_bit_of_a_manifest_is_the_manifests(
    archives: Mapping[str, Archive], tmp_path: Path, seed: int, name: str
) -> None:
    chosen = random.Random(seed)
    one = archives[name].copied(tmp_path / "one")
    (place,) = [one.root / file for file in one.files[5] if file.endswith("manifest.json")]
    before = place.read_bytes()
    digits = [at for at, byte in enumerate(before) if chr(byte) in "0123456789abcdef"]
    for at in chosen.sample(digits, 3):
        changed = bytearray(before)
        changed[at] ^= 1
        place.write_bytes(changed)
        row = next(row for row in bisect("scan", place.parent, "--json").json["checkpoints"])
        assert (row["step"], row["status"], row["readable"]) == (5, "untested", False), at
        assert "manifest.json cannot be read" in row["reasons"][0]
        assert row["damaged"] == {}
        with pytest.raises(SdcGuardError, match=r"manifest\.json cannot be read"):
            load_checkpoint(place.parent)


def test_what_a_damaged_manifest_hides_is_passed_over_aloud(
    archives: Mapping[str, Archive], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = archives["guard"].copied(tmp_path / "one")
    place = one.root / "run/archive/step=000007/manifest.json"
    place.write_text(place.read_text().replace('"status": "clean"', '"status": "suspect"'))
    assert load_checkpoint(one.root / "run")["step"] == 5
    assert "passed over step=000007, manifest.json cannot be read: it does not fit" in caplog.text


def test_latest_is_no_checkpoint_and_is_told(
    archives: Mapping[str, Archive], tmp_path: Path
) -> None:
    one = archives["guard"].copied(tmp_path / "one")
    latest = one.root / "run/archive/LATEST"
    assert bisect("scan", one.root / "run", "--json").json["remarks"] == []
    for text in ("step=000099\n", "../..", "\0\x1b[2J", "x" * 5000, ""):
        latest.write_text(text)
        (told,) = bisect("scan", one.root / "run", "--json").json["remarks"]
        assert told.startswith("LATEST is damaged: it says ")
        assert told.isprintable()
        assert load_checkpoint(one.root / "run")["step"] == 7
    latest.unlink()
    (told,) = bisect("scan", one.root / "run/archive", "--json").json["remarks"]
    assert told.startswith("LATEST is missing")


def test_a_seal_that_is_gone_is_told(archives: Mapping[str, Archive], tmp_path: Path) -> None:
    one = archives["torch"].copied(tmp_path / "one")
    assert bisect("scan", one.root / "run", "--json").json["remarks"] == []
    (one.root / f"saved/step-5.pt{made.SEAL}").unlink()
    (told,) = bisect("scan", one.root / "run", "--json").json["remarks"]
    assert told == "the seal of step-5.pt is gone: what was sealed cannot be compared any more"


def clean_archives(folder: Path, seed: int, count: int) -> list[str]:
    """Archives without a fault, each another way; who is accused all the same."""
    chosen, told = random.Random(seed), []
    for number in range(count):
        name = ("guard", *SEALED)[number % (1 + len(SEALED))]
        kind = Kind(
            chosen.randrange(1 << 30), chosen.choice((1, 3, 17, 64, 200)),
            chosen.choice(DTYPES), chosen.choice(OPTIMIZERS),
        )  # fmt: skip
        root = folder / str(number)
        root.mkdir()
        one = made.by_guard(root, kind) if name == "guard" else made.sealed(root, name, kind)
        found = wrong(one, Fault("none", frozenset(), harmless=True))
        told += [f"{name}, {kind}: {what}" for what in found]
        answer = bisect("scan", root / "run", "--json")
        assert (answer.code, answer.json["remarks"]) == (0, [])
        shutil.rmtree(root)
    return told


def test_without_a_fault_nobody_is_accused(tmp_path: Path, seed: int) -> None:
    assert clean_archives(tmp_path, seed, 2) == []


@pytest.mark.slow
def test_without_a_fault_nobody_is_accused_sixty_five_times(tmp_path: Path, seed: int) -> None:
    assert clean_archives(tmp_path, seed + 1, 65) == []
