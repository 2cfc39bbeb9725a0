"""What a Ray worker is sent: a function that needs nothing installed to say what it lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Outcome = tuple[Any, ...]
"""("answer", it), ("refused", (class, what, where, next step)) or ("unfit", reason, machine)."""


def task() -> Callable[[bytes, str], Outcome]:
    """The function that runs on a worker.

    It is a local one: Ray sends these by their code. One of a module would be sent by its name,
    and fail before its first line on a worker without this package.
    """

    def judge(payload: bytes, folder: str) -> Outcome:
        """Call what is pickled, in `folder`, which relative paths are meant from."""
        import os
        import pickle
        import socket

        try:
            os.chdir(folder)
            call, item = pickle.loads(payload)
        except (ImportError, AttributeError) as error:
            return "unfit", f"{type(error).__name__}: {error}", socket.gethostname()
        except OSError as error:
            return "unfit", f"{error.strerror}: {folder}", socket.gethostname()
        from sdc_guard.errors import SdcGuardError

        try:
            return "answer", call(item)
        except SdcGuardError as error:
            return "refused", (type(error), error.what, error.where, error.next_step)

    return judge
