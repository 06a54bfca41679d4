"""A receiver of notifications on its own port. It keeps every JSON body that is posted while `is_open` is true."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any


class Postbox:
    def __init__(self, port: int, bodies: list[dict[str, Any]]) -> None:
        self.port = port
        self.bodies = bodies
        self.is_open = True

    @property
    def url(self) -> str:
        """As apprise writes it."""
        return f"json://127.0.0.1:{self.port}/hook"

    @property
    def titles(self) -> list[str]:
        return [one["title"] for one in self.bodies]

    @property
    def failures(self) -> list[tuple[str, str]]:
        """Title and text of the notifications that were sent as errors."""
        return [(one["title"], one["message"]) for one in self.bodies if one["type"] == "failure"]


@contextlib.contextmanager
def postbox() -> Iterator[Postbox]:
    bodies: list[dict[str, Any]] = []

    class Post(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if box.is_open:
                bodies.append(body)
            self.send_response(200 if box.is_open else 503)
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Post) as server:
        box = Postbox(server.server_port, bodies)
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield box
        finally:
            server.shutdown()
            thread.join()
