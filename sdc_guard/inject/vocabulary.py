"""How far a model's whole-number inputs may reach before looking them up is an index error."""

from __future__ import annotations

import torch


def vocabulary(model: torch.nn.Module) -> int | None:
    """Entries of the model's largest embedding; None without one."""
    sizes = [
        module.num_embeddings
        for module in model.modules()
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag))
    ]
    return max(sizes, default=None)
