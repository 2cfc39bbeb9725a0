"""What is carried out at once against the same, operation by operation."""

from __future__ import annotations

import io
import random
import zipfile
from typing import Any

import pytest
import torch

from sdc_guard.archive import inert_pickle
from sdc_guard.archive.inert_pickle import InertUnpickler
from sdc_guard.archive.rebuilt import Inert

SEED = 11


def pickle_of(state: Any) -> bytes:
    """The structure of a file of torch.save."""
    file = io.BytesIO()
    torch.save(state, file)
    with zipfile.ZipFile(file) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
        return archive.read(name)


def states() -> list[Any]:
    """Tensors of all numbers of dimensions, shared, transposed, of many dtypes, and others."""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    base = torch.randn(6, 70000)
    shapes = [(), (0,), (3,), (2, 3), (2, 3, 4), (2, 3, 4, 5), (1,) * 6, (70000,), (300, 2)]
    dtypes = (torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e5m2)
    return [
        {str(i): torch.zeros(shape) for i, shape in enumerate(shapes)},
        {f"w{i}": torch.zeros(i % 5 + 1, 3) for i in range(300)},
        {"a": base, "b": base.T, "c": base[2:4, ::7], "d": base.expand(2, 6, 70000), "e": base},
        [torch.zeros(2, 2).to(dtype) for dtype in dtypes for _ in range(3)],
        {"conj": [torch.zeros(3, dtype=torch.complex64).conj() for _ in range(3)]},
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 12},
        {"parameters": list(model.parameters()), "step": torch.tensor(3)},
    ]


def outcome(data: bytes, monkeypatch: pytest.MonkeyPatch, *, quick: bool) -> Any:
    """What a pickle gives, and all that the machine holds then; or that it raises."""
    with monkeypatch.context() as patch:
        if not quick:
            patch.setattr(inert_pickle, "known_tensor", lambda machine, at: 0)
        machine = InertUnpickler(data)
        try:
            root = machine.load()
        except Exception as error:  # noqa: BLE001 - because damaged pickles raise errors of every kind
            return isinstance(error, EOFError)
    return [shown(root), machine.storages, machine.at, shown(machine.memo), shown(machine.stack)]


def shown(node: Any, depth: int = 0) -> Any:
    """A structure as text: placeholders are compared by what they stand for."""
    if depth > 12:
        return "deep"
    if isinstance(node, dict):
        return [(shown(k, depth + 1), shown(v, depth + 1)) for k, v in node.items()].__repr__()
    if isinstance(node, (list, tuple)):
        return repr([type(node).__name__, *(shown(one, depth + 1) for one in node)])
    return node.name if isinstance(node, Inert) else repr(node)


def test_the_machine_holds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    hits = []
    real = inert_pickle.known_tensor
    for state in states():
        data = pickle_of(state)
        slow = outcome(data, monkeypatch, quick=False)
        monkeypatch.setattr(
            inert_pickle, "known_tensor", lambda m, at: hits.append(end := real(m, at)) or end
        )
        assert outcome(data, monkeypatch, quick=True) == slow
    assert sum(map(bool, hits)) > 300


def test_damaged_pickles_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(SEED)
    for state in states():
        data = pickle_of(state)
        if len(data) > 6000:
            continue
        for _ in range(150):
            wrong = bytearray(data)
            for _ in range(draw.choice((1, 1, 2, 5))):
                wrong[draw.randrange(len(wrong))] = draw.choice(
                    (draw.randrange(256), wrong[draw.randrange(len(wrong))])
                )
            slow = outcome(bytes(wrong), monkeypatch, quick=False)
            assert outcome(bytes(wrong), monkeypatch, quick=True) == slow, (SEED, bytes(wrong))


def test_a_tensors_arguments_are_known_to_hold_tuples(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pickle_of({f"w{i}": torch.zeros(4, 3) for i in range(5)})
    found = []
    for quick in (True, False):
        with monkeypatch.context() as patch:
            if not quick:
                patch.setattr(inert_pickle, "known_tensor", lambda machine, at: 0)
            machine = InertUnpickler(data)
            machine.load()
            held = [v for v in machine.memo.values() if type(v) is tuple]
            found.append([machine.nested.get(id(one)) for one in held])
    assert found[0] == found[1]
    assert found[0].count((1, 10)) == 5
