"""The fingerprint of an environment: each setting is one name, and none of it can fail."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import subprocess
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from sdc_guard.signals.environment import differences, environment_fingerprint

ROOT = Path(__file__).resolve().parents[2]
backends = torch.backends

# as the first release with fingerprints wrote them
OLD = {
    "python": "3.11.7", "machine": "x86_64", "host": "node1",
    "packages": {"numpy": "2.4.6", "torch": "2.13.0"}, "threads": 8, "cpu_capability": "AVX512",
    "mkldnn": True, "matmul_precision": "highest", "deterministic": False, "cuda": "12.8",
    "devices": ["NVIDIA H100"], "optimizer": "AdamW",
    "optimizer_flags": {"foreach": None, "fused": None, "capturable": False},
    "world_size": 4, "threads_env": {"OMP_NUM_THREADS": "8"},
}  # fmt: skip


def adamw(model: nn.Module, **flags: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), **flags)


def fingerprint() -> dict[str, Any]:
    model = nn.Linear(2, 2, dtype=torch.float32)
    return environment_fingerprint(adamw(model), 1, model)


@contextlib.contextmanager
def setting(holder: Any, name: str, value: Any) -> Iterator[None]:
    """Another value for a while; torch warns of the older of its two interfaces."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = getattr(holder, name)
        setattr(holder, name, value)
        try:
            yield
        finally:
            setattr(holder, name, before)


@contextlib.contextmanager
def called(set_to: Callable[[Any], object], value: Any, before: Any) -> Iterator[None]:
    set_to(value)
    try:
        yield
    finally:
        set_to(before)


@contextlib.contextmanager
def warning_only() -> Iterator[None]:
    # that nondeterminism only warns is a setting of its own, kept while it is off
    torch._C._set_deterministic_algorithms(False, warn_only=True)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(False, warn_only=False)


@contextlib.contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(name, value)
        yield


FLIPS: list[tuple[str, Callable[[], contextlib.AbstractContextManager[None]]]] = [
    ("threads", lambda: called(torch.set_num_threads, 2, torch.get_num_threads())),
    ("threads_env", lambda: variable("OMP_NUM_THREADS", "77")),
    ("threads_env", lambda: variable("MKL_CBWR", "AVX2")),
    ("variables", lambda: variable("NCCL_ALGO", "Ring")),
    ("flush_denormal", lambda: called(torch.set_flush_denormal, True, False)),
    ("default_dtype", lambda: called(torch.set_default_dtype, torch.float64, torch.float32)),
    ("mkldnn", lambda: setting(backends.mkldnn, "enabled", False)),
    ("mkldnn_flags", lambda: setting(backends.mkldnn, "deterministic", True)),
    ("precision", lambda: called(torch.set_float32_matmul_precision, "high", "highest")),
    ("precision", lambda: setting(backends.cuda.matmul, "allow_tf32", True)),
    ("precision", lambda: setting(backends.cudnn, "allow_tf32", False)),
    ("cudnn_flags", lambda: setting(backends.cudnn, "enabled", False)),
    ("cudnn_flags", lambda: setting(backends.cudnn, "benchmark", True)),
    ("cudnn_flags", lambda: setting(backends.cudnn, "deterministic", True)),
    *[
        ("reduced_precision", lambda name=name, to=to: setting(backends.cuda.matmul, name, to))
        for name, to in [
            ("allow_fp16_reduced_precision_reduction", False),
            ("allow_bf16_reduced_precision_reduction", False),
            ("allow_fp16_accumulation", True),
        ]
    ],
    *[
        ("sdpa", lambda set_to=set_to: called(set_to, False, True))
        for set_to in [
            backends.cuda.enable_flash_sdp,
            backends.cuda.enable_mem_efficient_sdp,
            backends.cuda.enable_math_sdp,
            backends.cuda.enable_cudnn_sdp,
        ]
    ],
    ("deterministic", lambda: called(torch.use_deterministic_algorithms, True, False)),
    ("determinism", warning_only),
    ("determinism", lambda: variable("CUBLAS_WORKSPACE_CONFIG", ":4096:8")),
    (
        "determinism",
        lambda: setting(torch.utils.deterministic, "fill_uninitialized_memory", False),
    ),
    ("host", lambda: setting(socket, "gethostname", lambda: "elsewhere")),
    ("python", lambda: setting(platform, "python_version", lambda: "3.99")),
]


