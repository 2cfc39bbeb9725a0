"""All that a guard does with checkpoints: saving, sealing, comparing and keeping them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from .archive.retention.keeper import Keeper
from .archive.sealing.seal_file import Seal
from .attempt import Place
from .checkpoints import Checkpoints
from .moment import Moment
from .options import ArchiveFormat, Keep
from .options import kept_counts as both
from .recorder import Recorder
from .safely import Safely
from .seals import Seals
from .shadow_gate import SEVERAL, ShadowGate
from .signals.shadow import LossFunction
from .store.writer import Health, Writer


class GuardArchive:
    """The checkpoints of one guard.

    Args:
        run: the run's folder.
        model: that is trained.
        place: of this process when the guard was made.
        recorder: knows the digests and the incidents.
        writer: of the trace.
        health: where troubles are counted.
        tell: says once what cannot be compared.
        warn: whether to log why a checkpoint is not clean.
        replayed: whether the run is a replay: it saves, but seals, compares and deletes nothing.
        shadow: see `Guard`, as are the others.

    Attributes:
        seals: whether what the script saved is sealed: not in a replay.
        untold: what cannot be done here, a line each, to be told when the guard is attached.
    """

    def __init__(
        self,
        run: Path,
        model: torch.nn.Module,
        place: Place,
        recorder: Recorder,
        writer: Writer,
        health: Health,
        tell: Callable[[str], None],
        *,
        warn: bool,
        replayed: bool,
        shadow: tuple[Any, LossFunction] | None,
        verify_archive: int | None,
        keep: Keep,
        archive_format: ArchiveFormat,
    ) -> None:
        self._recorder, self._health = recorder, health
        self.seals = not replayed
        self.untold: list[str] = []
        keeper = None if keep is None or replayed else Keeper(run, *both(keep))
        self._checkpoints = Checkpoints(
            run, model, recorder, writer, warn=warn, keeper=keeper, archive_format=archive_format
        )
        self._seals = Seals(run, recorder, writer, warn=warn)
        self._gate: ShadowGate | None = None
        if verify_archive is None or shadow is None or replayed:
            return
        if place.world_size == 1:
            self._gate = ShadowGate(run, model, shadow, verify_archive, tell, warn=warn)
        else:
            self.untold.append(SEVERAL)

    def save(
        self,
        objects: Mapping[str, Any],
        now: Moment,
        *,
        wait: bool,
    ) -> Path | None:
        """Save as `Guard.checkpoint` does, and compare it with the training if it is its turn.

        Args:
            objects: by name.
            now: when.
            wait: for files of several ranks to be written.

        Returns:
            The folder, if it is known by then.

        Raises:
            OSError, RuntimeError, NotSaved: see `Checkpoints.save`.
        """
        folder = self._checkpoints.save(objects, now, wait=wait)
        if self._gate is not None and folder is not None:
            with Safely(self._health, "comparing a checkpoint"):
                self._gate.compare_if_due(folder, objects, self._recorder.checkpoint)
        return folder

    def seal(self, path: Path, now: Moment, *, wait: bool) -> Seal | None:
        """Seal what the script saved by itself; arguments and result as `Guard.seal` has them.

        On another rank than 0: leave for that what it needs to seal shards.
        """
        if now.place.rank != 0:
            self._seals.announce(now)
            return None
        return self._seals.seal(path, now, wait=wait)

    def written(self, timeout: float | None) -> Path | None:
        """Wait for what is written in the background; the folder, if it was committed."""
        return self._checkpoints.wait(timeout)

    def step_ended(self) -> None:
        """Record the seals that are done by now."""
        self._seals.collect()

    def close(self) -> None:
        """Wait for what is under way, within bounds, and record it."""
        self._checkpoints.close()
        self._seals.close()
