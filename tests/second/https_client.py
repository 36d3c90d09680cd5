"""Plain HTTPS to the coordinator with a pinned key, and chunks with proofs: docs/protocol/https.md, chunks.md."""

import hashlib
import socket
import ssl
import time
from collections import Counter
from http.client import HTTPException, HTTPMessage, HTTPSConnection

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from documents import Map, check, digest, unpack


class Pinned(HTTPSConnection):
    """Check the invite's pin before a byte of HTTP is sent."""

    pin = b""

    def connect(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.sock = context.wrap_socket(socket.create_connection((self.host, self.port), timeout=20))
        shown = x509.load_der_x509_certificate(self.sock.getpeercert(binary_form=True) or b"")
        key = shown.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        check(hashlib.sha256(key).digest() == self.pin, "another key than the invite's")


class Connection:
    """One connection to one coordinator. `received`: bytes of answers by kind of request."""

    def __init__(self, address: str, pin: bytes) -> None:
        _, _, host, _, port, *_ = address.split("/")
        self._connection, self.received = Pinned(host, int(port), timeout=20), Counter[str]()
        self._connection.pin = pin
        status, body, _ = self.ask("GET", "/echo2/1/peer")
        check((status, body.decode()) == (200, address.rpartition("/p2p/")[2]), "another coordinator answers there")

    def ask(self, kind: str, path: str, body: bytes | None = None, known: str = "") -> tuple[int, bytes, HTTPMessage]:
        """Return (status, body, headers), retrying after a 429 or a broken connection. `known`: an ETag."""
        for tried in range(20):
            try:
                self._connection.request(kind, path, body, {"If-None-Match": known} if known else {})
                answer = self._connection.getresponse()
                data = answer.read()
            except (OSError, HTTPException):
                self._connection.close()
                time.sleep(0.1 * 2 ** min(tried, 6))
                continue
            what, _, rest = path.removeprefix("/echo2/1/").partition("/")
            self.received[rest if what == "rpc" else what] += len(data)
            if answer.status != 429:
                return answer.status, data, answer.headers
            time.sleep(float(answer.headers["Retry-After"]))
        raise ConnectionError(f"no answer to {kind} {path}")

    def rpc(self, method: str, body: bytes) -> bytes:
        status, data, _ = self.ask("POST", f"/echo2/1/rpc/{method}", body)
        check(status == 200, f"{method}: status {status}: {data[:200]!r}")
        return data

    def payload(self, manifest: Map) -> bytes:
        """Fetch all chunks of a manifest, each verified before it is stored."""
        size, length, out = manifest["chunk_size"], manifest["length"], bytearray()
        check(16 << 10 <= size <= 1 << 20 and 0 <= length <= size << 20, "a manifest out of bounds")
        count = -(-length // size)
        for first in range(0, count, 64):
            last = min(first + 64, count) - 1
            status, data, _ = self.ask("GET", f"/echo2/1/chunks/{manifest['hash'].hex()}/{first}-{last}")
            check(status == 200, f"chunks: status {status}")
            for index in range(first, last + 1):
                end = 4 + int.from_bytes(data[:4], "big")
                letter, at, *rest = unpack(data[4:end])
                check((letter, at) == ("c", index), "something else than the chunk")
                check(len(rest[1]) == min(size, length - index * size), "a chunk of another length")
                check(root_of(rest[1], index, count, rest[0]) == manifest["chunk_root"], "a chunk that is not proven")
                data, out = data[end:], out + rest[1]
        check(digest(bytes(out)) == manifest["hash"], "the manifest contradicts itself")
        return bytes(out)


def root_of(chunk: bytes, index: int, count: int, proof: list[bytes]) -> bytes:
    """Return the root of a leaf and its siblings, in the tree of RFC 6962: an odd last node rises unpaired."""
    node, left = digest(b"\0" + chunk), list(proof)
    while count > 1:
        if index ^ 1 < count:
            check(left, "a proof that is too short")
            node = digest(b"\1" + (left.pop(0) + node if index & 1 else node + left.pop(0)))
        index, count = index // 2, (count + 1) // 2
    check(not left, "a proof that is too long")
    return node
