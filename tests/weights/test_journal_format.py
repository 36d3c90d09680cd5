"""The journal on disk: its golden vector, read by the rules of docs/protocol/disk.md, and completed on opening."""

import base64
import json
import struct
from pathlib import Path

import pytest
from blake3 import blake3

from echo2.weights.diff import encode
from echo2.weights.journaled import Rolling
from echo2.weights.snapshot import Snapshot
from tests.support.paths import VECTORS

Step = tuple[Snapshot, Snapshot]
GOLDEN = base64.b64decode(json.loads((VECTORS / "weights_journal.json").read_text())["journal"])


def test_a_step_writes_the_journal_of_the_golden_vector(step: Step, tmp_path: Path) -> None:
    rolling = Rolling.create(tmp_path / "rolling", step[0])
    rolling.apply(encode(*step, tmp_path / "payload").path, step[1].root)
    assert (tmp_path / "rolling" / "undo" / "000000000000").read_bytes() == GOLDEN


def test_the_golden_journal_says_what_the_page_says(step: Step) -> None:
    old, new = step
    body, end = GOLDEN[:-32], len(GOLDEN) - 32
    assert (body[:8], body[8:40], body[40:72]) == (b"echo2JN1", old.root, new.root)
    assert GOLDEN[-32:] == blake3(body).digest()
    before, after = (bytearray(one.path.read_bytes()[one.start :]) for one in step)
    at, widths = 72, list[int]()
    while at < end:
        start, width, count = struct.unpack_from("<QII", body, at)
        at, widths = at + 16, [*widths, width]
        positions = struct.unpack_from(f"<{count}I", body, at)
        assert sorted(set(positions)) == list(positions)
        olds, news = at + 4 * count, at + (4 + width) * count
        for place, position in enumerate(positions):
            element = slice(start + position * width, start + (position + 1) * width)
            assert before[element] == body[olds + place * width : olds + (place + 1) * width]
            before[element] = body[news + place * width : news + (place + 1) * width]
        at = news + width * count
    assert at == end
    assert before == after
    assert widths == [2, 4, 2]


@pytest.mark.parametrize(("name", "which", "beside"), [("forward", 1, "undo"), ("back", 0, "redo")])
def test_a_golden_journal_that_lies_there_decided_is_finished(
    step: Step, tmp_path: Path, name: str, which: int, beside: str
) -> None:
    folder = tmp_path / "rolling"
    Rolling.create(folder, step[1 - which])
    (folder / name).write_bytes(GOLDEN)
    rolling = Rolling(folder)
    assert rolling.root == Snapshot(rolling.path).root == step[which].root
    assert [path.read_bytes() for path in (folder / beside).iterdir()] == [GOLDEN]
    assert not (folder / name).exists()
