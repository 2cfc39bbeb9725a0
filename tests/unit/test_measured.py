"""A tensor's values by their bits, against torch's own operations on them."""

from __future__ import annotations

import pytest
import torch

from forensics.measured import Measured, measure

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e5m2)


def drawn(dtype: torch.dtype, case: str) -> torch.Tensor:
    """A tensor of 300 x 1000 numbers, more than a piece."""
    numbers = torch.randn(300, 1000, generator=torch.Generator().manual_seed(7)) * 0.02
    if case == "zeros":
        numbers[2, 100:400] = 0.0
        numbers[5, ::3] = -0.0
        numbers[9] = 0.25
    if case == "odd":
        numbers[0, 3], numbers[1, 4:6], numbers[299, 999] = torch.nan, torch.inf, -torch.inf
    if case == "mask":
        numbers = (numbers > 0).float()
        numbers[numbers == 0] = -torch.inf
    return numbers.to(dtype)


def expected(tensor: torch.Tensor) -> dict[str, float]:
    """By plain operations in float64, of the whole tensor."""
    wide = tensor.double()
    finite = wide[torch.isfinite(wide)].abs()
    return {
        "numel": tensor.numel(),
        "nan": int(torch.isnan(wide).sum()),
        "infinite": int(torch.isinf(wide).sum()),
        "zeros": int((wide == 0).sum()),
        "largest": float(finite.max()),
        "rows": 300,
        "constant_rows": int((wide == wide[:, :1]).all(dim=1).sum()),
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", ["plain", "zeros", "odd", "mask"])
def test_counts_and_sizes_are_those_of_plain_operations(dtype: torch.dtype, case: str) -> None:
    tensor = drawn(dtype, case)
    seen: list[bytes] = []
    found = measure(tensor, lambda piece: seen.append(piece.tobytes()))
    assert {name: getattr(found, name) for name in expected(tensor)} == expected(tensor)
    wide = tensor.double().abs()
    typical = wide[torch.isfinite(wide) & (wide > 0)].median()
    assert found.typical == pytest.approx(float(typical), rel=0.1)
    assert b"".join(seen) == tensor.view(torch.uint8).numpy().tobytes()


def test_zeros_in_a_row_and_masks() -> None:
    assert measure(drawn(torch.float32, "zeros")).zero_run == 300
    assert measure(drawn(torch.bfloat16, "zeros")).zero_run == 300
    assert measure(drawn(torch.float8_e5m2, "zeros")).zero_run == 300
    assert measure(drawn(torch.float32, "mask")).mask
    assert not measure(drawn(torch.float32, "odd")).mask


def test_a_transposed_tensor_is_read_row_by_row() -> None:
    tensor = drawn(torch.float32, "zeros").T
    assert measure(tensor) == measure(tensor.contiguous())


def test_one_number_and_none_but_zeros() -> None:
    assert measure(torch.tensor([2.5])) == Measured(1, 0, 0, 0, 2.5, 2.5, True, 0, 0, 0)
    assert measure(torch.zeros(100)) == Measured(100, 0, 0, 100, 0.0, 0.0, True, 100, 0, 0)
