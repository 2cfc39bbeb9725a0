"""A saved checkpoint loaded into a copy of the model: does it give the loss that the training has?

All of it runs in the training's own thread. A forward pass saves and puts back the random
generators and torch's settings of compilation, which are those of the whole process: beside a
training step it would change them under it.
"""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from .archive.confirmations import AWAITED, Confirmation, add_confirmation
from .archive.convictions import Conviction, add_conviction
from .archive.manifest import SHARDED, Manifest, Status
from .archive.restore import load_payload
from .signals.shadow import LossFunction, ShadowPass, unwrapped

_log = logging.getLogger("sdc_guard")

NO_MODEL: Final = (
    "nothing in the checkpoint is this model, or it is no single file, so its loss is not compared"
)
SEVERAL: Final = "of several ranks, checkpoints are not compared by their loss"


class ShadowGate:
    """Compares some of a run's checkpoints by the loss of the pinned batch.

    Args:
        run: the run's folder.
        model: that is trained; unwrapped for the copy.
        shadow: the batch and the loss function.
        every: of so many checkpoints the first is compared.
        tell: says once what cannot be compared.
        warn: whether to log why a checkpoint is not clean.
    """

    def __init__(
        self,
        run: Path,
        model: torch.nn.Module,
        shadow: tuple[Any, LossFunction],
        every: int,
        tell: Callable[[str], None],
        *,
        warn: bool,
    ) -> None:
        self._archive = run / "archive"
        self._model, self._every, self._tell, self._warn = model, every, tell, warn
        self._shadow = ShadowPass(*shadow)
        self._seen = 0

    def compare_if_due(
        self, folder: Path, objects: Mapping[str, Any], record: Callable[..., None]
    ) -> None:
        """Compare a checkpoint that was just saved, if it is its turn and it is clean.

        Its manifest says "untested" until that is done. What is found is appended to the archive.

        Args:
            folder: of the checkpoint.
            objects: that were saved, by name.
            record: takes step and the columns of the table "checkpoints".

        Raises:
            OSError, CheckpointUnreadable: manifest or archive cannot be read or written.
        """
        self._seen += 1
        if (self._seen - 1) % self._every:
            return
        manifest = Manifest.read(folder)
        if manifest.status != "clean":
            return
        if manifest.format == SHARDED or _name_of(objects, self._model) is None:
            self._tell(NO_MODEL)
            return
        replace(manifest, status="untested", reasons=(AWAITED,)).write(folder)
        status, reason = self._compared(folder, manifest, objects)
        if status != "clean" and self._warn:
            _log.warning(
                "SDC Guard: checkpoint of step %d is %s: %s", manifest.step, status, reason
            )
        record(
            manifest.step,
            path=str(folder.relative_to(self._archive.parent)),
            format="torch",
            bytes=manifest.bytes,
            status=status,
            reason=reason,
        )

    def _compared(
        self, folder: Path, manifest: Manifest, objects: Mapping[str, Any]
    ) -> tuple[Status, str]:
        """What a checkpoint is now, and why."""
        try:
            here = self._shadow(self._model).losses.tolist()
            there = self._shadow(self._loaded(folder, objects)).losses.tolist()
        except Exception as error:  # noqa: BLE001 - because a model's own code raises errors of every kind
            why = " ".join(f"{type(error).__name__}: {error}".split())
            return "untested", f"its shadow loss could not be compared: {why}"
        if not math.isfinite(here[0]):
            return "untested", f"the shadow loss of the training is {here[0]}, so it says nothing"
        if here[0] != here[1] or (math.isfinite(there[0]) and there[0] != there[1]):
            return "untested", "the shadow loss does not repeat here, so it is not compared"
        if here[0] == there[0]:
            text = f"loaded into a copy, it gives the shadow loss of the training, {here[0]!r}"
            identity = folder.name, manifest.step, manifest.attempt
            add_confirmation(self._archive, Confirmation(*identity, "shadow", text, time.time()))
            return "clean", ""
        text = f"loaded into a copy, its shadow loss is {there[0]!r}, the training's {here[0]!r}"
        conviction = Conviction(manifest.attempt, None, manifest.step, text, folder.name)
        add_conviction(self._archive, conviction)
        return "suspect", text

    def _loaded(self, folder: Path, objects: Mapping[str, Any]) -> torch.nn.Module:
        """A copy of the model, on its device, with what is in the file."""
        name = _name_of(objects, self._model)
        state = load_payload(folder)[str(name)]
        made = copy.deepcopy(unwrapped(self._model))
        own = made.state_dict().keys()
        if state.keys() != own:  # of a wrapper, which puts a prefix before the names
            state = {key.removeprefix("module.").replace("_orig_mod.", ""): value
                     for key, value in state.items()}  # fmt: skip
        with torch.no_grad():
            for value in made.state_dict().values():
                if isinstance(value, torch.Tensor):
                    value.fill_(math.nan if value.is_floating_point() else 0)
        made.load_state_dict(state)
        return made


def _name_of(objects: Mapping[str, Any], model: torch.nn.Module) -> str | None:
    """Under which name a model is saved; None if it is not."""
    inner = unwrapped(model)
    for name, value in objects.items():
        if isinstance(value, torch.nn.Module) and unwrapped(value) is inner:
            return name
    return None
