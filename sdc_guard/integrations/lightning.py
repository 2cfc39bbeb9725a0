"""A guard as a callback of `lightning.pytorch`."""

from __future__ import annotations

from .lightning_hooks import GuardHooks

try:
    from lightning.pytorch import Callback
except ImportError as error:
    raise ImportError(
        'Lightning is not installed: pip install ".[lightning]" in a clone of SDC Guard; for '
        "pytorch_lightning import sdc_guard.integrations.pytorch_lightning"
    ) from error


class SdcGuardCallback(GuardHooks, Callback):
    __doc__ = GuardHooks.__doc__
