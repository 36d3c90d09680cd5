"""The paths, frames and tags of HTTPS: as in the golden vectors, and refused where malformed."""

import json

import pytest

from echo2.p2p.errors import Malformed
from echo2.p2p.https import routes
from echo2.p2p.swarm import messages
from tests.support import paths

VECTORS = json.loads((paths.VECTORS / "https.json").read_text())


def test_paths_tags_and_frames_are_those_of_the_golden_vectors():
    one = VECTORS["chunks_path"]
    assert routes.chunks_path(bytes.fromhex(one["payload"]), one["first"], one["last"]) == one["path"]
    assert routes.read_chunks_path(one["path"]) == (bytes.fromhex(one["payload"]), one["first"], one["last"])
    assert routes.etag(bytes.fromhex(VECTORS["etag"]["data"])) == VECTORS["etag"]["etag"]
    chunk, gone = VECTORS["frames"]
    proof = tuple(bytes.fromhex(one) for one in chunk["proof"])
    chunk_frame = messages.Chunk(chunk["index"], proof, bytes.fromhex(chunk["data"]))
    assert routes.frame_message(chunk_frame).hex() == chunk["frame"]
    assert routes.frame_message(messages.NotAvailable(gone["index"])).hex() == gone["frame"]


@pytest.mark.parametrize(
    "rest",
    {
        "no hash": "/0-1",
        "a short hash": "abcd/0-1",
        "no hash but a path": "../../etc/passwd/0-1",
        "no span": "ab" * 32,
        "one number": "ab" * 32 + "/3",
        "a negative number": "ab" * 32 + "/-1-3",
        "other digits": "ab" * 32 + "/²-3",
        "backwards": "ab" * 32 + "/3-2",
        "too many": "ab" * 32 + "/0-64",
        "an endless number": "ab" * 32 + "/0-" + "9" * 5000,
    }.values(),
)
def test_a_path_that_names_no_chunks_is_malformed(rest):
    with pytest.raises(Malformed, match="HASH/FIRST-LAST"):
        routes.read_chunks_path(routes.CHUNKS + rest)
