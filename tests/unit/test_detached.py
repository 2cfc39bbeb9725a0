"""A copied guard is called by a script as the original is."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sdc_guard import Guard
from sdc_guard.detached import DetachedGuard
from sdc_guard.integrations.lightning_hooks import GuardHooks

CALLED = [
    "observe", "refresh", "checkpoint", "seal", "checkpoint_written", "flush", "close",
]  # fmt: skip


@pytest.mark.parametrize("name", CALLED)
def test_it_takes_the_arguments_of_a_guard(name: str) -> None:
    def taken(method: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
        found = inspect.signature(method).parameters.values()
        return [(one.name, one.kind, one.default) for one in found]

    assert taken(getattr(DetachedGuard, name)) == taken(getattr(Guard, name))


def test_a_copy_saves_nothing_and_raises_nothing(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    with Guard(model, torch.optim.SGD(model.parameters()), run=tmp_path / "run") as guard:
        other = copy.deepcopy(guard)
        assert other.checkpoint({"model": model}, 1, wait=False) is None
        assert other.checkpoint_written() is None
    assert not list(tmp_path.glob("run/archive/step=*"))


def test_a_copy_of_a_lightning_trainer_saves_without_a_guard(tmp_path: Path) -> None:
    hooks = copy.deepcopy(GuardHooks(tmp_path / "run"))
    assert hooks.guards == []
    file = tmp_path / "a.ckpt"
    assert hooks._save_checkpoint(lambda path: f"saved {path}", file) == f"saved {file}"
    assert list(tmp_path.iterdir()) == []
