"""The transformer block that the probe computes, as functions of given weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - because this is how everyone writes it

WEIGHTS: Final = ("gain", "shift", "qkv", "out", "up", "down")
_INPUTS = 2  # different ones: a device that answers both alike does not compute


@dataclass(frozen=True)
class Sizes:
    """Sizes of a question.

    Attributes:
        tokens: per input.
        width: of the block; its inner layer is four times as wide.
        heads: of its attention.
        products: (copies, rows, inner, columns) of each product of integers; the inner size at
            most 1,024, for the sums to stay below 2²⁴.
    """

    tokens: int
    width: int
    heads: int
    products: tuple[tuple[int, int, int, int], ...]


def shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """The tensors of a question by name, in the order in which they take their numbers."""
    width = sizes.width
    found: dict[str, tuple[int, ...]] = {
        "inputs": (_INPUTS, sizes.tokens, width),
        "gain": (width,),
        "shift": (width,),
        "qkv": (width, 3 * width),
        "out": (width, width),
        "up": (width, 4 * width),
        "down": (4 * width, width),
    }
    for place, (_, rows, inner, columns) in enumerate(sizes.products):
        found[f"left {place}"], found[f"right {place}"] = (rows, inner), (inner, columns)
    return found


def block(
    x: torch.Tensor, weights: Mapping[str, torch.Tensor], heads: int
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Attention and a layer of gelu, each behind a layer norm and beside its input; and backward.

    The backward is spelled out, in the operations that autograd would call: hooks, saved tensors
    and a compiled backward are the training's, and stay alone.

    Args:
        x: shape (inputs, tokens, width).
        weights: by the names in WEIGHTS; the norms share theirs.

    Returns:
        outputs, of the shape of x; the mean square of each input's, float32 (inputs,); and the
        gradients of their sum by the names of the weights.
    """
    scale = 2.0 ** -(x.shape[-1].bit_length() // 2)  # of products of `width` numbers in −1 … 1
    qkv, out, up, down = (weights[name] * scale for name in ("qkv", "out", "up", "down"))
    normed, *first = _norm(x, weights)
    q, k, v = _split(normed @ qkv, heads)
    shares = torch._softmax(q @ k.mT * scale, -1, False)
    mixed = _joined(shares @ v)
    middle = x + mixed @ out
    normed_2, *second = _norm(middle, weights)
    before = normed_2 @ up
    inner = F.gelu(before)
    outputs = middle + inner @ down
    wide = outputs.float()
    losses = wide.square().mean((1, 2))

    grad = (wide * (2.0 / wide[0].numel())).to(x.dtype)
    found = {"down": _weight_gradient(inner, grad)}
    grad_before = torch.ops.aten.gelu_backward(grad @ down.mT, before)
    found["up"] = _weight_gradient(normed_2, grad_before)
    grad_norm, *of_second = _norm_backward(grad_before @ up.mT, middle, second, weights)
    grad = grad + grad_norm
    found["out"] = _weight_gradient(mixed, grad)
    grad_mixed = _heads(grad @ out.mT, heads)
    grad_shares = grad_mixed @ v.mT
    grad_scores = torch._softmax_backward_data(grad_shares, shares, -1, x.dtype) * scale
    parts = (grad_scores @ k, grad_scores.mT @ q, shares.mT @ grad_mixed)
    grad_qkv = torch.cat([_joined(part) for part in parts], dim=-1)
    found["qkv"] = _weight_gradient(normed, grad_qkv)
    _, *of_first = _norm_backward(grad_qkv @ qkv.mT, x, first, weights)
    found["gain"], found["shift"] = (a + b for a, b in zip(of_first, of_second, strict=True))
    return outputs, losses, found


def _norm(x: torch.Tensor, weights: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The normed x, and what its backward needs."""
    gain, shift = weights["gain"], weights["shift"]
    found: tuple[torch.Tensor, ...] = torch.native_layer_norm(x, x.shape[-1:], gain, shift, 1e-5)
    return found


def _norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    kept: list[torch.Tensor],
    weights: Mapping[str, torch.Tensor],
) -> tuple[torch.Tensor, ...]:
    gain, shift = weights["gain"], weights["shift"]
    found: tuple[torch.Tensor, ...] = torch.ops.aten.native_layer_norm_backward(
        grad, x, x.shape[-1:], *kept, gain, shift, [True, True, True]
    )
    return found


def _weight_gradient(inputs: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """Of the scaled weight."""
    return inputs.flatten(0, 1).mT @ grad.flatten(0, 1)


def _split(qkv: torch.Tensor, heads: int) -> list[torch.Tensor]:
    return [_heads(part, heads) for part in qkv.chunk(3, dim=-1)]


def _heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    inputs, tokens, width = x.shape
    return x.reshape(inputs, tokens, heads, width // heads).transpose(1, 2)


def _joined(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).flatten(2)
