"""Sites within compiled code: operators that a compiler leaves alone, and that call back.

A hook on a module is traced into the compiled graph. There it leaves one of these operators, which
runs as plain Python each time: so the same graph serves steps with a fault and without, and nothing
is compiled again. Compilers that would replay a CUDA graph leave the operators out of it.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Final, Protocol

import torch


class Site(Protocol):
    """Who is called back."""

    def within_compiled(self, tensor: torch.Tensor) -> None:
        """What is meant is there, as a copy that nothing else uses: it may be written to."""


_numbers: Final = itertools.count()
_sites: weakref.WeakValueDictionary[int, Site] = weakref.WeakValueDictionary()


def register(site: Site) -> int:
    """A number under which the operators find a site, for as long as it lives."""
    number = next(_numbers)
    _sites[number] = site
    return number


def with_output_watched(output: torch.Tensor, number: int) -> torch.Tensor:
    """The same output, after the site was called with it."""
    found: torch.Tensor = torch.ops.sdc_guard.output_of(output, number)
    return found


def with_gradient_watched(output: torch.Tensor, number: int) -> torch.Tensor:
    """The same output; the site is called with its gradient."""
    found: torch.Tensor = torch.ops.sdc_guard.gradient_of(output, number)
    return found


def _copied_for_the_site(tensor: torch.Tensor, number: int) -> torch.Tensor:
    copied = tensor.clone()
    site = _sites.get(number)
    if site is not None:
        site.within_compiled(copied)
    return copied


def _copied(tensor: torch.Tensor, number: int) -> torch.Tensor:
    del number
    return tensor.clone()


def _keep_number(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    del output
    ctx.number = inputs[1]


def _unchanged(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
    del ctx
    return gradient, None


def _watched(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
    return torch.ops.sdc_guard.passed_on(gradient, ctx.number), None


def _register(name: str, function: Any, backward: Any = None) -> None:
    unsafe: Any = getattr(torch.Tag, "cudagraph_unsafe", None)
    made: Any = torch.library.custom_op(
        f"sdc_guard::{name}",
        function,
        mutates_args=(),
        schema="(Tensor tensor, int number) -> Tensor",
        **({} if unsafe is None else {"tags": (unsafe,)}),
    )
    made.register_fake(_copied)
    if backward is not None:
        made.register_autograd(backward, setup_context=_keep_number)


_register("output_of", _copied_for_the_site, _unchanged)
_register("gradient_of", _copied, _watched)
_register("passed_on", _copied_for_the_site)
