"""Where a rank runs: its host, and the devices that its model lies on, by name and serial.

A launcher's table of ranks is gone when somebody asks, and a device is known by its serial: so
each rank records it at its own start, in its own folder. Host names and serials say which machine
to look at, and nothing about whether it is sound.
"""

from __future__ import annotations

import platform
import socket
from typing import Any

import torch

from .device_names import device_id, word_for
from .hardware import serial_of
from .reading import read


def whereabouts(model: torch.nn.Module) -> dict[str, Any]:
    """This process's host and devices; JSON values only.

    Never raises: what cannot be read is the text of why not.

    Returns:
        host, and devices: of each that has parameters its `name` (`cpu x86_64`,
        `cuda:0 (NVIDIA H200)`), and of a CUDA device its `uuid` and, of a server card, its
        `serial` where NVIDIA's library for it is installed.
    """
    return read({"host": socket.gethostname, "devices": lambda: _devices(model)})


def _devices(model: torch.nn.Module) -> list[dict[str, str]]:
    found = sorted({parameter.device for parameter in model.parameters()}, key=str)
    return [_device(device) for device in found]


def _device(device: torch.device) -> dict[str, str]:
    if device.type == "cpu":
        return {"name": f"cpu {platform.machine()}"}
    told = {"name": word_for(device)}
    uuid = device_id(device)
    if uuid is not None:
        told["uuid"] = uuid
        serial = read({"serial": lambda: serial_of(uuid)})["serial"]
        if serial is not None:
            told["serial"] = serial
    return told
