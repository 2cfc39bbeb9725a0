"""A python that has imported torch and the packages already: it forks for each command.

A command still runs in a process of its own, with its own arguments, folder, environment, output
and exit code; what it is spared are the seconds of imports. What depends on a fresh interpreter
(which modules a command imports, variables read at import, inherited files) is tested with
`sys.executable`.

`python()` gives the path to use in place of `sys.executable`. It is a small program that hands
the command to the process that forks, and ends as the command ends. That process ends with the
tests.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import random
import runpy
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LARGEST = 1 << 20  # bytes that are read at once
# two threads that wait for each other take turns where others compute, too
WANTED = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


@functools.cache
def python() -> str:
    """The path of the program; the first call starts the process that forks."""
    folder = Path(tempfile.mkdtemp(prefix="preloaded-"))  # short: a socket's path has a limit
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, __file__, folder],
        stdin=subprocess.PIPE,  # open as long as this process lives
        stdout=subprocess.PIPE,
        env=os.environ | WANTED | {"PYTHONPATH": os.pathsep.join(path)},
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.stdout.close()
    program = folder / "python"
    # the client needs nothing but the standard library: it starts in some milliseconds
    words = [
        "exec",
        sys.executable,
        "-I",
        "-S",
        str(Path(__file__).with_name("preloaded_client.py")),
    ]
    # what asks for an interpreter by itself has to be the child of whoever started it
    alone = f'[ "$1" = -I ] && exec {shlex.quote(sys.executable)} "$@"'
    program.write_text(f'#!/bin/sh\n{alone}\n{shlex.join([*words, str(folder / "socket")])} "$@"\n')
    program.chmod(0o755)

    def end() -> None:
        process.stdin.close()
        process.wait()
        shutil.rmtree(folder)

    atexit.register(end)
    return str(program)


def main(folder: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "socket"))
    listener.listen(64)
    _train_once(folder / "first")
    sys.path.remove(str(Path(__file__).parent))  # a script has its own folder there
    print("ready", flush=True)
    request = _serve(listener)
    if request is not None:  # this is the fork
        _become(request, str(folder / "python"))
        _end(_code_of(request["argv"]))


def _train_once(run: Path) -> None:
    """Load what commands import, and what is only loaded when it is needed."""
    import torch

    import forensics
    import sdc_guard.cli  # noqa: F401 - because the forks have it then, as those above
    from sdc_guard import Guard, RunReader

    # a command of sdc-bisect imports some 150 of these modules, for a fifth of a second
    for module in pkgutil.walk_packages(forensics.__path__, "forensics."):
        importlib.import_module(module.name)
    torch.set_num_threads(1)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    with Guard(model, optimizer, run=run, policy="record") as guard:
        model(torch.ones(1, 2)).sum().backward()
        guard.observe(1.0, torch.ones(1, 2))
        optimizer.step()
        guard.checkpoint({"model": model, "optimizer": optimizer}, 1)
    with RunReader(run) as reader:
        reader.rows("SELECT * FROM steps")
    assert threading.active_count() == 1  # a fork would not have the others
    gc.freeze()  # a fork that looks for garbage among all of this would copy it


def _serve(listener: socket.socket) -> dict[str, Any] | None:
    """Fork for each command that comes; the command in the fork, None when the tests end."""
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    woken.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        for source in (0, listener, woken):
            selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj == 0:
                    for pid in running:
                        _kill(pid)
                    return None
                if key.fileobj is listener:
                    connection, _ = listener.accept()
                    content, files, _, _ = socket.recv_fds(connection, LARGEST, 3)
                    while not content.endswith(b"\n") and (more := connection.recv(LARGEST)):
                        content += more
                    pid = os.fork()
                    if not pid:
                        signal.set_wakeup_fd(-1)
                        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                        for source in (listener, woken, waker, connection, *running.values()):
                            source.close()
                        return {**json.loads(content), "files": files}
                    for file in files:
                        os.close(file)
                    running[pid] = connection
                    selector.register(connection, selectors.EVENT_READ, pid)
                elif key.fileobj is woken:
                    woken.recv(4096)
                    _tell_ended(running, selector)
                elif key.data in running:  # its client was killed
                    _kill(key.data)
                    selector.unregister(key.fileobj)


def _tell_ended(running: dict[int, socket.socket], selector: selectors.BaseSelector) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        connection = running.pop(pid)
        with contextlib.suppress(OSError, KeyError):
            selector.unregister(connection)
        with contextlib.suppress(OSError):
            connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
        connection.close()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _become(request: dict[str, Any], executable: str) -> None:
    """Take over what a process has from its parent."""
    os.setsid()
    for number, file in enumerate(request["files"]):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    random.seed()
    sys.executable = executable


def _code_of(argv: list[str]) -> int:
    """The exit code that python ends with."""
    try:
        _run(argv)
    except SystemExit as end:
        if isinstance(end.code, int | None):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001 - because python prints it, whatever it is
        traceback.print_exc()
        return 1
    return 0


def _end(code: int) -> None:
    """End as python does, but for the modules: to take them down takes longer than many a test."""
    threading._shutdown()  # type: ignore[attr-defined] # waits for threads, as python does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def _run(argv: list[str]) -> None:
    """Run a command line as python does: -c CODE, -m MODULE or a script, with its arguments."""
    kind, *rest = argv
    if kind == "-u":  # as torchrun starts its ranks; what they print is written at the end
        kind, *rest = rest
    if kind == "-m":
        sys.argv = rest
        sys.path.insert(0, str(Path.cwd()))
        sys.modules.pop(rest[0], None)  # it is run, and not what was imported
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    if kind == "-c":
        source, name, folder = rest.pop(0), "<string>", ""
    else:
        source, name, folder = Path(kind).read_bytes(), kind, str(Path(kind).resolve().parent)
    sys.argv = [kind, *rest]
    sys.path.insert(0, folder)
    module = types.ModuleType("__main__")
    if kind != "-c":
        module.__file__ = kind
    sys.modules["__main__"] = module
    exec(compile(source, name, "exec"), module.__dict__)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
