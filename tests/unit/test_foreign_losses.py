"""Losses of other programs' logs: exact where they are printed in full, and told where not."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from transformers import TrainerState

from forensics.foreign_losses import read_losses
from sdc_guard.errors import LogUnreadable, UsageError

Row = tuple[int, float, float]


@pytest.fixture
def rows(rng: np.random.Generator) -> list[Row]:
    values = rng.uniform(0.5, 9, (40, 2)).astype(np.float32).tolist()
    return [(step, *pair) for step, pair in enumerate(values, start=1)]


def as_csv(path: Path, rows: Iterable[tuple[object, ...]], *names: str) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names or ("step", "loss", "grad_norm"), *rows])
    return path


def mapping(rows: Iterable[Row]) -> dict[int, tuple[float, float]]:
    return {step: (loss, norm) for step, loss, norm in rows}


def test_every_format_to_the_bit(tmp_path: Path, rows: list[Row]) -> None:
    expected = mapping(rows)
    assert dict(read_losses(as_csv(tmp_path / "log.csv", rows)).losses) == expected
    lines = [json.dumps({"step": s, "loss": a, "grad_norm": b}) for s, a, b in rows]
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    assert dict(read_losses(tmp_path / "log.jsonl").losses) == expected
    history = [{"step": s, "loss": a, "grad_norm": b, "epoch": 0.1} for s, a, b in rows]
    history.insert(3, {"step": 3, "eval_loss": 7.0})
    state = TrainerState(log_history=[*history, {"train_loss": 1.0, "train_runtime": 1, "step": 4}])
    state.save_to_json(str(tmp_path / "trainer_state.json"))
    found = read_losses(tmp_path / "trainer_state.json")
    assert dict(found.losses) == expected
    assert not any("rounded" in note or "mean" in note for note in found.notes)


def test_what_was_not_logged_is_none_and_no_zero(tmp_path: Path) -> None:
    plain = read_losses(as_csv(tmp_path / "a.csv", [(1, 2.5), (2, 2.25)], "step", "loss"))
    assert dict(plain.losses) == {1: (2.5, None), 2: (2.25, None)}
    odd = read_losses(as_csv(tmp_path / "b.csv", [(1, "nan", 1.5), (2, 2.25, ""), (3, "inf", 1)]))
    assert math.isnan(odd.losses[1][0] or 0)
    assert odd.losses[2] == (2.25, None)
    assert odd.losses[3] == (math.inf, 1.0)


def test_two_writers_of_one_log_are_told_and_not_mixed(tmp_path: Path, rows: list[Row]) -> None:
    others = [(step, loss + 0.001, norm) for step, loss, norm in rows]
    lines = [row for pair in zip(rows, others, strict=True) for row in pair]
    found = read_losses(as_csv(tmp_path / "log.csv", lines))
    assert [dict(one) for one in found.writers] == [mapping(rows), mapping(others)]
    assert any(note.startswith("duplicate steps: two writers") for note in found.notes)
    with pytest.raises(LogUnreadable, match="Duplicate steps: two writers"):
        _ = found.losses


def test_a_restart_lets_the_later_row_count(tmp_path: Path, rows: list[Row]) -> None:
    again = [(step, loss + 1, norm) for step, loss, norm in rows[30:]]
    found = read_losses(as_csv(tmp_path / "log.csv", [*rows, *again]))
    assert dict(found.losses) == mapping([*rows[:30], *again])
    assert "10 steps come again, as after a restart: the later row counts" in found.notes


def test_rounded_losses_are_told(tmp_path: Path, rows: list[Row]) -> None:
    short = [(step, round(loss, 4), norm) for step, loss, norm in rows]
    found = read_losses(as_csv(tmp_path / "log.csv", short))
    assert "losses are rounded to 4 decimals: no smaller difference shows" in found.notes
    assert not any("gradient norms" in note for note in found.notes)
    shortest = [(step, str(np.float32(loss)), norm) for step, loss, norm in rows]
    found = read_losses(as_csv(tmp_path / "log.csv", shortest))
    assert not any("rounded" in note for note in found.notes)
    for step, loss, _ in rows:  # as many digits as a float32 has
        assert np.float32(found.losses[step][0]) == np.float32(loss)


def test_rows_of_several_steps_are_told(tmp_path: Path, rows: list[Row]) -> None:
    found = read_losses(as_csv(tmp_path / "log.csv", [(10 * s, a, b) for s, a, b in rows]))
    assert "a row every 10 steps or more: its loss may be the mean of them" in found.notes


def test_what_cannot_be_told_is_asked(tmp_path: Path) -> None:
    both = as_csv(tmp_path / "r.csv", [(1, 2.0, "a"), (1, 3.0, "b")], "step", "loss", "run")
    with pytest.raises(UsageError, match="several runs: a, b"):
        read_losses(both)
    assert dict(read_losses(both, run="b").losses) == {1: (3.0, None)}
    with pytest.raises(UsageError, match="no run 'c'"):
        read_losses(both, run="c")
    (tmp_path / "trainer_state.json").write_text('{"a": 1}')
    with pytest.raises(LogUnreadable, match="log_history missing"):
        read_losses(tmp_path / "trainer_state.json")
