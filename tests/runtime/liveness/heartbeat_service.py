"""A fake service in its own process: answers POST /v1/heartbeat as its mode file says and records each heartbeat.

python heartbeat_service.py FOLDER [PORT]: writes FOLDER/port; reads FOLDER/mode (ok, empty, 401, 500, 429, hang_first,
still, garbage, chunked, drip) at each request; appends one line for each heartbeat, "boot_ns mode", to FOLDER/beats. If
FOLDER/service.pem, a certificate and its key, exists, the service uses TLS.
"""

import json
import ssl
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FOLDER = Path(sys.argv[1])


class Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen = 0

    def do_POST(self) -> None:
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        mode = (FOLDER / "mode").read_text()
        Service.seen += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        with (FOLDER / "beats").open("a") as beats:
            beats.write(f"{now} {mode} {self.path} {self.headers['Authorization']}\n")
        if mode == "hang_first" and Service.seen % 2:
            time.sleep(20)
        status = int(mode) if mode.isdigit() else 200
        server_ms = now // 1_000_000
        deadline = 1_000 if mode == "still" else server_ms + 60_000
        guardians = [] if mode == "empty" else [{"id": "grd_1", "nextDeadline": deadline}]
        body = (
            b"<html>" if mode == "garbage" else json.dumps({"guardians": guardians, "serverTime": server_ms}).encode()
        )
        if mode == "401":
            body = b'{"error":{"code":"unauthorized","message":"no","requestId":"req_1"}}'
        self.send_response(status)
        if mode == "429":
            self.send_header("Retry-After", "1")
        if mode == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
            body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:7], body[7:])) + b"0\r\n\r\n"
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if mode == "drip":
            for byte in body:
                self.wfile.write(bytes([byte]))
                time.sleep(0.5)
            return
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 0), Service)
if (FOLDER / "service.pem").exists():
    speaks = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    speaks.load_cert_chain(FOLDER / "service.pem")
    server.socket = speaks.wrap_socket(server.socket, server_side=True)
(FOLDER / "port.new").write_text(str(server.server_port))
(FOLDER / "port.new").rename(FOLDER / "port")
server.serve_forever()
