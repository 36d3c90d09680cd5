"""The trusted set: valid documents are adopted, each false one is refused by its own error."""

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey as Key

from echo2.node.trust.trusted_set import (
    HEAD_AHEAD,
    HEAD_LIFE,
    SEQUENCE_AHEAD,
    ExpiredHead,
    Mismatch,
    NotSigned,
    Rollback,
    RootExpired,
    TooFarAhead,
    TrustedSet,
)
from echo2.p2p.envelope import Verified, decode_unverified, document_hash, seal, verify
from echo2.p2p.errors import BadSignature, Malformed, Stale
from echo2.p2p.identity import generate_key, public_bytes
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.authority import RoleKeys, Root, WrongRoot, threshold_changes
from echo2.weights.documents import Edge, EdgeIndex
from tests.support.operator_keys import NOW, RUN, YEAR, Operator

OTHER_RUN = b"o" * 32


class Counted:
    """A function that counts its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self.calls = function, 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return self._function(*args)


def rooted(operator: Operator) -> TrustedSet:
    first = operator.root_document()
    trusted = TrustedSet(RUN, hashlib.sha256(first).digest())
    trusted.update_root(first, NOW)
    return trusted


def holding(operator: Operator, number: int = 5, sequence: int = 50) -> TrustedSet:
    trusted = rooted(operator)
    version = operator.version(number)
    trusted.update_version(operator.head(version, number, sequence), version, NOW)
    return trusted


def test_a_chain_of_roots_from_the_invite_is_followed() -> None:
    old, new = Operator(), Operator()
    trusted = rooted(old)
    second = new.root_document(1, old.root, new.root)
    assert trusted.update_root(second, NOW).serial == 1
    assert trusted.channel == public_bytes(new.channel)
    assert trusted.update_root(second, NOW).serial == 1
    assert [root.serial for root in trusted.chain] == [0, 1]


def _copies(sealed: bytes, kind: str = "root") -> dict[str, bytes]:
    """Return copies of a sealed document that anybody can make."""
    envelope = decode_unverified(sealed)
    stranger = decode_unverified(seal(kind, RUN, envelope.payload, generate_key())).signatures
    fields = msgspec.msgpack.decode(sealed)
    return {
        "in another order": msgspec.msgpack.encode(
            msgspec.structs.replace(envelope, signatures=envelope.signatures[::-1])
        ),
        "a stranger's signature beside them": msgspec.msgpack.encode(
            msgspec.structs.replace(envelope, signatures=[*envelope.signatures, *stranger])
        ),
        "a further item": msgspec.msgpack.encode([*fields, b"junk"]),
    }


@pytest.mark.parametrize("copy", ["in another order", "a stranger's signature beside them", "a further item"])
def test_a_root_that_a_peer_passed_on_with_other_signatures_is_the_coordinators_own(copy: str) -> None:
    """One peer that was quicker than the coordinator parted a node from its run for good, across restarts."""
    old, new = Operator(), Operator()
    trusted = rooted(old)
    second = new.root_document(1, old.root, new.root)
    changed = _copies(second)[copy]
    assert changed != second
    assert trusted.update_root(changed, NOW).serial == 1
    assert trusted.update_root(second, NOW).serial == 1
    assert [root.serial for root in trusted.chain] == [0, 1]
    third = new.root_document(2, new.root)
    for sealed in (trusted.roots[0], second, third):
        trusted.update_root(sealed, NOW)
    assert trusted.chain[-1].serial == 2


def test_a_root_with_much_beside_it_is_neither_kept_nor_served() -> None:
    old, new = Operator(), Operator()
    trusted = rooted(old)
    second = new.root_document(1, old.root, new.root)
    with pytest.raises(WrongRoot, match="at most 65536"):
        trusted.update_root(msgspec.msgpack.encode([*msgspec.msgpack.decode(second), bytes(65_536)]), NOW)
    assert trusted.update_root(second, NOW).serial == 1


@pytest.mark.parametrize("copy", ["a stranger's signature beside them", "a further item"])
def test_a_copy_of_the_head_that_is_held_takes_no_place(copy: str) -> None:
    """Each copy was written to the disk, and anybody could gossip thousands of them."""
    operator = Operator()
    trusted = holding(operator)
    assert trusted.head is not None
    held = trusted.head.sealed
    for _ in range(3):
        assert trusted.offer_head(_copies(held, "head")[copy], NOW).value == trusted.head.value
        assert trusted.head.sealed == held


def test_a_head_with_much_beside_it_takes_no_memory() -> None:
    """Sixteen copies of one Head, each of another 60 MiB, were kept at a time."""
    operator = Operator()
    trusted = holding(operator)
    newer = msgspec.msgpack.decode(operator.head(operator.version(6), 6, 60))
    with pytest.raises(Malformed, match="at most 16384"):
        trusted.offer_head(msgspec.msgpack.encode([*newer, bytes(65_536)]), NOW)
    assert trusted.offer_head(msgspec.msgpack.encode(newer), NOW).value.version == 6


BAD_ROOTS: dict[str, tuple[Callable[[Operator, Operator], bytes], type[Exception]]] = {
    "another run's Root": (lambda old, new: old.root_document(1, run=OTHER_RUN), WrongRoot),
    "a stranger's Root": (lambda old, new: new.root_document(1), WrongRoot),
    "signed by the old keys alone": (lambda old, new: new.root_document(1, old.root), WrongRoot),
    "signed by the new keys alone": (lambda old, new: new.root_document(1, new.root), WrongRoot),
    "a serial left out": (lambda old, new: new.root_document(2, old.root, new.root), WrongRoot),
    "a second Root with the first serial": (lambda old, new: old.root_document(0, expires=YEAR + 1), WrongRoot),
    "bytes of nothing": (lambda old, new: b"\xc1", Malformed),
    "a Head in its place": (lambda old, new: old.head(old.version(1), 1, 1), Malformed),
}


@pytest.mark.parametrize("lie", BAD_ROOTS)
def test_a_false_root_is_refused_and_changes_nothing(lie: str) -> None:
    old, new = Operator(), Operator()
    trusted = rooted(old)
    make, error = BAD_ROOTS[lie]
    with pytest.raises(error):
        trusted.update_root(make(old, new), NOW)
    assert trusted.channel == public_bytes(old.channel)
    assert len(trusted.roots) == 1


def test_the_first_root_is_the_one_that_the_invite_names() -> None:
    trusted = TrustedSet(RUN, hashlib.sha256(Operator().root_document()).digest())
    with pytest.raises(WrongRoot, match="invite"):
        trusted.update_root(Operator().root_document(), NOW)
    assert trusted.root is None


def test_no_document_is_trusted_before_a_root() -> None:
    operator = Operator()
    trusted = TrustedSet(RUN, b"h" * 32)
    with pytest.raises(BadSignature):
        trusted.update_runspec(operator.runspec())
    with pytest.raises(BadSignature):
        trusted.offer_head(operator.head(operator.version(1), 1, 1), NOW)


def test_an_expired_root_verifies_no_document() -> None:
    operator = Operator()
    trusted = holding(operator)
    with pytest.raises(RootExpired):
        trusted.offer_head(operator.head(operator.version(6), 6, 60, expires=YEAR * 2), YEAR)


def test_the_runspec_is_the_roots_and_never_changes() -> None:
    operator = Operator()
    trusted = rooted(operator)
    assert trusted.update_runspec(operator.runspec()).value.name == "run"
    assert trusted.update_runspec(operator.runspec()).value.name == "run"
    with pytest.raises(BadSignature):
        trusted.update_runspec(operator.runspec(key=operator.channel))
    with pytest.raises(Mismatch):
        trusted.update_runspec(operator.runspec(name="another"))
    assert trusted.runspec is not None
    assert trusted.runspec.value.name == "run"


Lie = Callable[[Operator], tuple[bytes, bytes]]
"""(sealed Head, sealed Version) offered to a node that holds version 5 at sequence 50."""


def _head_of(number: int, sequence: int, **changes: object) -> Lie:
    def make(operator: Operator) -> tuple[bytes, bytes]:
        era = changes.get("era", 1)
        version = operator.version(number, era=era if isinstance(era, int) else 1)
        return operator.head(version, number, sequence, **changes), version  # type: ignore[arg-type]

    return make


def _other_version(number: int, **changes: object) -> Lie:
    """Offer a Head together with a Version that it does not name."""

    def make(operator: Operator) -> tuple[bytes, bytes]:
        return operator.head(operator.version(number), number, 60), operator.version(**{"number": number, **changes})  # type: ignore[arg-type]

    return make


def _named(version: Callable[[Operator], bytes], number: int) -> Lie:
    """Offer a Head that names a Version with a fault of its own."""

    def make(operator: Operator) -> tuple[bytes, bytes]:
        signed = version(operator)
        return operator.head(signed, number, 60), signed

    return make


STRANGER = generate_key()
LIES: dict[str, tuple[Lie, type[Exception]]] = {
    "a Head signed by a stranger": (_head_of(6, 60, key=STRANGER), BadSignature),
    "a Head of another run": (_head_of(6, 60, run=OTHER_RUN), BadSignature),
    "a Head that is signed by the policy": (lambda o: _head_of(6, 60, key=o.policy)(o), BadSignature),
    "rollback: an older version under a newer sequence": (_head_of(4, 60), Rollback),
    "rollback: an older era": (_head_of(6, 60, era=0), Rollback),
    "rollback: the same version under an older sequence": (_head_of(5, 49), Rollback),
    "freeze: a Head that has expired": (_head_of(6, 60, expires=NOW), ExpiredHead),
    "fast-forward: a Head whose Version the channel signed": (
        lambda o: _named(lambda o: o.version(1 << 40 & 0xFF | 9, root=b"f" * 32, key=o.channel), 9)(o), BadSignature
    ),
    "fast-forward: a Head that names an old Version as a new one": (_named(lambda o: o.version(5), 1 << 40), Mismatch),
    "mix-and-match: another Version than the Head names": (_other_version(6, root=b"x" * 32), Mismatch),
    "mix-and-match: a Version of another number": (_named(lambda o: o.version(7), 6), Mismatch),
    "mix-and-match: a Version of another era": (_named(lambda o: o.version(6, era=2), 6), Mismatch),
    "mix-and-match: a second Version with the number held": (
        _named(lambda o: o.version(5, root=b"x" * 32), 5), Mismatch
    ),
    "two Heads with one sequence": (_head_of(5, 50, step=99), Mismatch),
    "a Head that lives a millisecond too long": (_head_of(6, 60, expires=NOW + HEAD_LIFE + 1), TooFarAhead),
    "a Head from the future": (
        _head_of(6, 60, issued=NOW + HEAD_AHEAD + 1, expires=NOW + HEAD_AHEAD + 2), TooFarAhead
    ),
    "a sequence more than a day ahead": (_head_of(6, NOW + SEQUENCE_AHEAD + 1), TooFarAhead),
    "the highest sequence that there is": (_head_of(6, (1 << 53) - 1), TooFarAhead),
    "an Edge where a Version belongs": (lambda o: _named(lambda o: o.edge(6), 6)(o), BadSignature),
    "a Head cut short": (lambda o: (o.head(o.version(6), 6, 60)[:-10], o.version(6)), Malformed),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused_and_the_version_held_stays(lie: str) -> None:
    operator = Operator()
    trusted = holding(operator)
    before = (trusted.head, trusted.version)
    make, error = LIES[lie]
    head, version = make(operator)
    with pytest.raises(error):
        trusted.update_version(head, version, NOW)
    assert (trusted.head, trusted.version) == before
    good = operator.version(6)
    assert trusted.update_version(operator.head(good, 6, 70), good, NOW).value.version == 6


def test_a_head_at_its_bounds_is_accepted() -> None:
    operator = Operator()
    trusted, six = holding(operator), operator.version(6)
    edge = NOW + HEAD_AHEAD
    head = operator.head(six, 6, NOW + SEQUENCE_AHEAD, issued=edge, expires=edge + HEAD_LIFE)
    assert trusted.update_version(head, six, NOW).value.version == 6


def test_a_head_accepted_under_a_clock_that_ran_ahead_blocks_no_later_head_once_the_clock_is_right() -> None:
    operator = Operator()
    trusted, five, year = rooted(operator), operator.version(5), 300 * 24 * 3600_000
    ahead = operator.head(five, 5, NOW + year, issued=NOW + year, expires=NOW + year + 1)
    trusted.update_version(ahead, five, NOW + year)
    trusted.offer_head(operator.head(five, 5, NOW), NOW)
    assert trusted.head is not None
    assert trusted.head.value.sequence == NOW


def test_a_forged_head_alone_moves_nothing_forward() -> None:
    operator = Operator()
    trusted = holding(operator)
    trusted.offer_head(operator.head(operator.version(9), 9, 90), NOW)
    assert trusted.version is not None
    assert trusted.version.value.version == 5
    trusted.offer_head(operator.head(operator.version(5), 5, 51), NOW)
    assert trusted.head is not None
    assert (trusted.head.value.version, trusted.head.value.sequence) == (5, 51)


def test_a_new_channel_key_discards_the_head_and_keeps_the_version() -> None:
    old = Operator()
    trusted = holding(old, sequence=NOW + SEQUENCE_AHEAD)
    new = Operator(root=old.root, policy=old.policy, ledger=old.ledger)
    trusted.update_root(new.root_document(1), NOW)
    assert trusted.head is None
    trusted.offer_head(new.head(old.version(5), 5, 1), NOW)
    with pytest.raises(Rollback):
        trusted.offer_head(new.head(old.version(4), 4, 2), NOW)
    with pytest.raises(BadSignature):
        trusted.offer_head(old.head(old.version(6), 6, NOW + SEQUENCE_AHEAD), NOW)


def test_a_new_policy_key_heals_a_fast_forward_by_the_stolen_one() -> None:
    old = Operator()
    trusted = rooted(old)
    far = old.version(200)
    trusted.update_version(old.head(far, 200, 50), far, NOW)
    new = Operator(root=old.root, ledger=old.ledger)
    trusted.update_root(new.root_document(1), NOW)
    honest = new.version(6)
    assert trusted.update_version(new.head(honest, 6, 60), honest, NOW).value.version == 6


def test_edges_are_named_by_the_index_and_the_index_by_the_head() -> None:
    operator = Operator()
    trusted = holding(operator)
    good, older = operator.edge(6), operator.edge(5)
    index = operator.index(6, good, older)
    version = operator.version(6)
    trusted.update_version(operator.head(version, 6, 60, index=index), version, NOW)
    head = trusted.head
    assert head is not None
    indexed = trusted.edge_index(index, head)
    assert [trusted.edge(edge, indexed).value.version for edge in (good, older)] == [6, 5]


def indexed(trusted: TrustedSet, operator: Operator, number: int, *edges: bytes) -> Verified[EdgeIndex]:
    """Adopt version `number`, whose index names these edges."""
    version, index = operator.version(number), operator.index(number, *edges)
    trusted.update_version(operator.head(version, number, number * 10, index=index), version, NOW)
    assert trusted.head is not None
    return trusted.edge_index(index, trusted.head)


def test_only_the_new_edges_of_an_index_are_fetched_and_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = Operator()
    trusted = holding(operator)
    five, six, seven = (operator.edge(number) for number in (5, 6, 7))
    first = indexed(trusted, operator, 6, five, six)
    assert trusted.unknown(first) == [document_hash(five), document_hash(six)]
    before = trusted.edges(first, {document_hash(edge): edge for edge in (five, six)})
    second = indexed(trusted, operator, 7, five, six, seven)
    assert trusted.unknown(second) == [document_hash(seven)]
    monkeypatch.setattr(Edge, "from_bytes", only := Counted(Edge.from_bytes))
    after = trusted.edges(second, {document_hash(seven): seven})
    assert [edge.value.version for edge in after] == [5, 6, 7]
    assert after[0] is before[0]
    assert only.calls == 1


def test_the_same_head_is_verified_once_under_a_root(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = Operator(), Operator()
    trusted = holding(old)
    version = old.version(6)
    head = old.head(version, 6, 60)
    first = trusted.offer_head(head, NOW)
    monkeypatch.setattr("echo2.node.trust.trusted_set.verify", verifying := Counted(verify))
    assert trusted.offer_head(head, NOW) is first
    assert trusted.update_version(head, version, NOW).value.version == 6
    assert verifying.calls == 1, "the Version"
    trusted.update_root(new.root_document(1, old.root, new.root), NOW)
    with pytest.raises(NotSigned):
        trusted.offer_head(head, NOW)


def test_edges_that_were_verified_under_a_former_root_are_verified_again() -> None:
    old, new = Operator(), Operator()
    new.policy = old.policy
    trusted, edge = holding(old), old.edge(6)
    trusted.edges(indexed(trusted, old, 6, edge), {document_hash(edge): edge})
    trusted.update_root(new.root_document(1, old.root, new.root), NOW)
    index = indexed(trusted, new, 6, edge)
    assert trusted.unknown(index) == [document_hash(edge)]
    with pytest.raises(Stale, match="verified anew"):
        trusted.edges(index, {})
    assert len(trusted.edges(index, {document_hash(edge): edge})) == 1


def test_a_stored_edge_is_verified_by_the_policy_keys_of_any_root_of_the_chain() -> None:
    old, new, stranger = Operator(), Operator(), Operator()
    trusted = rooted(old)
    trusted.update_root(new.root_document(1, old.root, new.root), NOW)
    assert [trusted.stored_edge(one.edge(6)).value.version for one in (old, new)] == [6, 6]
    assert trusted.unknown(indexed(trusted, new, 6, old.edge(6), new.edge(6))) == [document_hash(old.edge(6))]
    with pytest.raises(NotSigned):
        trusted.stored_edge(stranger.edge(6))
    with pytest.raises(NotSigned):
        trusted.stored_edge(new.edge(6, key=new.channel))
    with pytest.raises(Malformed):
        trusted.stored_edge(b"no document")


BAD_EDGES: dict[str, tuple[Callable[[Operator], bytes], type[Exception]]] = {
    "an unsigned Edge": (lambda o: msgspec.msgpack.encode(["edge", RUN, b"payload", []]), BadSignature),
    "an Edge signed by the channel": (lambda o: o.edge(6, key=o.channel), BadSignature),
    "an Edge to another root than the Version's": (lambda o: o.edge(6, root=b"x" * 32), Mismatch),
    "an Edge past the Head": (lambda o: o.edge(7), Mismatch),
    "an Edge of a later era": (lambda o: o.edge(1, era=2), Mismatch),
    "a Version in its place": (lambda o: o.version(6), BadSignature),
}


@pytest.mark.parametrize("lie", BAD_EDGES)
def test_a_false_edge_is_refused_even_when_the_index_names_it(lie: str) -> None:
    operator = Operator()
    trusted = holding(operator)
    make, error = BAD_EDGES[lie]
    edge = make(operator)
    version, index = operator.version(6), operator.index(6, edge)
    trusted.update_version(operator.head(version, 6, 60, index=index), version, NOW)
    head = trusted.head
    assert head is not None
    with pytest.raises(error):
        trusted.edge(edge, trusted.edge_index(index, head))


def test_an_index_or_edge_that_is_not_named_is_refused() -> None:
    operator = Operator()
    trusted = holding(operator)
    version, index = operator.version(6), operator.index(6, operator.edge(6))
    trusted.update_version(operator.head(version, 6, 60, index=index), version, NOW)
    head = trusted.head
    assert head is not None
    with pytest.raises(Mismatch):
        trusted.edge_index(operator.index(6), head)
    with pytest.raises(Mismatch):
        trusted.edge(operator.edge(5), trusted.edge_index(index, head))
    of_another_number = operator.index(5, operator.edge(5))
    seven = operator.version(7)
    trusted.update_version(operator.head(seven, 7, 70, index=of_another_number), seven, NOW)
    with pytest.raises(Mismatch):
        trusted.edge_index(of_another_number, trusted.head or head)


def _with_roles(change: Callable[[dict[str, RoleKeys]], None]) -> Callable[[Operator], bytes]:
    """Make a second Root, signed by the root key, with changed roles."""

    def make(operator: Operator) -> bytes:
        own = decode(decode_unverified(operator.root_document()).payload, Root)
        changed = dict(own.roles)
        change(changed)
        return seal("root", RUN, encode(msgspec.structs.replace(own, serial=1, roles=changed)), operator.root)

    return make


def _keys(role: str, keys: int, threshold: int, double: bool = False) -> Callable[[dict[str, RoleKeys]], None]:
    def change(changed: dict[str, RoleKeys]) -> None:
        first = changed[role].keys[0]
        others = [first if double else bytes([n]) * 32 for n in range(1, keys)]
        changed[role] = RoleKeys(keys=[first, *others], threshold=threshold)

    return change


BAD_ROLES: dict[str, Callable[[Operator], bytes]] = {
    **{
        f"a Root without {role}": _with_roles(lambda changed, role=role: changed.pop(role) and None)
        for role in ("root", "policy", "channel", "ledger")
    },
    "a Root without a role": _with_roles(lambda changed: changed.clear()),
    "a root threshold that its keys did not reach": _with_roles(_keys("root", 3, 2)),
    "a root key named twice to reach its threshold": _with_roles(_keys("root", 2, 2, double=True)),
    "a channel key named twice": _with_roles(_keys("channel", 2, 1, double=True)),
    "a policy threshold above its number of keys": _with_roles(_keys("policy", 1, 2)),
}


@pytest.mark.parametrize("lie", BAD_ROLES)
def test_a_root_whose_roles_cannot_sign_is_refused_although_the_root_key_signed_it(lie: str) -> None:
    operator = Operator()
    trusted = rooted(operator)
    with pytest.raises(WrongRoot):
        trusted.update_root(BAD_ROLES[lie](operator), NOW)
    assert len(trusted.roots) == 1


@pytest.mark.parametrize(
    ("signers", "accepted"), [("old", False), ("new", False), ("one old, new", False), ("both", True)]
)
def test_a_lower_root_threshold_takes_the_old_threshold_and_the_new_one(signers: str, accepted: bool) -> None:
    """Of 2 of 3 keys, one remains as 1 of 1."""
    operator, keys, new = Operator(), [generate_key() for _ in range(3)], generate_key()

    def document(serial: int, members: list[Key], threshold: int, *by: Key) -> bytes:
        role = RoleKeys(keys=[public_bytes(key) for key in members], threshold=threshold)
        own = decode(decode_unverified(operator.root_document()).payload, Root)
        changed = msgspec.structs.replace(own, serial=serial, roles=own.roles | {"root": role})
        return seal("root", RUN, encode(changed), *by)

    first = document(0, keys, 2, *keys[:2])
    trusted = TrustedSet(RUN, hashlib.sha256(first).digest())
    trusted.update_root(first, NOW)
    by = {"old": keys[:2], "new": [new], "one old, new": [keys[0], new], "both": [*keys[:2], new]}[signers]
    second = document(1, [new], 1, *by)
    if accepted:
        trusted.update_root(second, NOW)
        assert threshold_changes(*trusted.chain) == [
            "Root 1 LOWERS the threshold of root: 1 of 1 keys sign, before 2 of 3"
        ]
        return
    with pytest.raises(WrongRoot):
        trusted.update_root(second, NOW)
    assert len(trusted.roots) == 1


def test_of_two_roots_with_one_serial_the_first_stays_and_the_second_ends_nothing() -> None:
    """Both are signed by the root key: nodes that took one never take the other."""
    operator, one, other = Operator(), Operator(), Operator()
    trusted = rooted(operator)
    one.root = other.root = operator.root
    first, second = one.root_document(1), other.root_document(1)
    trusted.update_root(first, NOW)
    with pytest.raises(WrongRoot, match="a Root with serial 1 cannot follow serial 1"):
        trusted.update_root(second, NOW)
    assert trusted.channel == public_bytes(one.channel)
    third = other.root_document(2)
    trusted.update_root(third, NOW)
    assert trusted.channel == public_bytes(other.channel), "the next Root joins both halves"


WRONG_TYPES: list[object] = [None, True, -1, 1 << 53, "text", b"", [], {}, 1.5]
REQUIRED = ("run", "serial", "roles", "expires")


@pytest.mark.parametrize("field", [*REQUIRED, "issued", "revoked"])
def test_a_signed_root_with_a_field_missing_or_of_a_wrong_type_is_refused_and_changes_nothing(field: str) -> None:
    operator = Operator()
    trusted = rooted(operator)
    good = msgspec.msgpack.decode(decode_unverified(operator.root_document(1)).payload) | {"issued": NOW, "revoked": {}}
    allowed: dict[str, tuple[object, ...]] = {"issued": (None,), "revoked": ({},)}
    bad = [good | {field: wrong} for wrong in WRONG_TYPES if wrong not in allowed.get(field, ())]
    if field in REQUIRED:
        bad.append({name: one for name, one in good.items() if name != field})
    for payload in bad:
        sealed = seal("root", RUN, msgspec.msgpack.encode(payload), operator.root)
        with pytest.raises((Malformed, WrongRoot)):
            trusted.update_root(sealed, NOW)
        assert len(trusted.roots) == 1
    trusted.update_root(seal("root", RUN, msgspec.msgpack.encode(good), operator.root), NOW)


def test_roots_at_the_limits_of_their_numbers() -> None:
    """32 keys of a role, 16 roles and 256 revocations are read; one more of each is not."""
    operator = Operator()
    good = msgspec.msgpack.decode(decode_unverified(operator.root_document(1)).payload)
    role = good["roles"]["ledger"]

    def many(keys: int, roles: int, revoked: int) -> bytes:
        keyed = {"keys": [bytes([n]) * 32 for n in range(1, 1 + keys)], "threshold": 1}
        names = {f"role {n}": role for n in range(roles - 4)}
        gone = {n.to_bytes(32, "big"): 1 for n in range(revoked)}
        payload = good | {"roles": good["roles"] | {"ledger": keyed} | names, "revoked": gone}
        return seal("root", RUN, msgspec.msgpack.encode(payload), operator.root)

    for numbers in ((33, 4, 0), (1, 17, 0), (1, 4, 257), (0, 4, 0)):
        with pytest.raises(Malformed):
            rooted(operator).update_root(many(*numbers), NOW)
    assert rooted(operator).update_root(many(32, 16, 256), NOW).serial == 1
