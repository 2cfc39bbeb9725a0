"""Pickles that would run something, if they were unpickled: they make a marker file."""

from __future__ import annotations

import builtins
import os
import struct
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import torch


class Calls:
    """Pickles as a call of `function` with `arguments`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


class _Shell:
    """Gets its state by a setter that runs it."""

    def __setstate__(self, state: str) -> None:
        os.system(state)


def with_pickle(path: Path, pickled: bytes, **records: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        for name, content in records.items():
            archive.writestr(f"archive/data/{name}", content)
    return path


def opcodes(marker: Path) -> dict[str, bytes]:
    """Pickles by hand: the same call by every opcode that calls or builds something."""
    command = f"touch {marker}".encode()
    text = b"X" + struct.pack("<I", len(command)) + command
    name = b"cos\nsystem\n"
    return {
        "reduce": name + text + b"\x85R.",
        "inst": b"(" + text + b"ios\nsystem\n.",
        "obj": b"(" + name + text + b"o.",
        "newobj": b"\x80\x02csubprocess\nPopen\n" + text + b"\x85\x81.",
        "newobj_ex": b"\x80\x04csubprocess\nPopen\n" + text + b"\x85}\x92.",
        "stack_global": b"\x80\x04X\x02\x00\x00\x00osX\x06\x00\x00\x00system\x93"
        + text
        + b"\x85R.",
        "build": b"chostile_pickles\n_Shell\n)\x81" + text + b"b.",
        "nested": b"cbuiltins\ngetattr\n(cos\npath\nX\x02\x00\x00\x00ostR.",
    }


def hostile(marker: Path) -> dict[str, Any]:
    code = f"open({str(marker)!r}, 'w')"
    return {
        "system": Calls(os.system, f"touch {marker}"),
        "exec": Calls(builtins.exec, code),
        "eval": Calls(builtins.eval, code),
        "open": Calls(builtins.open, str(marker), "w"),
        "popen": Calls(subprocess.Popen, ["touch", str(marker)]),
        "path": Calls(Path.touch, marker),
        "import": Calls(builtins.__import__, "os"),
        "torch_load": Calls(torch.load, str(marker)),
        "key": {Calls(os.system, f"touch {marker}"): 1},
        "in_list": [torch.ones(1), Calls(os.system, f"touch {marker}")],
    }
