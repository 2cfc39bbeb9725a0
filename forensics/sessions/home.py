"""Where the sessions of an archive lie, and which of them is open."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sdc_guard.errors import UsageError
from sdc_guard.store.atomic import publish_text_once

from ..journal import OF_RUNS, Session
from .mark import FOLDER

VARIABLE: Final = "SDC_BISECT_SESSION"
OPEN: Final = "open"  # names the folder of the open session


@dataclass(frozen=True)
class Home:
    """The folder of an archive's sessions, each of them a numbered folder in it.

    Attributes:
        archive: what is searched.
        folder: of the sessions; it need not be there yet.
        named: whether the user named it: it may then be another archive's.
    """

    archive: Path
    folder: Path
    named: bool = False

    @classmethod
    def of(cls, archive: Path, named: Path | None) -> Home:
        """RUN/bisect of a guarded run, PATH/.sdc-bisect of others, or the one that is named."""
        if named is not None:
            return cls(archive, named, True)
        if is_guarded(archive):
            return cls(archive, archive / OF_RUNS)
        return cls(archive, archive / FOLDER)

    def make(self) -> None:
        """Make the folder.

        Raises:
            UsageError: it cannot be made.
        """
        try:
            self.folder.mkdir(parents=self.named, exist_ok=True)
        except OSError as error:
            raise self.not_kept(error) from None

    def not_kept(self, error: OSError) -> UsageError:
        """Why no session can be kept here, and where one can."""
        return UsageError(
            f"no session can be kept there ({error.strerror})",
            where=str(self.folder),
            next_step=f"--session DIR or ${VARIABLE} names another folder",
        )

    def open_session(self) -> Session | None:
        """The open session, or None."""
        try:
            name = (self.folder / OPEN).read_text(encoding="utf-8").strip()
        except OSError:
            return None
        folder = self.folder / name
        return Session(folder) if name.isdigit() and folder.is_dir() else None

    def open(self, session: Session) -> None:
        """Make a session the open one; with the lock held.

        Raises:
            OSError: the folder cannot be written.
        """
        if self.open_session() is None:
            self.close()  # a mark that names nothing
        publish_text_once(self.folder / OPEN, f"{session.folder.name}\n")

    def close(self) -> None:
        """No session is open any more; its folder stays."""
        (self.folder / OPEN).unlink(missing_ok=True)


def is_guarded(archive: Path) -> bool:
    """Whether a guard recorded into this folder."""
    return (archive / "run.json").is_file()
