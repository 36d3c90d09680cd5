"""The sentences on what is joined: all that an owner should know, and nothing that a run could forge."""

from pathlib import Path

import msgspec
import pytest

from echo2.node.config import NodeConfig
from echo2.node.joined_run import page_address, sentences
from echo2.p2p.errors import Malformed
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.authority import RunSpec
from tests.support.group_world import SPEC

PEER = "12D3KooWAbcdefghijk"
HOME = NodeConfig(home=Path("/home/ann/node"))


def test_name_purpose_operator_page_task_use_and_what_others_see_are_said() -> None:
    spec = msgspec.structs.replace(
        SPEC, name="first", description="Sorts lists.", contact="ann@example.org", page="https://run.example.org"
    )
    said = "\n".join(sentences(spec, HOME, "AAAA-BBBB-CCCC-DDDD", PEER))
    for part in (
        "first (AAAA-BBBB-CCCC-DDDD): Sorts lists.", "ann@example.org", "https://run.example.org", "earn points",
        "at most 50 GB in /home/ann/node", "upload as fast as it goes", "'defghijk'", "finish",
    ):  # fmt: skip
        assert part in said
    assert len(said.splitlines()) <= 12


def test_caps_team_and_money_are_said_where_they_are_set() -> None:
    config = NodeConfig(home=Path("/h"), uplink=4, downlink=20, name="owl", team="Night")
    said = "\n".join(sentences(msgspec.structs.replace(SPEC, currency="EUR"), config, "F", PEER))
    for part in ("money, in EUR", "at most 4 Mbit/s of upload", "20 Mbit/s of download", "'owl', the team 'Night'"):
        assert part in said


def test_a_hostile_run_can_neither_clear_the_terminal_nor_add_a_sentence() -> None:
    hostile = "\x1b[2J\nnext sentence\u202e" + "w" * 400
    spec = msgspec.structs.replace(SPEC, name=hostile[:200], description=hostile, contact=hostile, page=hostile)
    said = sentences(spec, HOME, "F", PEER)
    assert all(sentence.isprintable() for sentence in said)
    assert page_address(spec) == ""


def test_many_tasks_are_counted() -> None:
    many = [msgspec.structs.replace(SPEC.tasks[0], name=f"task{number}") for number in range(5)]
    said = "\n".join(sentences(msgspec.structs.replace(SPEC, tasks=many), HOME, "F", PEER))
    assert "task0, task1, task2 and 2 more" in said.replace(" (judged by the operator)", "")


def test_a_task_that_is_a_path_at_its_operator_is_shown_without_the_path() -> None:
    names = ("math:/home/op/private/sums.jsonl?problem=q", "verifiers:/srv/mine.toml", "gym:chain_sum=3,gsm_symbolic")
    tasks = [msgspec.structs.replace(SPEC.tasks[0], name=name) for name in names]
    said = "\n".join(sentences(msgspec.structs.replace(SPEC, tasks=tasks), HOME, "F", PEER))
    for part in ("math: sums.jsonl", "verifiers: mine.toml", "gym:chain_sum=3,gsm_symbolic"):
        assert part in said
    assert "private" not in said
    assert "/srv" not in said


@pytest.mark.parametrize("field", ["description", "page", "contact"])
def test_a_run_whose_words_take_a_megabyte_is_none(field: str) -> None:
    endless = msgspec.structs.replace(SPEC, **{field: "w" * 1_000_000})
    with pytest.raises(Malformed):
        decode(encode(endless), RunSpec)
    assert decode(encode(msgspec.structs.replace(SPEC, **{field: "w" * 500})), RunSpec)
