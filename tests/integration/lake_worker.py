"""A process that has DuckLake and answers requests, a line of JSON each, until its input ends.

{"command": [module, argument, ...]}  a command line, as if in a process of its own
{"script": text, "arguments": [...]}  a script, likewise
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import traceback
from importlib import import_module
from typing import Any

from click.testing import CliRunner


def command(module: str, *arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(import_module(module).main, arguments)
    unexpected = done.exception is not None and not isinstance(done.exception, SystemExit)
    trace = "".join(traceback.format_exception(done.exception)) if unexpected else ""
    return {"code": done.exit_code, "out": done.stdout, "err": done.stderr + trace}


def script(text: str, arguments: list[str]) -> dict[str, Any]:
    out = io.StringIO()
    sys.argv = ["-c", *arguments]
    try:
        with contextlib.redirect_stdout(out):
            exec(text, {"__name__": "__main__"})
    except Exception:  # noqa: BLE001 - because a failed assertion of a script is an answer, too
        return {"code": 1, "out": out.getvalue(), "err": traceback.format_exc()}
    return {"code": 0, "out": out.getvalue(), "err": ""}


for line in sys.stdin:
    request = json.loads(line)
    if "command" in request:
        answer = command(*request["command"])
    else:
        answer = script(request["script"], request["arguments"])
    print(json.dumps(answer), flush=True)
