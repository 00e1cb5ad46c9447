"""A loopback HTTP server that misbehaves on request."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

Fault = Callable[[BaseHTTPRequestHandler, bytes], None]


class ShardServer:
    """Serves a folder. `faults[name]` are used up one per GET of that file; then it is served as it is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.faults: dict[str, list[Fault]] = {}
        self.moved: dict[str, str] = {}
        self.gets: Counter[str] = Counter()
        self.stop_stalling = threading.Event()

    def answer(self, request: BaseHTTPRequestHandler, *, body: bool) -> None:
        name = request.path.lstrip("/")
        path = self.folder / name
        if name in self.moved:
            redirect(self.moved[name])(request, b"")
            return
        if not path.is_file():
            request.send_error(404)
            return
        data = path.read_bytes()
        if body:
            self.gets[name] += 1
            if self.faults.get(name):
                self.faults[name].pop(0)(request, data)
                return
        send(request, data, body=body)

    def stall(self, request: BaseHTTPRequestHandler, data: bytes) -> None:
        """Send half, then nothing."""
        send(request, data, upto=len(data) // 2)
        self.stop_stalling.wait(30)


def send(request: BaseHTTPRequestHandler, data: bytes, *, body: bool = True, upto: int | None = None) -> None:
    request.send_response(200)
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    if body:
        request.wfile.write(data[:upto])
        request.wfile.flush()


def cut_off(request: BaseHTTPRequestHandler, data: bytes) -> None:
    send(request, data, upto=len(data) // 3)


def corrupt(request: BaseHTTPRequestHandler, data: bytes) -> None:
    middle = len(data) // 2
    send(request, data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])


def too_long(request: BaseHTTPRequestHandler, data: bytes) -> None:
    send(request, data + b"more")


def unavailable(request: BaseHTTPRequestHandler, data: bytes) -> None:
    request.send_error(503)


def redirect(target: str) -> Fault:
    def answer(request: BaseHTTPRequestHandler, data: bytes) -> None:
        request.send_response(302)
        request.send_header("Location", target)
        request.send_header("Content-Length", "0")
        request.end_headers()

    return answer


def trickle(request: BaseHTTPRequestHandler, *parts: bytes) -> None:
    """All of these but the last as they are, and the last one byte by byte, until nobody listens."""
    with suppress(OSError):
        for part in parts[:-1]:
            request.wfile.write(part)
        for place in range(len(parts[-1])):
            request.wfile.write(parts[-1][place : place + 1])
            time.sleep(0.02)


@contextmanager
def serve(folder: Path) -> Iterator[tuple[str, ShardServer]]:
    """(URL of the folder, its server)."""
    server = ShardServer(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.answer(self, body=True)

        def do_HEAD(self) -> None:
            server.answer(self, body=False)

        def log_message(self, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}", server
    finally:
        server.stop_stalling.set()
        http.shutdown()
        http.server_close()
        thread.join()
