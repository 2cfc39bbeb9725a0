"""preloaded_client.py SOCKET ARGUMENT...: python's arguments, for the process behind the socket.

Ends as that command ends. Imports little: it is started for each command.
"""

import json
import os
import signal
import socket
import sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    cwd = os.getcwd()  # noqa: PTH109 - because pathlib takes longer to import than all of this
    request = {"argv": sys.argv[2:], "cwd": cwd, "environment": dict(os.environ)}
    content = json.dumps(request).encode() + b"\n"
    sent = socket.send_fds(connection, [content], [0, 1, 2])
    connection.sendall(content[sent:])
    told = connection.recv(16)
code = int(told) if told else 255  # the process behind it has ended
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
