"""Names of nodes: what is shown, and which names look alike."""

import json
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.nodes.node_names import display_name, is_reserved, skeleton
from echo2.p2p.identity import peer_id
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.requests import Welcome
from tests.support import paths
from tests.support.group_world import ALICE, BOB, HELLO, T0, World
from tests.support.sqlite_cost import instructions

VECTORS = json.loads((paths.VECTORS / "names.json").read_text())
SHOWN = {
    "a plain name": ("my farm", "my farm"),
    "an escape and a new line": ("\x1b[31mred\r\nx", "?[31mred??x"),
    "marks that turn the direction": ("a\u202eb\u2066c\u200fd", "a?b?c?d"),
    "characters without width": ("a\u200bb\u2060c\ufeffd\u034fe\ufe0ff\u3164g", "a?b?c?d?e?f?g"),
    "full-width letters, by compatibility": ("\uff21\uff2c\uff29\uff23\uff25", "ALICE"),
    "a heap of marks on one letter": ("a" + "\u0335" * 30 + "b", "a\u0335\u0335b"),
    "other white space": ("a\u3000\u00a0 b", "a b"),
    "a letter that becomes eighteen": ("\ufdfa" * 40, display_name("\ufdfa" * 40)),
    "a lone surrogate, which no file takes": ("a\ud800", "a?"),
}


@pytest.mark.parametrize("case", SHOWN)
def test_a_name_is_shown_without_characters_that_change_what_stands_beside_it(case: str) -> None:
    name, expected = SHOWN[case]
    assert display_name(name) == expected
    assert len(display_name(name)) <= 40
    assert display_name(display_name(name)) == display_name(name)


ALIKE = {
    "Cyrillic letters": ("Alice", "\u0410l\u0456\u0441\u0435"),
    "Greek letters": ("nova", "n\u03bfv\u03b1"),
    "digits for letters": ("Alice 10", "A1ice lO"),
    "upper case": ("alice", "ALICE"),
    "marks": ("alice", "\u00e1lic\u00e9"),
    "mathematical letters": ("alice", "\U0001d41a\U0001d425\U0001d422\U0001d41c\U0001d41e"),
    "two letters for one": ("modern", "rnodem"),
    "signs between": ("al-ice", "a.l ice"),
    "c and l for d": ("coordinator", "coorclinator"),
    "a bracket at the end": ("alice", "alice (4hBdfeSB)"),
    "brackets at the end": ("alice", "alice (4hBdfeSB) (proven"),
}


@pytest.mark.parametrize("case", ALIKE)
def test_names_that_look_alike_have_one_skeleton(case: str) -> None:
    one, other = ALIKE[case]
    assert skeleton(display_name(one)) == skeleton(display_name(other))


def test_other_names_and_names_of_signs_alone_have_their_own() -> None:
    names = ["alice", "alicia", "bob", "\u2605", "\u2606", "(x)", "\u4e2d\u6587", "\u65e5\u672c"]
    assert len({skeleton(display_name(name)) for name in names}) == len(names)


@pytest.mark.parametrize(
    "name", ["Coordinator", "the C00RDlNAT0R", "\u0441oordinator-2", "co-ordinator", "0perat0r", "coorclinator"]
)
def test_words_of_the_run_are_reserved(name: str) -> None:
    assert is_reserved(display_name(name))
    assert not is_reserved(display_name("alice"))


def named(world: World, node: bytes, name: str) -> str:
    return world.group_service.registry.register(node, msgspec.structs.replace(HELLO, name=name), None, T0)


def names_shown(world: World) -> set[str]:
    return {row.name for row in world.rows()}


def proven(world: World, node: bytes) -> None:
    for _ in range(30):
        world.accepted(node)


def test_nobody_is_shown_under_the_name_of_a_proven_node(tmp_path: Path) -> None:
    world = World(tmp_path, batch_groups=64)
    assert named(world, ALICE, "Alice") == "Alice"
    assert named(world, BOB, "a1ice") == "a1ice"  # nobody is proven yet
    proven(world, ALICE)
    end = f"({peer_id(BOB)[-8:]})"
    assert names_shown(world) == {"Alice", f"a1ice {end}"}  # renamed at once
    assert named(world, ALICE, "Alice") == "Alice"
    assert named(world, BOB, "\u0410lice") == f"\u0410lice {end}"
    assert named(world, BOB, f"Alice ({peer_id(ALICE)[-8:]})").endswith(end)
    assert named(world, BOB, "Bob") == "Bob"
    proven(world, BOB)
    assert named(world, BOB, "alice") == f"alice {end}"
    assert named(world, ALICE, "Alice") == "Alice"  # the one that was proven first keeps it
    assert named(world, BOB, "coordinator") == f"coordinator {end}"


def test_names_are_compared_again_when_a_node_becomes_proven(tmp_path: Path) -> None:
    world = World(tmp_path, batch_groups=64)
    named(world, ALICE, "alice")
    named(world, BOB, "\u0410lice")  # it looks like the other, and says no further hello
    for _ in range(29):
        world.accepted(BOB)
    assert names_shown(world) == {"alice", "\u0410lice"}
    world.accepted(BOB)
    assert names_shown(world) == {f"alice ({peer_id(ALICE)[-8:]})", "\u0410lice"}
    assert named(world, ALICE, "alice") == f"alice ({peer_id(ALICE)[-8:]})"
    proven(world, ALICE)
    assert names_shown(world) == {f"alice ({peer_id(ALICE)[-8:]})", "\u0410lice"}, "proven first, it keeps the name"


def test_the_cost_of_a_hello_does_not_grow_with_its_namesakes(world: World) -> None:
    def steps() -> int:
        return instructions(world.group_service.database, lambda: named(world, ALICE, "alice"), every=1)

    named(world, ALICE, "alice")
    few = steps()
    for number in range(300):
        named(world, number.to_bytes(32, "big"), "alice")
    assert steps() < few + 200


def test_the_golden_vectors() -> None:
    assert {name: skeleton(name) for name in VECTORS["skeletons"]} == VECTORS["skeletons"]
    told = Welcome(roots=[b"root"], runspec=b"runspec", head=None, peers=[], now=1, shown="alice (4hBdfeSB)")
    assert encode(told).hex() == VECTORS["Welcome"]
    assert decode(bytes.fromhex(VECTORS["Welcome"]), Welcome) == told
