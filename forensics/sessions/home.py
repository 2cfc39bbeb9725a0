"""Where the sessions of an archive lie, and which of them is open."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sdc_guard.errors import UsageError
from sdc_guard.store.atomic import publish_text_once

from ..journal import OF_RUNS, Session
from ..locations import is_local
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
        """RUN/bisect of a guarded run, PATH/.sdc-bisect of others, or the one that is named.

        Of an archive behind a URL it is in the user's folder of state.
        """
        if named is not None:
            return cls(archive, named, True)
        if not is_local(archive):
            return cls(archive, _of_url(str(archive)))
        if is_guarded(archive):
            return cls(archive, archive / OF_RUNS)
        return cls(archive, archive / FOLDER)

    def make(self) -> None:
        """Make the folder.

        Raises:
            UsageError: it cannot be made.
        """
        try:
            self.make_folder()
        except OSError as error:
            raise self.not_kept(error) from None

    def make_folder(self) -> None:
        """Make the folder, and those above it unless they are the archive's own.

        Raises:
            OSError: it cannot be made.
        """
        self.folder.mkdir(parents=self.named or not is_local(self.archive), exist_ok=True)

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


def _of_url(url: str) -> Path:
    """The folder for an archive that nothing is written into, by its URL."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    readable = re.sub(r"[^A-Za-z0-9.-]+", "-", url)[-60:].strip("-.")
    mark = hashlib.blake2b(url.encode(), digest_size=4).hexdigest()
    return Path(state).expanduser() / "sdc-guard" / "bisect" / f"{readable}-{mark}"


def is_guarded(archive: Path) -> bool:
    """Whether a guard recorded into this folder."""
    return (archive / "run.json").is_file()
