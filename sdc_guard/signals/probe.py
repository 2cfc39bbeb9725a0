"""The probe: a small fixed computation, asked of a device again and again.

Weights and inputs are integers from a formula, divided by a power of two: exact in every format
that is used, and equal on every machine and version, whatever torch's generators do. The answer
has two parts. Products of matrices of integers below 128 have elements below 2²⁴, so that float32
holds every partial sum exactly: in any order of summation, and with TF32 or bfloat16 inputs too,
there is one right result, and it is known beforehand. A transformer block, forward and backward,
also exercises division, exponentials and reductions; its last bits depend on device, versions
and settings, so that it is compared with what the same environment answered before.

Attention is spelled out as products and softmax: fused kernels may add up gradients in an order
that changes from call to call, on a sound device too.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from ..detect.answers import Known
from ..digest import digest_rows
from ..digest.lanes import K
from ..digest.reference import mix64_tensor, signed64
from .probe_model import WEIGHTS, Sizes, block, shapes

VERSION: Final = 1  # of the questions: answers to another version's are never compared

HOST: Final = Sizes(tokens=24, width=64, heads=4, products=((1, 65, 127, 33), (1, 128, 192, 96)))
# large enough for a tile of each product on most of a device's multiprocessors
DEVICE: Final = Sizes(
    tokens=512, width=256, heads=4, products=((1, 65, 127, 33), (8, 512, 512, 512))
)
# H of all numbers of the question, and of each product, by integer arithmetic
KNOWN: Final = {
    HOST: Known(0x7713359F8E3CFEE0, (0x4A9073422D176DC2, 0x5960354A3CFAB38B)),
    DEVICE: Known(0x6E3D61A9931BC02C, (0xDB5C6E3676BE2426, 0x18C634E0CAEE413C)),
}

_ALIGNED = 16  # elements: host memory is aligned as torch aligns it, whatever comes before


@dataclass(frozen=True)
class PendingAnswer:
    """An answer that may still be on its way from the device.

    Attributes:
        rows: int64, shape (parts, 3): digests, in the order of `Known.parts`.
        numbers: float64: the losses of the two inputs, then the norm of each weight's gradient.
    """

    rows: torch.Tensor
    numbers: torch.Tensor


class Probe:
    """A question to one device, for a block in one dtype. It holds a few MB of memory there.

    Args:
        device: a CPU or a CUDA device; copies to it are not waited for.
        dtype: what the block computes in; the products of integers are always float32.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        self._sizes = HOST if device.type == "cpu" else DEVICE
        self._dtype = dtype
        self._shapes = shapes(self._sizes)
        self._uncompiled: Callable[[], PendingAnswer] | None = None
        with _apart(device):
            self.numbers = _upload(_integers(_count(self._shapes)), device)

    @property
    def known(self) -> Known:
        """What is known of the answer beforehand."""
        return KNOWN[self._sizes]

    def ask(self) -> PendingAnswer:
        """Compute the answer, and wait for nothing.

        Generators, grad mode, autocast and its cache are as they were afterwards.
        """
        # an optimizer whose step is compiled would have this compiled as well; where nothing is
        # compiled, saying so would import the compiler, which takes seconds
        if self._uncompiled is None and "torch._dynamo" in sys.modules:
            self._uncompiled = torch.compiler.disable(self._ask)  # type: ignore[no-untyped-call] # torch has no types here
        return (self._uncompiled or self._ask)()

    def _ask(self) -> PendingAnswer:
        with _apart(self.numbers.device):
            named = _cut(self.numbers, self._shapes)
            products = [
                torch.bmm(_batch(named[f"left {i}"], size[0]), _batch(named[f"right {i}"], size[0]))
                for i, size in enumerate(self._sizes.products)
            ]
            weights = {name: (named[name] / 128).to(self._dtype) for name in WEIGHTS}
            inputs = (named["inputs"] / 128).to(self._dtype)
            outputs, losses, gradients = block(inputs, weights, self._sizes.heads)
            norms = [gradients[name].double().square().sum().sqrt() for name in WEIGHTS]
            whole = torch.cat([gradients[name].reshape(-1) for name in WEIGHTS])
            rows = digest_rows([self.numbers, *products, *outputs.unbind(), whole])
            return PendingAnswer(rows, torch.stack([*losses.double().unbind(), *norms]))


def probes_of(device: torch.device) -> dict[str, Probe]:
    """The questions to one device, by what the block computes in."""
    found = {"float32": Probe(device)}
    if device.type == "cuda":
        found["bfloat16"] = Probe(device, torch.bfloat16)
    return found


def _integers(count: int) -> torch.Tensor:
    """Integers from −127 to 127, float32, shape (count,): the top bits of mix64(K·i)."""
    mixed = mix64_tensor(torch.arange(count, device="cpu").mul_(signed64(K)))
    return ((mixed >> 56) & 0xFF).sub_(128).clamp_(min=-127).to(torch.float32)


def _count(found: dict[str, tuple[int, ...]]) -> int:
    return sum(_room(shape) for shape in found.values())


def _room(shape: tuple[int, ...]) -> int:
    return -(-int(np.prod(shape)) // _ALIGNED) * _ALIGNED


def _cut(numbers: torch.Tensor, found: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Views of the numbers, one after the other, each aligned."""
    views, at = {}, 0
    for name, shape in found.items():
        views[name] = numbers[at : at + int(np.prod(shape))].view(shape)
        at += _room(shape)
    return views


def _batch(matrix: torch.Tensor, count: int) -> torch.Tensor:
    return matrix.expand(count, *matrix.shape)


def _upload(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        return numbers
    pinned = torch.empty(numbers.shape, dtype=numbers.dtype, device="cpu", pin_memory=True)
    return pinned.copy_(numbers).to(device, non_blocking=True)


@contextlib.contextmanager
def _apart(device: torch.device) -> Iterator[None]:
    """Modes of the training's that would change the computation are off inside, and on again."""
    autocast = torch.is_autocast_enabled(device.type)
    # not torch.autocast: leaving its outermost block drops the training's cache
    torch.set_autocast_enabled(device.type, False)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device.type, autocast)


def integers_of(sizes: Sizes) -> dict[str, NDArray[np.int64]]:
    """The question as integers, by name: what the known results follow from."""
    found = shapes(sizes)
    cut = _cut(_integers(_count(found)), found)
    return {name: view.numpy().astype(np.int64) for name, view in cut.items()}
