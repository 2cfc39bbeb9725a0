"""Neither Triton nor torch's compiler is imported for tensors in host memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

CODE = """
import sys, torch
def late():
    print(sorted({'triton', 'torch._dynamo'} & set(sys.modules)))
from sdc_guard.digest import digest_tensor
print(digest_tensor(torch.tensor([0], dtype=torch.int32)).h)
late()
from sdc_guard.inject.corrupt import corrupt
plan, log = torch.ones(1, 9).long(), torch.ones(1, 5).long()
corrupt(torch.ones(2), plan, torch.tensor(1), log)
late()
import sdc_guard.guard
from sdc_guard.signals.device_sums import sums_on_device
print(sums_on_device([torch.tensor([3.0, -4.0])], [2]).tolist())
print('triton' in sys.modules)
"""


def test_neither_triton_nor_the_compiler_is_imported_for_tensors_in_host_memory() -> None:
    """Digests, then an injected fault, then sums: in one process, none of which needs them."""
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, cwd=ROOT
    )
    digested, injected, summed = ["0", "[]"], ["[]"], ["[[25.0, 4.0, 7.0, 0.0, 0.0]]", "False"]
    assert done.stdout.splitlines() == [*digested, *injected, *summed]
