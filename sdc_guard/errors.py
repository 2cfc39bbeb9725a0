"""Every error that SDC Guard raises on purpose.

Each says what is wrong, where, and what to do next, and carries the exit code that the command
lines use, so that no caller has to parse a message.
"""

from __future__ import annotations

from .shown import shown

EXIT_USAGE = 2
EXIT_RANGE_ONLY = 3
EXIT_NOT_REPRODUCIBLE = 4
EXIT_ARCHIVE_INCOMPLETE = 5
EXIT_LAKE_UNAVAILABLE = 6
EXIT_NOT_INJECTED = 7
EXIT_INTERRUPTED = 130  # 128 and the number of SIGINT, as shells have it


class SdcGuardError(Exception):
    """Base of all errors raised on purpose.

    Args:
        what: what is wrong, one clause.
        where: the file, folder, step or tensor that it is about; may be empty.
        next_step: what the reader can do about it; may be empty.
    """

    exit_code = EXIT_USAGE

    def __init__(self, what: str, *, where: str = "", next_step: str = "") -> None:
        super().__init__(what, where, next_step)
        self.what = what
        self.where = where
        self.next_step = next_step

    def __str__(self) -> str:
        line = " ".join(self.what.split())
        if self.where:
            line += f": {self.where}"  # a name, whose line breaks are part of it
        if self.next_step:
            line += f" ({' '.join(self.next_step.split())})"
        return shown(line)

    def as_dict(self) -> dict[str, str]:
        """The `error` object of the commands' JSON output."""
        return {"what": self.what, "where": self.where, "next": self.next_step}


class UsageError(SdcGuardError):
    """An argument that cannot be right, whatever is on disk."""


def no_permission(where: object) -> UsageError:
    """That a file or folder may not be read, which is not that it is missing."""
    return UsageError(
        "no permission",
        where=str(where),
        next_step="have it made readable, or run this as its owner",
    )


class RunNotFound(SdcGuardError):
    """No run folder there, an empty one, or one that no guard ever wrote to."""


class RunFormatError(SdcGuardError):
    """A run folder whose description is damaged or of a version that is not understood."""


class LogUnreadable(SdcGuardError):
    """A training log that is damaged, of no known format, or without anything to judge."""


class CheckpointUnreadable(SdcGuardError):
    """A checkpoint that is missing, truncated or of another format: it cannot be judged."""

    exit_code = EXIT_ARCHIVE_INCOMPLETE


class ReadFailed(CheckpointUnreadable):
    """A checkpoint that could not be read for a cause outside of it: nothing is known of its bytes.

    A device or a network that fails, missing permission, too little memory.
    """


class CheckpointMismatch(SdcGuardError):
    """A checkpoint whose bytes are not those that were recorded when it was written."""

    exit_code = EXIT_ARCHIVE_INCOMPLETE


class ArchiveIncomplete(SdcGuardError):
    """The archive holds too little to answer: no checkpoint, or none that can be judged."""

    exit_code = EXIT_ARCHIVE_INCOMPLETE


class ArchiveUnreachable(ArchiveIncomplete):
    """An archive behind a URL whose store does not answer, or stopped answering: try again."""


class CommandFailed(SdcGuardError):
    """A command of the user's (a resume, an oracle) that failed by itself: no evidence."""


class Interrupted(SdcGuardError):
    """Ctrl-C: what was done until then is kept."""

    exit_code = EXIT_INTERRUPTED


class SessionDamaged(SdcGuardError):
    """A bisect session whose journal cannot be read, not merely cut short at its end."""


class NotReproducible(SdcGuardError):
    """A replay whose differences cannot be told from a difference of the environment."""

    exit_code = EXIT_NOT_REPRODUCIBLE


class InjectionError(SdcGuardError):
    """A fault that cannot be injected as asked, or that did not take effect."""


class TrainingHalted(SdcGuardError):
    """Raised out of `optimizer.step()` by the policy `halt`, before the step is applied."""

    exit_code = 1


class LakeUnavailable(SdcGuardError):
    """A lake whose catalog or data cannot be reached or written at this moment: try again."""

    exit_code = EXIT_LAKE_UNAVAILABLE