@pytest.mark.parametrize(("name", "flip"), FLIPS)
def test_each_setting_is_one_changed_name(
    name: str, flip: Callable[[], contextlib.AbstractContextManager[None]]
) -> None:
    before = fingerprint()
    with flip():
        now = fingerprint()
    assert list(differences(before, now)) == [name]
    assert differences(before, fingerprint()) == {}


# these cannot be taken back in a process, or only before its first operation
IN_A_PROCESS = {
    "threads_interop": "torch.set_num_interop_threads(torch.get_num_interop_threads() + 1)",
    "precision": "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
    "precision: convolutions": "torch.backends.cudnn.conv.fp32_precision = 'ieee'",
}


def test_settings_that_stay_and_nothing_imported() -> None:
    code = f"""
import json, sys, torch
from sdc_guard.signals import environment
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loaded = set(sys.modules)
now = environment.environment_fingerprint(optimizer, 1, model)
packages = {{name.partition(".")[0] for name in set(sys.modules) - loaded}}
found = {{"imported": sorted(packages & set(environment._PACKAGES))}}
for name, flip in {IN_A_PROCESS!r}.items():
    before = now
    exec(flip)
    now = environment.environment_fingerprint(optimizer, 1, model)
    found[name] = list(environment.differences(before, now))
print(json.dumps(found))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    expected = {name: [name.partition(":")[0]] for name in IN_A_PROCESS}
    assert json.loads(done.stdout) == {"imported": []} | expected


def test_optimizers_are_told_by_class_and_flags() -> None:
    model = nn.Linear(2, 2)
    plain, parameters = adamw(model), list(model.parameters())

    def changed(*optimizers: torch.optim.Optimizer) -> dict[str, list[Any]]:
        now = environment_fingerprint(optimizers, 1)
        return differences(environment_fingerprint(plain, 1), now)

    assert changed(adamw(model)) == {}
    assert changed(adamw(model, lr=0.5)) == {}  # a number is the code's
    assert changed(adamw(model, fused=True)) == {
        "optimizer_flags": [{"fused": None}, {"fused": True}]
    }
    assert list(changed(torch.optim.RMSprop(parameters))) == ["optimizer"]
    loaded = adamw(model)
    loaded.load_state_dict(adamw(model, foreach=True).state_dict())
    assert changed(loaded)["optimizer_flags"] == [{"foreach": None}, {"foreach": True}]
    groups = [{"params": parameters[:1]}, {"params": parameters[1:], "foreach": True}]
    assert changed(torch.optim.AdamW(groups))["optimizer_flags"][1] == {"foreach": [None, True]}
    two = environment_fingerprint([plain, torch.optim.SGD(parameters, lr=0.1)], 1)
    assert two["optimizer"] == "AdamW, SGD"
    assert [flags["foreach"] for flags in two["optimizer_flags"]] == [None, None]


def test_a_wrapped_optimizer_is_told_by_what_it_wraps() -> None:
    accelerate = pytest.importorskip("accelerate.optimizer")
    wrapper = accelerate.AcceleratedOptimizer.__new__(accelerate.AcceleratedOptimizer)
    wrapper.optimizer = adamw(nn.Linear(2, 2))
    assert environment_fingerprint(wrapper, 1)["optimizer"] == "AdamW"


def test_the_layout_is_one_name(tmp_path: Path) -> None:
    def made(wrap: Callable[[nn.Module], nn.Module]) -> dict[str, Any]:
        return environment_fingerprint(adamw(nn.Linear(2, 2)), 1, wrap(nn.Linear(2, 2)))

    plain = made(lambda model: model)
    assert list(differences(plain, {**plain, "world_size": 2})) == ["world_size"]
    compiled = made(lambda model: torch.compile(model, backend="eager"))
    assert differences(plain, compiled) == {"layout": [{"compiled": 0}, {"compiled": 1}]}
    assert differences(plain, made(lambda model: model.bfloat16()))["layout"][1] == {
        "dtypes": ["bfloat16"]
    }
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'init'}", rank=0, world_size=1)
    try:
        assert made(lambda model: model)["layout"]["backend"] == "gloo"
        parallel = made(DistributedDataParallel)["layout"]
        assert parallel["wrappers"] == {"DistributedDataParallel": 1}
        assert parallel["buckets"] == [[25 * 2**20, False, False]]
        mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
        sharded = made(lambda model: fully_shard(model, mesh=mesh))["layout"]
        assert sharded["wrappers"] == {"fully_shard": 1}
        assert sharded["mesh"] == ["cpu: replicate=1 shard=1"]
    finally:
        dist.destroy_process_group()


def test_versions_are_of_loaded_and_of_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint()
    assert before["packages"]["torch"] == str(torch.__version__)
    assert before["packages"]["duckdb"]
    module = types.ModuleType("peft")
    module.__version__ = "9.9"
    monkeypatch.setitem(sys.modules, "peft", module)
    changed = differences(before, fingerprint())
    assert changed == {"packages": [{"peft": before["packages"]["peft"]}, {"peft": "9.9"}]}


def test_an_older_fingerprint_is_compared_in_what_it_has() -> None:
    now = fingerprint() | OLD | {"packages": {"numpy": "2.4.6", "torch": "2.13.0", "peft": "1"}}
    now["threads_env"] = {"OMP_NUM_THREADS": "8", "MKL_CBWR": "AVX2"}
    assert differences(OLD, now) == {}
    for name, other in [("host", "node2"), ("matmul_precision", "high"), ("devices", [])]:
        assert differences(OLD, {**now, name: other}) == {name: [OLD[name], other]}
    packages = {**now, "packages": {"numpy": "1.26.4", "torch": "2.13.0"}}
    assert differences(OLD, packages) == {"packages": [{"numpy": "2.4.6"}, {"numpy": "1.26.4"}]}
    assert differences({}, now) == {}


def test_a_fingerprint_is_json() -> None:
    found = fingerprint()
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("name", ["get_num_threads", "get_float32_matmul_precision"])
def test_a_part_that_fails_is_a_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError("not\n today")

    before = fingerprint()
    monkeypatch.setattr(torch, name, refuse)
    found = fingerprint()
    failed = {"get_num_threads": "threads", "get_float32_matmul_precision": "matmul_precision"}
    assert found[failed[name]] == "not known: OSError: not today"
    assert found.keys() == before.keys()
    assert len(differences(before, found)) == 1


@pytest.mark.parametrize("optimizers", [None, object(), [object()], [], 3])
def test_no_optimizer_is_no_error(optimizers: Any) -> None:
    assert environment_fingerprint(optimizers, 1)["world_size"] == 1


class Nvml(types.ModuleType):
    """What is asked of NVIDIA's library, of a machine with two devices."""

    class NVMLError(Exception):
        pass

    open = 0

    def nvmlInit(self) -> None:  # noqa: N802 - because that is its name
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802 - as above
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802 - as above
        return "580.1"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - as above
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802 - as above
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802 - as above
        return int(uuid[-1])

    def nvmlDeviceGetName(self, handle: int) -> bytes:  # noqa: N802 - as above
        return b"H100" if handle == 0 else b"H200"

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802 - as above
        return f"GPU-{handle}"

    def nvmlDeviceGetSerial(self, handle: int) -> str:  # noqa: N802 - as above
        if handle:
            raise self.NVMLError("not supported")
        return "165"


