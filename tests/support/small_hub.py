"""A model hub on the loopback: the few routes that fetching a model asks for, with faults on demand."""

import hashlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

COMMIT = "0123456789abcdef" * 2 + "01234567"


@dataclass
class SmallHub:
    """`model`: ORG/NAME. `files`: its files by name. `cut`: name -> bytes after which its next transfer is cut.
    `down`: whether the hub answers 503 once a transfer was cut. `asked`: (name, first byte) of the requests.
    `instead`: what answers for a file, or for the description (""), in place of the hub. `tokens`: the tokens that
    came."""

    model: str
    files: dict[str, bytes]
    url: str = ""
    commit: str = COMMIT
    cut: dict[str, int] = field(default_factory=dict)
    down: bool = False
    asked: list[tuple[str, int]] = field(default_factory=list)
    instead: dict[str, Callable[[Any], None]] = field(default_factory=dict)
    tokens: list[str | None] = field(default_factory=list)

    def listing(self) -> dict[str, object]:
        """Return the model's description, as `/api/models/ORG/NAME/revision/REVISION?blobs=true` gives it."""
        siblings = []
        for name, data in self.files.items():
            row: dict[str, object] = {
                "rfilename": name, "size": len(data),
                "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(),
            }  # fmt: skip
            if name.endswith(".safetensors"):
                row["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            siblings.append(row)
        return {"id": self.model, "sha": self.commit, "siblings": siblings}


def _handler(hub: SmallHub) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            described = f"/api/models/{hub.model}"
            hub.tokens.append(self.headers["Authorization"])
            if answer := hub.instead.get("" if path.startswith("/api/") else path.rpartition("/")[2]):
                answer(self)
            elif path in (described, *(f"{described}/revision/{name}" for name in (hub.commit, "main", "v1"))):
                self.answer(200, json.dumps(hub.listing()).encode())
            elif path.startswith("/api/models/"):
                code = "RevisionNotFound" if path.startswith(f"{described}/") else "RepoNotFound"
                code = "GatedRepo" if "gated" in path else code
                self.answer(403 if code == "GatedRepo" else 404, b"{}", {"X-Error-Code": code})
            elif path.startswith(prefix := f"/{hub.model}/resolve/{hub.commit}/"):
                self._give(path.removeprefix(prefix))
            else:
                self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})

        def _give(self, name: str) -> None:
            data, first = hub.files[name], int((self.headers["Range"] or "bytes=0-")[6:].split("-")[0])
            hub.asked.append((name, first))
            if hub.down and not hub.cut:
                self.answer(503, b"")
                return
            self.send_response(206 if first else 200)
            self.send_header("Content-Length", str(len(data) - first))
            if first:
                self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
            self.end_headers()
            self.wfile.write(data[first : hub.cut.pop(name, len(data))])
            self.close_connection = True

        def answer(self, code: int, body: bytes, headers: Mapping[str, str] = {}) -> None:
            self.send_response(code)
            for key, value in {"Content-Length": str(len(body)), "Content-Type": "application/json", **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            return

    return Handler


@contextmanager
def serving(hub: SmallHub) -> Iterator[SmallHub]:
    """Serve a hub, and set its `url`."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
