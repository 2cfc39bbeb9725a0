"""Whether this process is a fork of another one, known without asking the system.

A call of the system's is a few microseconds between the kernels of a training, and hooks ask this
several times a step.
"""

from __future__ import annotations

import os


class _Process:
    forks = 0  # on the way to this process from one that loaded this module


def generation() -> int:
    """A number that another process has which was forked from this one."""
    return _Process.forks


def _forked() -> None:
    _Process.forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
