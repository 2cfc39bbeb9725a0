"""What takes seconds to load and only some pages need: loaded apart, while they say so.

Reading checkpoints takes torch. A server that loaded it first would be slow to show its first page,
and a page that loaded it would be without content for seconds.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

NEEDED_BY: Final = ("Bisect", "Act")  # titles of pages
_MODULES: Final = ("torch", "app.reported", "app.searching.starting")


@dataclass
class Loading:
    """Modules that a thread of its own loads, once.

    Args:
        modules: in the order in which they are loaded.
        load: loads one.
    """

    modules: Sequence[str]
    load: Callable[[str], Any] = importlib.import_module
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _done: threading.Event = field(default_factory=threading.Event)
    _timer: threading.Timer | None = None
    _begun: bool = False

    def later(self, seconds: float) -> None:
        """Begin in so many seconds, unless a page needs it before."""
        with self._lock:
            self._timer = threading.Timer(seconds, self.begin)
            self._timer.daemon = True
            self._timer.start()

    def begin(self) -> None:
        """Begin now, unless it has begun."""
        with self._lock:
            if self._begun:
                return
            self._begun = True
            if self._timer is not None:
                self._timer.cancel()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        try:
            for name in self.modules:
                self.load(name)
        except Exception:  # noqa: BLE001 - because the page that needs it says why itself
            pass
        finally:
            self._done.set()

    def is_awaited(self) -> bool:
        """Whether a page has to wait; never where nobody asked for loading apart."""
        with self._lock:
            asked = self._begun or self._timer is not None
        if asked and not self._done.is_set():
            self.begin()
            return True
        return False

    @property
    def is_done(self) -> bool:
        """Whether it is over."""
        return self._done.is_set()


of_server: Final = Loading(_MODULES)
