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


@pytest.mark.parametrize(("width", "needed"), module._WIDTHS)
def test_each_width_is_zlibs(
    width: int, needed: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = module._compiled(width, needed)
    if compiled is None:
        pytest.skip("because this processor has no such instruction")
    monkeypatch.setattr(module, "_fold", lambda: compiled)
    data = bytes(value * value % 253 for value in range(9000))
    for size in (4096, 4097, 4351, 4352, 8999):
        assert crc32(data[:size], 0xDEADBEEF) == zlib.crc32(data[:size], 0xDEADBEEF)


def test_the_constants_are_those_of_the_paper() -> None:
    assert module._constants(512) == (0x154442BD4, 0x1C6E41596)
    assert module._constants(128) == (0x1751997D0, 0x0CCAA009E)
