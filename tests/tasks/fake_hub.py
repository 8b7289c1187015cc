"""A hub that holds one data set, the folder given: what `datasets` asks of the real one, and no more. Prints its port."""

import argparse
import hashlib
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """Files under /datasets/NAME/resolve/REVISION/FILE, everything else under /api."""

    folder: Path
    fault: str

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if self.fault == "hang":
            time.sleep(600)
        if self.fault == "http_500":
            self.answer(500, b"")
        elif "/resolve/" in path:
            self.file(self.folder / path.split("/resolve/")[1].split("/", 1)[1])
        elif "/tree/" in path:
            files = [{"type": "file", "path": name, "size": size, "oid": "0" * 40} for name, size in self.files()]
            self.answer(200, json.dumps(files).encode())
        elif path.startswith("/api/datasets/"):
            siblings = [{"rfilename": name} for name, _ in self.files()]
            self.answer(200, json.dumps({"id": "some/set", "sha": COMMIT, "siblings": siblings}).encode())
        else:
            self.answer(404, b"")

    def do_HEAD(self) -> None:
        self.do_GET()

    def files(self) -> list[tuple[str, int]]:
        return [(path.name, path.stat().st_size) for path in sorted(self.folder.iterdir())]

    def file(self, path: Path) -> None:
        if not path.exists():
            self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        content = path.read_bytes()
        etag = hashlib.sha256(content).hexdigest()
        self.answer(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

    def answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Not a word."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fault", choices=["none", "hang", "http_500"], default="none")
    arguments = parser.parse_args()
    Hub.folder, Hub.fault = arguments.folder, arguments.fault
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    print(f"listening on {server.server_address[1]}", flush=True)
    server.serve_forever()
