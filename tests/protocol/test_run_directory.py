"""A directory: its signature, its bounds, and that a run stands in it once."""

import json
from typing import Any

import pytest

from echo2.p2p.discovery.invite import Invite
from echo2.p2p.identity import generate_key, public_bytes
from echo2.protocol import run_directory
from echo2.protocol.run_directory import BadDirectory, ListedRun

KEY = generate_key()
AUTHOR = public_bytes(KEY)


def invite(number: int) -> str:
    addresses = [f"/ip4/127.0.0.1/tcp/{number + 1}"]
    return Invite(run=bytes([number % 256]) * 32, root_hash=b"h" * 32, addresses=addresses).to_text()


def made(*runs: ListedRun, sequence: int = 1) -> bytes:
    return run_directory.write(runs, KEY, sequence, 1_000, 2_000)


def test_a_list_that_was_written_is_read_also_in_another_layout() -> None:
    data = made(ListedRun(invite=invite(1), name="sums", description="adds numbers, über alles"))
    again = json.dumps(json.loads(data), ensure_ascii=False).encode()
    known = run_directory.read(again, AUTHOR)
    assert (known.runs[0].description, known.sequence) == ("adds numbers, über alles", 1)
    assert known == run_directory.read(data, AUTHOR)


def changed(**fields: Any) -> bytes:
    return json.dumps(json.loads(made(ListedRun(invite=invite(1)))) | fields).encode()


WRONG = {
    "no JSON": (b"<html>", "no signed directory"),
    "no signature": (b'{"directory": 1}', "no signed directory"),
    "a list": (b"[]", "no signed directory"),
    "deep": (b"[" * 100_000, "no signed directory"),
    "too large": (b" " * (run_directory.MOST_BYTES + 1), "larger than 1 MB"),
    "a changed number": (changed(sequence=9), "not signed by"),
    "a changed run": (changed(runs=[]), "not signed by"),
    "a signature that is none": (changed(signature="00" * 64), "not signed by"),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_a_list_that_cannot_be_taken_is_one_sentence(sentence: str) -> None:
    data, said = WRONG[sentence]
    with pytest.raises(BadDirectory, match=said) as caught:
        run_directory.read(data, AUTHOR)
    assert "\n" not in str(caught.value)


def test_a_list_of_another_author_is_refused() -> None:
    with pytest.raises(BadDirectory, match="not signed by"):
        run_directory.read(made(), public_bytes(generate_key()))


def test_a_run_named_twice_too_many_runs_and_hostile_texts_are_refused_by_writer_and_reader() -> None:
    with pytest.raises(BadDirectory, match="names the run 'a' twice"):
        made(ListedRun(invite=invite(1), name="a"), ListedRun(invite=invite(257), name="b"))
    with pytest.raises(BadDirectory, match="cannot be printed"):
        made(ListedRun(invite=invite(1), name="\x1b[2J"))
    with pytest.raises(BadDirectory, match="has an invite that cannot be read"):
        made(ListedRun(invite="echo2-x", name="a"))
    with pytest.raises(BadDirectory, match="at most 1000 runs"):
        made(*[ListedRun(invite=invite(1))] * 1001)
