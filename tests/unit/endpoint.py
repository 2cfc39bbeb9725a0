"""A real HTTP server on this machine that answers as it is told, or does not."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "T0SECRET/B0SECRET/tokenSECRET"
PATIENCE = 20.0  # seconds until a test gives up; none waits that long when all is well


class Endpoint:
    """What a webhook posts to.

    Attributes:
        answers: how the next posts are answered, in turn; then `otherwise`. A status, a status
            and its Retry-After, "hang" (until `release`) or "close" (the connection).
        posts: (when, path, body) of all posts, whatever the answer.
    """

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.otherwise: Any = 200
        self.posts: list[tuple[float, str, bytes]] = []
        self.release = threading.Event()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        # a short poll, so that a test does not wait half a second for its end
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/services/{SECRET}"

    def bodies(self) -> list[Any]:
        """All bodies so far, as JSON."""
        return [json.loads(body) for _, _, body in self.posts]

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _take(self, path: str, body: bytes) -> Any:
        with self._lock:
            self.posts.append((time.monotonic(), path, body))
            return self.answers.pop(0) if self.answers else self.otherwise

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                answer = endpoint._take(self.path, body)
                if answer == "hang":
                    endpoint.release.wait(PATIENCE)
                    answer = "close"
                if answer == "close":
                    self.close_connection = True
                    return
                status, after = answer if isinstance(answer, tuple) else (answer, None)
                with contextlib.suppress(OSError):  # the poster does not wait for all of it
                    self.send_response(status)
                    if after is not None:
                        self.send_header("Retry-After", str(after))
                    self.send_header("Content-Length", "2")
                    self.end_headers()
                    self.wfile.write(b"ok")

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        return Handler


@contextlib.contextmanager
def endpoint() -> Iterator[Endpoint]:
    """An endpoint for a block."""
    made = Endpoint()
    try:
        yield made
    finally:
        made.close()


def until(condition: Callable[[], object]) -> None:
    """Wait for a condition that has to come."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.005)
