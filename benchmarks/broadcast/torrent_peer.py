"""One peer of a libtorrent swarm, an anchor of benchmarks.broadcast on the same links; driven by JSON lines.

    ADDRESS FOLDER          -> {port}
    {seed: PATH}            -> {torrent: HEX}
    {fetch: HEX, peers: [[address, port] ...]} -> {first, end}   (first: arrival of the first payload byte)

There is no tracker, DHT, LSD, UPnP or NAT-PMP: the order names the other peers. `first` and `end` are monotonic times
in seconds. The settings are the best that were found for such a swarm (docs/log/): TCP only, short request queues,
pieces of 64 KiB, no limit on unchoked peers.
"""

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

lt: Final[Any] = importlib.import_module("libtorrent")  # optional, and used here alone
PIECE: Final = 64 << 10
SETTINGS: Final[dict[str, Any]] = {
    "enable_dht": False, "enable_lsd": False, "enable_upnp": False, "enable_natpmp": False,
    "enable_outgoing_utp": False, "enable_incoming_utp": False,
    "request_queue_time": 1, "max_out_request_queue": 60,
    "unchoke_slots_limit": -1, "connection_speed": 200, "torrent_connect_boost": 50,
    "alert_mask": 0,
}  # fmt: skip


def say(**message: Any) -> None:
    print(json.dumps(message), flush=True)


def main() -> None:
    address, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    session = lt.session({**SETTINGS, "listen_interfaces": f"{address}:0"})
    while not session.listen_port():
        time.sleep(0.01)
    say(port=session.listen_port())
    for order_text in sys.stdin:
        order = json.loads(order_text)
        if "seed" in order:
            say(torrent=seed(session, Path(order["seed"])))
        else:
            fetch(session, bytes.fromhex(order["fetch"]), folder, order["peers"])


def seed(session: Any, path: Path) -> str:
    torrent = lt.create_torrent(lt.list_files(str(path)), piece_size=PIECE)
    lt.set_piece_hashes(torrent, str(path.parent))
    data: bytes = lt.bencode(torrent.generate())
    handle = _added(session, data, path.parent)
    while not handle.status().is_seeding:
        time.sleep(0.01)
    return data.hex()


def fetch(session: Any, torrent: bytes, folder: Path, peers: list[tuple[str, int]]) -> None:
    handle = _added(session, torrent, folder)
    for peer in peers:
        handle.connect_peer(tuple(peer))
    first = None
    while not (status := handle.status()).is_seeding:
        if first is None and status.total_payload_download:
            first = time.monotonic()
        time.sleep(0.005)
    say(first=first, end=time.monotonic())


def _added(session: Any, torrent: bytes, folder: Path) -> Any:
    parameters = lt.add_torrent_params()
    parameters.ti = lt.torrent_info(torrent)
    parameters.save_path = str(folder)
    return session.add_torrent(parameters)


if __name__ == "__main__":
    main()
