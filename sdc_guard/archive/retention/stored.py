"""What is known of an archive when it is decided what to keep."""

from __future__ import annotations

from dataclasses import dataclass

from ..manifest import Status


@dataclass(frozen=True)
class Stored:
    """A checkpoint's folder.

    Attributes:
        name: of the folder.
        step: whose result it holds, as the manifest says; of one that is not understood, as its
            name says.
        trace_step: the guard's own number of it.
        attempt: that wrote it.
        created: seconds since the epoch.
        bytes: of its files.
        status: as it was sealed.
        doubted: whether something was proven against it since.
        superseded: whether a later attempt began again before it.
        unknown: why it is not understood; "" if it is.
        copy: whether it is a copy of the weights alone.
        has_weights: whether tensors of it are known to be parameters, so that a copy can be made.
        identity: inode, size and time of modification of its manifest.
    """

    name: str
    step: int
    trace_step: int = 0
    attempt: int = 0
    created: float = 0.0
    bytes: int = 0
    status: Status = "clean"
    doubted: bool = False
    superseded: bool = False
    unknown: str = ""
    copy: bool = False
    has_weights: bool = False
    identity: tuple[int, int, int] = (0, 0, 0)

    @property
    def good(self) -> bool:
        """Whether the run may go back to it: sound, and whole."""
        return self.sound and not self.copy

    @property
    def sound(self) -> bool:
        """Whether what there is of it is right: understood, clean, not doubted, not superseded."""
        clean = self.status == "clean" and not self.doubted
        return clean and not self.superseded and not self.unknown

    @property
    def judged(self) -> str:
        """Its status in a word."""
        if self.unknown:
            return "unknown"
        if self.superseded:
            return "superseded"
        return "suspect" if self.status == "clean" and self.doubted else self.status


@dataclass(frozen=True)
class OpenIncident:
    """An incident that no row of the trace closes.

    Attributes:
        opened, last: the guard's own numbers of the steps of its first and last alert.
        proven: whether an exact comparison is among its evidence: it does not close by quiet.
        attempt: that it belongs to.
    """

    opened: int
    last: int
    proven: bool
    attempt: int


@dataclass(frozen=True)
class Span:
    """Steps that an open search for the first corrupt checkpoint is about, ends included."""

    first: int
    last: int
    why: str


@dataclass(frozen=True)
class Archive:
    """The state of an archive.

    Attributes:
        stored: the checkpoints, in any order.
        latest: the folder that LATEST names; None without one.
        pins: names of folders that are pinned.
        incidents: those that are open.
        spans: of open searches.
        obstacles: why nothing may be deleted; empty if something may.
    """

    stored: tuple[Stored, ...]
    latest: str | None = None
    pins: frozenset[str] = frozenset()
    incidents: tuple[OpenIncident, ...] = ()
    spans: tuple[Span, ...] = ()
    obstacles: tuple[str, ...] = ()
