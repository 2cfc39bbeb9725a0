"""What a run is called in a lake."""

from __future__ import annotations

from hashlib import sha256

from ..store.run_file import RunFile


def run_id(run_file: RunFile) -> str:
    """The run's name and eight digits, the same on every node and after every resume.

    The digits are of the SHA-256 of the name and of the moment at which the first attempt began,
    both from run.json: another run of the same name has another identity.
    """
    started = repr(run_file.attempts[0].started) if run_file.attempts else ""
    digits = sha256(f"{run_file.name}\n{started}".encode()).hexdigest()[:8]
    return f"{run_file.name}-{digits}"
