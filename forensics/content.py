"""What a checkpoint holds, whatever its format: the terms of it."""

from __future__ import annotations

from sdc_guard.archive.content import Content, Integrity, StoredTensor

__all__ = ["Content", "Integrity", "StoredTensor"]
