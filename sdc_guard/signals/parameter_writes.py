"""Which parameters a forward pass writes to: momentum encoders, clipped embeddings and the like."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .kept_values import Undo, local_part, of_tensor


class ParameterWrites(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no types here
    """Within it, an operation that writes to a parameter is noted, and undone on leaving.

    A parameter is copied just before the first write to it, so that the others cost nothing.
    Seen are operations that declare in their schema what they write to, also through .data and
    other views; not custom kernels and collectives that do not declare it.

    Args:
        model: its parameters are watched.

    Attributes:
        names: of the parameters that were written to.
    """

    supports_higher_order_operators = True

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # as above
        self.names: list[str] = []
        self._undo: list[Undo] = []
        self._in_storage: dict[int, list[tuple[str, torch.Tensor]]] = {}
        for name, parameter in model.named_parameters():
            address = _address(parameter)
            if address:
                self._in_storage.setdefault(address, []).append((name, parameter))

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Called by torch in place of each operation."""
        kwargs = kwargs or {}
        for tensor in _written(func, args, kwargs):
            self._note(tensor)
        return func(*args, **kwargs)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call] # as above
        for undo in self._undo:
            undo()

    def _note(self, written: torch.Tensor) -> None:
        for name, parameter in self._in_storage.get(_address(written), ()):
            if name not in self.names and _overlap(local_part(parameter), local_part(written)):
                self.names.append(name)
                self._undo.append(of_tensor(parameter, always=True))


def _written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors that an operation writes to, by its schema."""
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.is_mutable:
        return
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            yield from _tensors(value)


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [x for x in value if isinstance(x, torch.Tensor)] if isinstance(value, list) else []


def _address(tensor: torch.Tensor) -> int:
    """Of a tensor's memory; 0 where it has none."""
    tensor = local_part(tensor)
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        return 0
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # classes of tensors that are made of others
        return 0


def _overlap(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two tensors of one storage may share elements."""
    (start, end), (first, last) = _extent(one), _extent(two)
    return start < last and first < end


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    if not tensor.numel():
        return 0, 0
    span = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset()) * tensor.element_size()
    return start, start + (int(span) + 1) * tensor.element_size()
