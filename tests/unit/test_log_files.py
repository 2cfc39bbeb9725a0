"""Logs of other programs: each format as its own library writes it, and what is no log."""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import math
import pickle
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.tensorboard import SummaryWriter
from transformers import TrainerState

from sdc_guard.detect.series_log import SeriesLog, Steps
from sdc_guard.errors import LogUnreadable, SdcGuardError, UsageError
from sdc_guard.logs.columns import Asked, choose
from sdc_guard.logs.numbers import number
from sdc_guard.logs.order import arrange
from sdc_guard.logs.reading import read_log
from sdc_guard.logs.table import LogTable

NOTHING = Asked()
ROWS = [(step, 3.0 + step / 8, 0.5 + step / 4) for step in range(5)]


def one_table(path: Path, asked: Asked = NOTHING) -> LogTable:
    (table,) = read_log(path, asked)
    return table


def one_log(path: Path, asked: Asked = NOTHING) -> SeriesLog:
    (rows,) = one_table(path, asked).runs.values()
    return rows.log()


def is_rows(log: SeriesLog, rows: Sequence[tuple[int, float, float]] = ROWS) -> bool:
    assert log.loss is not None
    assert log.grad_norm is not None
    found = zip(log.steps.tolist(), log.loss.values, log.grad_norm.values, strict=True)
    return list(found) == list(rows)


def refusal(path: Path, asked: Asked = NOTHING) -> str:
    with pytest.raises(SdcGuardError) as raised:
        read_log(path, asked)
    assert raised.value.exit_code == 2
    return str(raised.value)


def trainer_state(path: Path, history: list[dict[str, Any]]) -> Path:
    state = TrainerState()
    state.log_history = history
    state.save_to_json(str(path))
    return path


def test_a_trainer_state(tmp_path: Path) -> None:
    history: list[dict[str, Any]] = [
        {"epoch": 0.1, "loss": loss, "grad_norm": norm, "learning_rate": 1e-4, "step": step}
        for step, loss, norm in ROWS
    ]
    history[2:2] = [{"epoch": 0.1, "eval_loss": 9.0, "eval_runtime": 1.0, "step": 2}]
    history.append({"train_loss": 3.3, "train_runtime": 2.0, "step": 4, "total_flos": 1.0})
    path = trainer_state(tmp_path / "trainer_state.json", history)
    table = one_table(path)
    assert table.format == "Hugging Face trainer_state"
    assert is_rows(table.runs[""].log())
    assert any("1 row without loss and gradient norm" in note for note in table.notes)
    assert is_rows(one_log(tmp_path))  # the checkpoint's folder


def test_a_trainer_state_with_bare_nan_and_odd_norms(tmp_path: Path) -> None:
    """B08: norms that are missing, a tensor's text, a list, or no number at all."""
    norms = [math.nan, math.inf, "tensor(0.53, device='cuda:0')", [0.25], {"a": 1}, None]
    history = [{"loss": 1.0, "grad_norm": x, "step": step} for step, x in enumerate(norms)]
    history.append({"loss": math.nan, "step": 6})
    path = trainer_state(tmp_path / "state", history)
    assert "NaN" in path.read_text()
    assert "Infinity" in path.read_text()
    table = one_table(path)
    log = table.runs[""].log()
    assert log.loss is not None
    assert log.grad_norm is not None
    np.testing.assert_array_equal(log.grad_norm.values[:4], [math.nan, math.inf, 0.53, 0.25])
    assert log.grad_norm.given.tolist() == [True] * 4 + [False] * 3
    assert log.loss.given.all()
    assert math.isnan(log.loss.values[6])
    assert "grad_norm is no number in 1 row: taken as not logged" in table.notes


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
@pytest.mark.parametrize(
    "names", [("step", "loss", "grad_norm"), ("_step", "train/loss", "train/grad_norm"),
              ("iteration", "lm loss", "grad norm"), ("global_step", "train_loss", "gnorm")],
)  # fmt: skip
def test_tables_of_text(tmp_path: Path, delimiter: str, names: tuple[str, ...]) -> None:
    path = tmp_path / "history.txt"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["time", *names, "text"])
        for row in ROWS:
            writer.writerow([0.5, *row, f"a {delimiter} in it"])
    assert is_rows(one_log(path))


