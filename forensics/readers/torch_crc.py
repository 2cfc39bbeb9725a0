"""Every record of a `torch.save` zip file against its CRC-32."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from sdc_guard.archive.extent import Repeats, extent
from sdc_guard.archive.inert_pickle import StoredTensor as Described
from sdc_guard.archive.inventory import Inventory
from sdc_guard.archive.read_trouble import trouble
from sdc_guard.archive.torch_records import TorchRecords
from sdc_guard.errors import SdcGuardError

from ..content import Integrity

_FEW_BYTES: Final = 8 * 2**20  # are summed faster without threads
_MOST_THREADS: Final = 4  # as many chunks are in memory


@dataclass(frozen=True)
class _Summed:
    """What reading a record showed: a fault, or that it has no checksum, or neither.

    `unread` is why it could not be read, for a cause that is not in it.
    """

    fault: str | None = None
    unchecked: bool = False
    unread: str = ""


def check_records(records: TorchRecords, found: Inventory) -> Integrity:
    """Read every record, and compare it with its checksum.

    A record that could not be read for a cause outside of it (`trouble`) is not checked.
    A checksum of 0 is one that was not kept, as `torch.serialization.set_crc32_options` allows.

    Args:
        found: the tensors that the records hold.
    """
    summed = _all_summed(records)
    damaged: dict[str, str] = {}
    intact: list[str] = []
    unchecked: list[str] = []
    why: dict[str, str] = {}
    for name, described in found.tensors.items():
        record = f"data/{described.key}"
        state = summed.get(record, _Summed(f"record {record} is missing"))
        fault, repeats = _misfit(records, record, described) if not state.fault else ("", "")
        if fault := state.fault or fault:
            damaged[name] = fault
        elif state.unread or repeats:
            unchecked.append(name)
            why[name] = state.unread or repeats
        else:
            (unchecked if state.unchecked else intact).append(name)
    of_tensors = {f"data/{described.key}" for described in found.tensors.values()}
    for record, state in summed.items():
        if state.fault and record not in of_tensors:
            damaged[record] = state.fault
        elif state.unread and record not in of_tensors:
            unchecked.append(record)
            why[record] = state.unread
    size = sum(info.file_size for info in records.records.values())
    of_other_kinds = found.foreign_tensors
    return Integrity(damaged, tuple(intact), tuple(unchecked), size, why, of_other_kinds)


def _all_summed(records: TorchRecords) -> dict[str, _Summed]:
    """Each record, in the order in which they lie in the file; large ones side by side."""
    names = sorted(records.records, key=lambda name: records.records[name].header_offset)
    size = sum(info.file_size for info in records.records.values())
    if size < _FEW_BYTES:
        return {name: _summed(records, name) for name in names}
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as pool:
        found = pool.map(lambda name: _summed(records, name), names)
        return dict(zip(names, found, strict=True))


def _summed(records: TorchRecords, name: str) -> _Summed:
    try:
        sound = records.sound(name)
    except SdcGuardError:
        raise
    except Exception as error:  # noqa: BLE001 - because damaged records raise errors of every kind
        if why := trouble(error):
            return _Summed(unread=f"record {name} {why}")
        return _Summed(f"record {name} cannot be read ({str(error) or type(error).__name__})")
    if sound is None:
        return _Summed(unchecked=True)
    return _Summed() if sound else _Summed(f"CRC mismatch in record {name}")


def _misfit(records: TorchRecords, record: str, described: Described) -> tuple[str, str]:
    """Why a tensor does not fit its record, and why it is not looked at; "" where it is not so."""
    try:
        extent(described, records.records[record].file_size)
    except Repeats as error:
        return "", f"{error} (record {record})"
    except ValueError as error:
        return f"{error} (record {record})", ""
    return "", ""
