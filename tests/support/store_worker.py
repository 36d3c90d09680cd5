"""A process that writes to a store and reports each call, until tests/weights/test_store.py kills it.

    store_worker.py FOLDER FIRST

Each line is printed after the call it reports has returned: `put KIND NUMBER` or `drop NUMBER`.
"""

import itertools
import sys
from pathlib import Path

from blake3 import blake3

from echo2.runtime.files import writing
from echo2.weights.store import Store


def content(number: int) -> bytes:
    return blake3(number.to_bytes(8, "little")).digest(20_000 + number % 7_000)


def main(folder: Path, first: int) -> None:
    with Store(folder) as store:
        print("open", flush=True)
        for number in itertools.count(first):
            data = content(number)
            digest = blake3(data).digest()
            with writing(store.incoming(digest)) as file:
                file.write(data)
            store.put_payload(1, number, digest, store.incoming(digest))
            print("put payload", number, flush=True)
            with writing(store.scratch("new")) as file:
                file.write(data)
            store.put_snapshot(1, number, digest, store.scratch("new"))
            print("put snapshot", number, flush=True)
            store.put_document("version", 1, number, data[:500])
            print("put document", number, flush=True)
            for dropped in store.collect({(1, number)}, 300_000):
                print("drop", dropped.version, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
