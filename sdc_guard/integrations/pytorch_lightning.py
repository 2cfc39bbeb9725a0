"""A guard as a callback of `pytorch_lightning`, the older name of `lightning.pytorch`."""

from __future__ import annotations

from .lightning_hooks import GuardHooks

try:
    from pytorch_lightning import Callback
except ImportError as error:
    raise ImportError(
        "PyTorch Lightning is not installed: pip install pytorch-lightning; for lightning.pytorch "
        "import sdc_guard.integrations.lightning"
    ) from error


class SdcGuardCallback(GuardHooks, Callback):
    __doc__ = GuardHooks.__doc__