def test_what_is_lost_and_what_is_not_in_a_table(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(
        "epoch,grad_norm,train_loss,val_loss,step\n"
        "0,0.5,3.0,,0\n0,,,2.0,0\n"  # Lightning's: a row of validation
        "0,,3.125,,1\n0,0.75,,,1\n"  # loss and norm of one step in two rows
        "epoch,grad_norm,train_loss,val_loss,step\n"
        "\n0,nan,-inf,,2\n0,1.25,oops,,3\n0,1.5,3."
    )
    table = one_table(path)
    log = table.runs[""].log()
    assert log.steps.tolist() == [0, 1, 2, 3]
    assert log.loss is not None
    assert log.grad_norm is not None
    np.testing.assert_array_equal(log.loss.values, [3.0, 3.125, -math.inf, math.nan])
    np.testing.assert_array_equal(log.grad_norm.values, [0.5, 0.75, math.nan, 1.25])
    assert log.loss.given.tolist() == [True, True, True, False]
    told = " / ".join(table.notes)
    for part in ("last line is cut short", "repeats the names", "1 row without loss",
                 "train_loss is no number in 1 row"):  # fmt: skip
        assert part in told


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    lines = [json.dumps({"_step": step, "train": {"loss": loss, "grad_norm": norm}, "s": "x"})
             for step, loss, norm in ROWS]  # fmt: skip
    path.write_text("\n".join([*lines[:3], "not one", *lines[3:], '{"_step": 5, "train": {"lo']))
    table = one_table(path)
    assert (table.format, table.columns.loss) == ("JSON lines", "train/loss")
    assert is_rows(table.runs[""].log())
    assert "the last line is cut short: left out" in table.notes
    assert "1 lines that are no JSON objects are left out" in table.notes
    path.write_text(json.dumps([{"step": s, "loss": x, "grad_norm": n} for s, x, n in ROWS]))
    assert is_rows(one_log(path))
    path.write_text('{"step": 1, "loss": NaN}\n{"step": 2, "loss": Infinity}\n')
    log = one_log(path)
    assert log.loss is not None
    assert log.loss.odd.all()


def test_event_files(tmp_path: Path) -> None:
    for run in ("a", "b"):
        for part in (ROWS[:3], ROWS[3:]):  # a file for each start of the process
            with SummaryWriter(str(tmp_path / run)) as writer:
                for step, loss, norm in part:
                    writer.add_scalar("train/loss", loss, step)
                    writer.add_scalar("eval/loss", 9.0, step)
                    if step != 1:
                        writer.add_scalar("train/grad_norm", norm, step)
                    writer.add_text("note", "x", step)
    with SummaryWriter(str(tmp_path / "other")) as writer:
        writer.add_scalar("speed", 1.0, 0)
    tables = read_log(tmp_path, NOTHING)
    assert [list(table.runs) for table in tables] == [["a"], ["b"]]
    log = tables[0].runs["a"].log()
    assert log.loss is not None
    assert log.grad_norm is not None
    assert log.steps.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(log.loss.values, [row[1] for row in ROWS])
    assert log.grad_norm.given.tolist() == [True, False, True, True, True]
    first = sorted((tmp_path / "a").iterdir())[0]
    assert one_log(first).steps.tolist() == [0, 1, 2]
    first.write_bytes(first.read_bytes()[:-9])  # killed while it wrote: the last scalar is lost
    assert len(one_log(first)) == 3


def test_event_files_say_which_extra_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("loss", 1.0, 0)
    monkeypatch.setitem(
        __import__("sys").modules, "tensorboard.backend.event_processing.event_file_loader", None
    )
    assert "tensorboard is not installed" in refusal(tmp_path)
    assert '".[logs]"' in refusal(tmp_path)


def test_gzip_and_encodings(tmp_path: Path) -> None:
    text = "step,loss,grad_norm,größe\n" + "".join(f"{s},{x},{n},ü\n" for s, x, n in ROWS)
    for coding in ("utf-8", "utf-8-sig", "utf-16", "latin-1"):
        path = tmp_path / coding
        path.write_bytes(text.encode(coding))
        assert is_rows(one_log(path)), coding
    packed = tmp_path / "log.csv.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    assert is_rows(one_log(packed))
    random = "".join(f"{s},{math.sin(s)},{s}\n" for s in range(30_000))
    packed.write_bytes(gzip.compress(("step,loss,grad_norm\n" + random).encode())[:-2000])
    assert "gzip file is damaged or cut short" in refusal(packed)


def test_decimal_commas_where_semicolons_part_the_fields(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("step;loss;grad_norm\n0;2,5;0,75\n1;1,5;0,5\n")
    assert is_rows(one_log(path), [(0, 2.5, 0.75), (1, 1.5, 0.5)])


def test_runs_in_one_file_are_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(
        "run,step,loss\n" + "".join(f"{r},{s},{r}.5\n" for s in range(3) for r in (1, 2))
    )
    runs = one_table(path).runs
    assert {name: rows.log().steps.tolist() for name, rows in runs.items()} == {
        "1": [0, 1, 2],
        "2": [0, 1, 2],
    }


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12965\n"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (LFS.encode(), "Git LFS pointer; real content (12,965 bytes) not downloaded"),
        (b'{\n "best_metric": null,\n "epochs": 3\n}', "log_history missing"),
        (b'{"model_type": "llama"}', "Not a Hugging Face trainer_state: log_history missing"),
        (b'{"log_history": [{"step": 1, "loss": 2.0}, {"step', "JSON is cut short after"),
        (b'{"log_history": [], "global_step": 0}', "without any row"),
        (b'{"log_history": [{"step": 1, "lo: 2]}', "cut short"),
        (b'{"log_history" [1]}', "no JSON"),
        (b"", "the file is empty"),
        (b" \n\n", "the file is empty"),
        (b"step,loss,grad_norm\n", "only a line of names"),
        (b"1,2.5,0.5\n2,2.4,0.5\n", "has numbers and no names"),
        (b"step,a,b\n1,2,3\n", "no loss and no gradient norm among its columns: step, a, b"),
        (b"step,loss\n1,a\n2,b\n", "no row has a number"),
        (b"just some words\nand more\n", "no loss and no gradient norm"),
        (pickle.dumps({"loss": [1.0]}), "a Python pickle, which is not read"),
        (b"\x10\0\0\0\0\0\0\0" + b'{"a":{"dtype":1}}', "a safetensors file"),
        (b"\x7fELF\0\0\0\1", "a binary file"),
        (b"PAR1....", "a Parquet file"),
        (b"[1, 2]", "without any row"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_log_is_told_in_a_line(tmp_path: Path, content: bytes, told: str) -> None:
    for name in ("trainer_state.json", "log.csv", "weights.pt"):
        path = tmp_path / name
        path.write_bytes(content)
        line = refusal(path)
        assert told in line
        assert str(path) in line
        assert "\n" not in line


def test_a_checkpoint_of_torch_and_a_run_of_a_guard_are_no_logs(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(2)}, tmp_path / "model.csv")
    assert "as torch.save writes" in refusal(tmp_path / "model.csv")
    assert "without event files" in refusal(tmp_path)
    assert "no such file" in refusal(tmp_path / "none")
    (tmp_path / "run.json").write_text("{}")
    assert "sdc-guard watch" in refusal(tmp_path)


def test_columns_are_found_by_their_names_and_named_by_the_user() -> None:
    names = ["Step", "eval/loss", "val_loss", "train/loss", "grad norm", "LR", "mine"]
    found = choose(names, NOTHING, "x")
    assert (found.step, found.loss, found.grad_norm, found.lr) == (
        "Step", "train/loss", "grad norm", "LR",
    )  # fmt: skip
    assert choose(names, Asked(loss="mine"), "x").loss == "mine"
    assert choose(["step", "val_loss"], NOTHING, "x").validation
    with pytest.raises(UsageError, match="no column 'yours'; there are Step"):
        choose(names, Asked(loss="yours"), "x")
    with pytest.raises(LogUnreadable, match="--loss COLUMN"):
        choose(["epoch", "accuracy"], NOTHING, "x")


def test_the_export_of_a_chart_of_wandb() -> None:
    one = ["Step", "calm-sun-3 - train/loss", "calm-sun-3 - train/loss__MIN"]
    assert choose(one, NOTHING, "x").loss == one[1]
    two = [*one, "wild-sea-4 - train/loss"]
    with pytest.raises(LogUnreadable, match="for each of several runs"):
        choose(two, NOTHING, "x")
    assert choose(two, Asked(loss=two[3]), "x").loss == two[3]


@pytest.mark.parametrize(
    ("cell", "value"),
    [("1e-3", 1e-3), (" 2 ", 2.0), ("", None), ("None", None), (None, None), ("-inf", -math.inf),
     ("tensor(1.5)", 1.5), ("tensor([2.], device='cuda:0')", 2.0), ([3], 3.0), (7, 7.0)],
)  # fmt: skip
def test_numbers_of_cells(cell: object, value: float | None) -> None:
    assert number(cell) == value


@pytest.mark.parametrize("cell", ["abc", "1_000", True, {}, [1, 2], "1,2.3", "tensor(x)"])
def test_what_is_no_number(cell: object) -> None:
    with pytest.raises(ValueError, match=r"abc|1_000|True|\{\}|\[1, 2\]|1,2.3|x"):
        number(cell)
    with pytest.raises(ValueError, match="000"):
        number(10**400)


def steps_of(*parts: Any) -> SeriesLog:
    steps: Steps = np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])
    return SeriesLog(steps)


