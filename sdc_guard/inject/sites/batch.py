"""What the training's forward is called with."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..fault import Draw, Fault, Site
from ..firing import Firing
from ..scope import Scope
from ..taken import Taken
from ..vocabulary import vocabulary


class Batch:
    """Tensors that the model is called with, by their place or keyword: "0", "input_ids", "0.x".

    Whole numbers are kept below the model's largest embedding: they are likely to be looked up
    there, and one beyond it would be an index error, which is no silent corruption.
    """

    site: Site = "batch"

    def __init__(self, firing: Firing, model: torch.nn.Module) -> None:
        self._firing = firing
        self._limit = vocabulary(model)

    def scope(self) -> Scope:
        """Nothing that is known before the first call."""
        return Scope(self.site, {}, kind="tensor of the batch", known=False)

    def check(self, name: str, fault: Fault, draw: Draw) -> None:
        """Nothing: shapes and dtypes show when the model is called."""

    def watch(self, taken: Taken) -> None:
        """Nothing: the injector's own hook tells."""

    def close(self) -> None:
        """Nothing."""

    def called_with(self, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Inject what is due; the arguments to go on with, or None for the same."""
        found: tuple[Any, Any] | None = None
        for taken in self._firing.due(self.site):
            with self._firing.or_missed(taken):
                changed = self._changed(taken, *(found or (args, kwargs)))
                found = changed or found
        return found

    def _changed(self, taken: Taken, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        paths, structure = pytree.tree_flatten_with_path((args, kwargs))
        named = {_name(path): leaf for path, leaf in paths if isinstance(leaf, torch.Tensor)}
        scope = Scope(
            self.site, {name: tensor.numel() for name, tensor in named.items()},
            kind="tensor of the batch",
        )  # fmt: skip
        taken.target = name = scope.choose(taken.fault, self._firing.draw(taken))
        memory = taken.fault.effect == "memory"
        tensor = named[name]
        wrong = tensor if memory else tensor.clone()
        self._firing.fire(taken, wrong, name, below=self._limit if _is_whole(tensor) else None)
        if memory:
            return None
        leaves = [wrong if leaf is tensor else leaf for _, leaf in paths]
        changed: tuple[Any, Any] = pytree.tree_unflatten(leaves, structure)
        return changed


def _is_whole(tensor: torch.Tensor) -> bool:
    kinds = tensor.is_floating_point(), tensor.is_complex(), tensor.dtype == torch.bool
    return not any(kinds)


def _name(path: tuple[Any, ...]) -> str:
    """The place of a tensor in what a model is called with: args come first, then kwargs."""
    return ".".join(
        str(getattr(key, "idx", getattr(key, "key", getattr(key, "name", key)))) for key in path[1:]
    )
