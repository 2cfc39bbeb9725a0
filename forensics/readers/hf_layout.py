"""The names in a folder that the Hugging Face Trainer writes."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

STATE: Final = "trainer_state.json"
PICKLES: Final = ("training_args.bin",)
"""Never opened: an object of a class, which only running it would give."""

_FOLDER: Final = re.compile(r"checkpoint-(\d+)")
_OWN: Final = re.compile(
    r"trainer_state\.json|training_args\.bin|(optimizer|scheduler|scaler)\.pt|optimizer\.bin"
    r"|rng_state(_\d+)?\.pth|(adapter_)?model(-\d+-of-\d+)?\.safetensors"
    r"|pytorch_model(-\d+-of-\d+)?\.bin|(model\.safetensors|pytorch_model\.bin)\.index\.json"
    r"|global_step\d+|pytorch_model_fsdp_\d+"
)
_OTHERS: Final = re.compile(r"manifest\.json|\.metadata|.*\.distcp")


def names_in(folder: Path) -> set[str]:
    """The names in a folder; none if it cannot be listed."""
    try:
        return set(os.listdir(folder))  # noqa: PTH208 - the names alone, of a thousand folders
    except OSError:
        return set()


def is_trainer_folder(folder: Path) -> bool:
    """Whether a folder is a checkpoint of the Trainer, a damaged or an empty one included."""
    return is_trainer_names(folder.name, names_in(folder)) and folder.is_dir()


def is_trainer_names(name: str, names: set[str]) -> bool:
    """The same of a folder's name and the names in it."""
    if any(_OTHERS.fullmatch(one) for one in names):
        return False
    if not _FOLDER.fullmatch(name):
        return STATE in names
    return not names or any(_OWN.fullmatch(one) for one in names)
