"""What of a checkpoint's payload are its weights: the models' state dicts, and nothing else. Pure.

Which tensors are parameters is known by the manifest, which names the tensor of the trace that each
is; not by what the script called them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from ..manifest import TensorEntry

_OF_A_MODEL: Final = (None, "param", "buffer")  # buffers may have no digest in the trace


def weights_in(payload: Mapping[Any, Any], entries: Mapping[str, TensorEntry]) -> dict[Any, Any]:
    """The part of a payload that holds the weights, nested as it is; {} if there is none.

    A mapping or list that holds a parameter is taken for a model's state dict, as state dicts are
    flat: its tensors stay, parameters and buffers, and its values that are no containers. Of
    others only those inside of them that are. So optimizers, generators' states and whatever else
    was saved beside the model fall away, and so do averages of weights that are no parameters.

    Args:
        payload: as it was saved; its tensors are not read, and may be on "meta".
        entries: of the manifest, by dotted path.
    """
    found = _within(payload, (), entries)
    return found if isinstance(found, dict) else {}


def _within(node: Any, way: tuple[str, ...], entries: Mapping[str, TensorEntry]) -> Any:
    """What of a container belongs to a model; None for nothing."""
    children = list(_children(node))
    kinds = {str(key): _kind((*way, str(key)), entries) for key, _ in children}
    of_a_model = any(
        isinstance(value, torch.Tensor) and kinds[str(key)] == "param" for key, value in children
    )
    kept = {}
    for key, value in children:
        if isinstance(value, (Mapping, list, tuple)):
            inner = _within(value, (*way, str(key)), entries)
            if inner is not None:
                kept[key] = inner
        elif of_a_model and not _is_other(value, kinds[str(key)], way):
            kept[key] = value
    return _like(node, kept) if kept else None


def _children(node: Any) -> Iterator[tuple[Any, Any]]:
    return iter(node.items()) if isinstance(node, Mapping) else iter(enumerate(node))


def _kind(way: tuple[str, ...], entries: Mapping[str, TensorEntry]) -> str | None:
    entry = entries.get(".".join(way))
    return None if entry is None else entry.kind


def _is_other(value: Any, kind: str | None, way: tuple[str, ...]) -> bool:
    """Whether what lies beside parameters is none of the model's.

    A state dict that was saved by itself lies at the top, beside whatever else was: a generator's
    state is a list of bytes there.
    """
    if not isinstance(value, torch.Tensor):
        return False
    generator = not way and kind is None and value.dtype == torch.uint8 and value.dim() == 1
    return kind not in _OF_A_MODEL or generator


def _like(node: Any, kept: dict[Any, Any]) -> Any:
    """A container of the same kind; a list keeps its places, which are in the tensors' names."""
    if not isinstance(node, Mapping):
        return [kept.get(place) for place in range(max(kept) + 1)]
    if not isinstance(node, OrderedDict):
        return kept
    made: OrderedDict[Any, Any] = OrderedDict(kept)
    made.__dict__.update(node.__dict__)  # a state dict has the modules' versions there
    return made