def test_two_writers_are_told_apart_from_a_restart() -> None:
    """C15."""
    at = np.arange(656)
    for log in (
        steps_of(np.repeat(at, 2)),
        steps_of(*(x for b in np.split(at, 16) for x in (b, b))),
    ):
        arranged = arrange(log)
        assert [len(part) for part in arranged.parts] == [656, 656]
        assert all((np.diff(part.steps) == 1).all() for part in arranged.parts)
        assert "duplicate steps: two writers" in arranged.notes[0]
    assert len(arrange(steps_of(np.repeat(at, 8))).parts) == 8
    for restarted in (
        steps_of(range(1000), range(900, 1500), range(1400, 2000)),
        steps_of(range(1000), range(1000)),
        steps_of(*[range(100, 150)] * 20),
        steps_of(*[range(100)] * 6),
    ):
        assert arrange(restarted).parts == (restarted,)


def test_rows_in_another_order_are_put_right() -> None:
    at = np.arange(500)
    for shuffled in (at[::-1], np.random.default_rng(3).permutation(at)):
        arranged = arrange(steps_of(shuffled))
        assert (arranged.parts[0].steps == at).all()
        assert len(arranged.notes) == 1


def test_a_wide_file_is_not_held_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    width, rows = 100, 2000
    with path.open("w") as file:
        file.write("step,loss,grad_norm," + ",".join(f"m{i}" for i in range(width)) + "\n")
        for row in range(rows):
            file.write(f"{row},2.5,0.5" + f",0.{row:06d}" * width + "\n")
    tracemalloc.start()
    assert len(one_log(path)) == rows
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < path.stat().st_size / 4


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=st.binary(max_size=300) | st.text(max_size=300).map(lambda text: text.encode()))
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any"
    for begin in (b"", b"step,loss\n1,2\n", b'{"log_history": [', b'{"step": 1, "loss": 2}\n'):
        path.write_bytes(begin + content)
        with contextlib.suppress(LogUnreadable, UsageError):
            read_log(path, NOTHING)
