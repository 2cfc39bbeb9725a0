"""What docs/getting-started.md shows, done as it stands: its scripts, its plan, its commands."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import preloaded
import pytest
from docs_examples import Shell, console_examples, run_examples

PAGE = Path(__file__).resolve().parents[2] / "docs" / "getting-started.md"


def process(*words: str) -> tuple[int, str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [preloaded.python(), *words], capture_output=True, text=True, env=environment, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.returncode, done.stdout


def torchrun(*words: str) -> tuple[int, str]:
    return process("-m", "torch.distributed.run", "--standalone", *words)


def test_the_page_is_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PAGE.parents[1]))
    text = PAGE.read_text(encoding="utf-8")
    train, train_ddp = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (plan,) = re.findall(r"^```toml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    for name, content in (("train.py", train), ("train_ddp.py", train_ddp), ("plan.toml", plan)):
        (tmp_path / name).write_text(content, encoding="utf-8")
    shell = Shell({"python": process, "torchrun": torchrun}, python=preloaded.python())
    wrong = run_examples(console_examples(text), tmp_path, shell)
    assert not wrong, "\n\n".join(wrong)
