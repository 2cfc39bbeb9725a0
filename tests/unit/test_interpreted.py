"""The kernels for CUDA under Triton's interpreter, on CPU tensors: all of their tests at once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

HERE = Path(__file__).resolve().parent
FILES = ("interpreted_kernels", "interpreted_digests", "interpreted_injection")


def test_the_interpreted_kernels_make_what_their_references_do(seed: int, tmp_path: Path) -> None:
    """In a process of its own: whether Triton interprets is settled when it is first imported."""
    pytest.importorskip("triton", reason="needs triton, which CUDA builds of torch bring")
    report = tmp_path / "report.xml"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}",
         *(str(HERE / f"{name}.py") for name in FILES)],
        env={
            **os.environ,
            "TRITON_INTERPRET": "1",
            "TRITON_CACHE_DIR": str(tmp_path),
            "SDC_GUARD_TEST_SEED": str(seed),
        },
        cwd=HERE.parents[1], capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert "skipped" not in done.stdout
    cases = ElementTree.parse(report).iter("testcase")
    assert Counter(case.attrib["classname"].split(".")[-1] for case in cases).keys() == set(FILES)
