"""Finding out, on a machine without a device, which operations would wait for one.

Tensors on "cuda" are those of FakeTensorMode: they have a device and no values, so that whatever
needs a value fails. Tensors of the host are real. A dispatch mode sees every operation before that
and writes down those that wait.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# their results, or the shapes of these, are needed on the host
_NEED_VALUES = {
    "_local_scalar_dense", "item", "nonzero", "nonzero_numpy", "is_nonzero", "argwhere",
    "masked_select", "unique_dim", "unique_consecutive", "unique_dim_consecutive", "_unique",
    "_unique2", "equal", "allclose", "bincount", "histogram", "_linalg_check_errors",
    "_coalesce", "coalesce", "to_dense", "resize_output",
}  # fmt: skip
_STAGED = 64 << 10  # bytes up to which the driver buffers a copy from pageable memory at once


class Waits(TorchDispatchMode):
    """Writes down every operation.

    Attributes:
        found: those that would wait for a CUDA device, and why.
        on_device: names of those that take or give a tensor on one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.on_device: list[str] = []
        self._pinned: list[torch.Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        reason = self._waits(name, args, kwargs)
        if reason is not None:
            self.found.append(f"{func}: {reason}")
        result = func(*args, **kwargs)
        if name != "device" and _any_on_device((args, kwargs, result)):
            self.on_device.append(name)
        if kwargs.get("pin_memory"):
            self._pinned.append(result)
        return result

    def _waits(self, name: str, args: Any, kwargs: Any) -> str | None:
        if name == "_to_copy":
            return self._copy_waits(args[0], kwargs.get("device"), None, kwargs)
        if name == "copy_":
            blocking = {"non_blocking": args[2] if len(args) > 2 else kwargs.get("non_blocking")}
            return self._copy_waits(args[1], args[0].device, args[0], blocking)
        if not _any_on_device((args, kwargs)):
            return None
        if name in _NEED_VALUES:
            return "the host needs its values"
        if name == "repeat_interleave" and kwargs.get("output_size") is None:
            return "the host needs the size of its result"
        if name.startswith(("index", "_index_put", "_unsafe_index")):
            return _index_waits(args[0], tree_leaves(args[1:]))
        return None

    def _copy_waits(
        self, source: torch.Tensor, device: Any, target: torch.Tensor | None, options: Any
    ) -> str | None:
        to = source.device if device is None else torch.device(device)
        if "cuda" not in (source.device.type, to.type) or source.device.type == to.type:
            return None  # from device to device only streams wait for each other
        if not options.get("non_blocking"):
            return f"a copy from {source.device} to {to} that is waited for"
        if to.type == "cpu" and target is not None and not self._is_pinned(target):
            return "a copy into pageable memory"
        if to.type != "cpu" and not self._is_pinned(source) and source.nbytes > _STAGED:
            return "a large copy from pageable memory"
        return None

    def _is_pinned(self, tensor: torch.Tensor) -> bool:
        storage = tensor.untyped_storage()._cdata
        return any(storage == pinned.untyped_storage()._cdata for pinned in self._pinned)


def _any_on_device(values: Any) -> bool:
    return any(
        isinstance(value, torch.Tensor) and value.device.type == "cuda"
        for value in tree_leaves(values)
    )


def _index_waits(indexed: torch.Tensor, indices: list[Any]) -> str | None:
    for index in indices:
        if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8):
            return "the host counts the elements of a mask"
        if isinstance(index, torch.Tensor) and index.device.type != indexed.device.type:
            return "indices are copied from the host"
    return None


@contextlib.contextmanager
def fake_device() -> Iterator[None]:
    """Tensors on "cuda" without values, on any machine and any build of torch."""
    with _guard_for_cuda(), FakeTensorMode(allow_non_fake_inputs=True), _RealHost():
        yield


class _RealHost(TorchDispatchMode):
    """Keeps operations of the host out of FakeTensorMode, but for pinned memory."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        kwargs = kwargs or {}
        device = torch.device(kwargs.get("device") or "cpu")
        fake = any(isinstance(value, FakeTensor) for value in tree_leaves((args, kwargs)))
        if fake or kwargs.get("pin_memory") or device.type != "cpu":
            return func(*args, **kwargs)
        with unset_fake_temporarily():
            return func(*args, **kwargs)


@contextlib.contextmanager
def _guard_for_cuda() -> Iterator[None]:
    """Something that answers when torch's C++ asks to make a CUDA device the current one.

    FakeTensorMode puts a guard that does nothing there, but only in builds with CUDA. In one
    without, that of the device "meta", which does nothing either, stands in for it.
    """
    if torch.backends.cuda.is_built():
        yield
        return
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    kinds = 32  # more than there are; only two are read
    guards = (ctypes.c_void_p * kinds).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    name = "_ZN3c104impl19registerDeviceGuardENS_10DeviceTypeEPKNS0_24DeviceGuardImplInterfaceE"
    register = getattr(library, name)
    register.argtypes, register.restype = [ctypes.c_int8, ctypes.c_void_p], None
    cuda, meta = 1, 14  # c10::DeviceType
    assert guards[cuda] is None
    register(cuda, guards[meta])
    try:
        yield
    finally:
        register(cuda, None)


class Event:
    """Stands for a CUDA event: `arrived` says whether the device has got that far."""

    arrived = False
    waited: list[str] = []  # noqa: RUF012 - because it is of all events

    def query(self) -> bool:
        """Whether the device has got that far; nothing waits."""
        return self.arrived

    def synchronize(self) -> None:
        """Wait for the device."""
        self.waited.append("Event.synchronize")


class Backward(torch.autograd.Function):
    """A backward pass on the real engine that leaves gradients on a device that is not there.

    The engine has no queue for tensors of such a device. A tensor of the host takes their place
    in its graph; its backward accumulates a gradient into each parameter, last one first, and
    calls the hooks that the engine would call then.
    """

    @staticmethod
    def forward(ctx: Any, carrier: torch.Tensor, parameters: list[torch.Tensor]) -> torch.Tensor:
        ctx.parameters = parameters
        return carrier.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        for parameter in reversed(ctx.parameters):
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                parameter.grad = torch.ones_like(parameter)
            else:
                parameter.grad += 1
            for hook in list((parameter._post_accumulate_grad_hooks or {}).values()):
                hook(parameter)
        return gradients[0], None


def backward(parameters: list[torch.Tensor]) -> None:
    """A backward pass that reaches these parameters."""
    Backward.apply(torch.zeros((), requires_grad=True), parameters).backward()  # type: ignore[no-untyped-call]