@pytest.fixture
def _cuda_build(monkeypatch: pytest.MonkeyPatch) -> None:
    def started() -> None:
        raise AssertionError("CUDA was initialised")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "_lazy_init", started)


@pytest.mark.usefixtures("_cuda_build")
def test_devices_are_known_without_starting_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml("pynvml")
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = fingerprint()
    assert found["driver"] == "580.1"
    assert found["devices"] == ["H100", "H200"]
    assert found["device_ids"] == [
        {"uuid": "GPU-0", "serial": "165"},
        {"uuid": "GPU-1", "serial": None},
    ]
    assert nvml.open == 0


@pytest.mark.usefixtures("_cuda_build")
def test_devices_are_those_that_the_process_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    seen = types.SimpleNamespace(name="H100", uuid="0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: seen)
    monkeypatch.setitem(sys.modules, "pynvml", Nvml("pynvml"))
    assert fingerprint()["device_ids"] == [{"uuid": "GPU-0", "serial": "165"}]
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    found = fingerprint()
    assert found["devices"] == ["H100"]
    assert found["device_ids"] == [{"uuid": "GPU-0", "serial": None}]


@pytest.mark.usefixtures("_cuda_build")
def test_without_the_library_devices_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = fingerprint()
    assert (found["devices"], found["device_ids"]) == ([], [])
