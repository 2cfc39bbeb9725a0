"""CRC-32 by multiplication without carry against zlib's."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdc_guard.digest import crc32 as module
from sdc_guard.digest.crc32 import crc32


@settings(max_examples=60, deadline=None)
@given(
    st.binary(max_size=200), st.integers(0, 12000), st.integers(0, 2**32 - 1), st.integers(0, 70)
)
def test_it_is_zlibs(seed: bytes, size: int, value: int, shift: int) -> None:
    data = (seed or b"\0") * (size // max(1, len(seed)) + 1)
    view = memoryview(data)[shift:]
    assert crc32(view, value) == zlib.crc32(view, value)


def test_pieces_add_up() -> None:
    data = bytes(range(256)) * 300
    assert crc32(data[5000:], crc32(data[:5000])) == zlib.crc32(data)
    assert crc32(b"123456789") == 0xCBF43926  # the check value of the CRC's definition


def test_without_the_instruction_it_is_zlibs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_fold", lambda: None)
    assert crc32(bytes(10000)) == zlib.crc32(bytes(10000))
