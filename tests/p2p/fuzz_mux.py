"""Coverage-guided fuzzing of the muxer: `python tests/p2p/fuzz_mux.py [-runs=1000000] [atheris options]`.

Needs atheris. An input's first byte determines how the rest is split and what this side does meanwhile; the rest is
what a peer sends, in at most `PIECES` pieces or so. The muxer must accept it or raise `Malformed`, and its invariants
must hold after each piece: that is a look at all streams, which took nearly all time where a long input came by bytes.
"""

import sys
import tempfile
from pathlib import Path

import atheris

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

with atheris.instrument_imports(include=["echo2.p2p.libp2p.mux"]):
    from echo2.p2p.libp2p import mux

from echo2.p2p.errors import LocalNetworkFault, Malformed  # noqa: E402
from echo2.p2p.libp2p.mux import HEADER, Mux  # noqa: E402
from tests.support.mux_frames import FAULTS, check_invariants  # noqa: E402

PIECES = 64


def test_one_input(data: bytes) -> None:
    if not data:
        return
    one, habits = Mux(bool(data[0] & 1)), data[0]
    step = max(1 + (data[0] >> 1) % 64, len(data) // PIECES)
    flows = [one.open()]
    try:
        for at in range(1, len(data), step):
            one.receive(data[at : at + step])
            while one.opened:
                flows.append(one.opened.popleft())
            act(one, flows, habits ^ data[at])
            check_invariants(one)
    except Malformed:
        return


def act(one: Mux, flows: list[mux.StreamState], choice: int) -> None:
    flow = flows[choice % len(flows)]
    match choice >> 5:
        case 0:
            one.reset(flow)
        case 1:
            one.finish(flow)
        case 2 | 3:
            one.read(flow, 1 + choice * 100)
        case 4:
            if not flow.finishing and not flow.aborted:
                one.write(flow, bytes(choice))
        case 5:
            one.ping(choice & 3)
        case 6:
            try:
                flows.append(one.open())
            except LocalNetworkFault:
                assert len(flows) >= mux.STREAMS_MAX
        case _:
            one.data_to_send(1 << 16)


def seeds(folder: Path) -> None:
    """Write the initial corpus: the violations of the table, and valid frames."""
    valid = b"".join(HEADER.pack(*each) for each in ((mux.OPEN, 1, 0), (mux.CREDIT, 1, 9), (mux.DATA, 1, 3)))
    valid += b"abc" + b"".join(HEADER.pack(*each) for each in ((mux.FIN, 1, 0), (mux.RESET, 1, 0), (mux.PING, 0, 7)))
    answers = [HEADER.pack(mux.RESET, 1, 0), HEADER.pack(mux.OPEN, 2, 0) + HEADER.pack(mux.GOAWAY, 0, 0)]
    for number, frames in enumerate([[valid], answers, *FAULTS.values()]):
        for first in (0, 1, 126, 255):
            (folder / f"{number}-{first}").write_bytes(bytes([first]) + b"".join(frames)[:4000])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as corpus:
        seeds(Path(corpus))
        atheris.Setup([*sys.argv, "-max_len=4096", corpus], test_one_input)
        atheris.Fuzz()
