"""The Roots of a run, in order: by which keys a document holds that was signed for good. Pure.

Rules
1. A Received or a Receipt holds if the keys of its role in any Root of the chain signed it, the newest first.
2. Where only the keys of an earlier Root signed it, those keys were rotated: it holds if its time `at` is before
   `issued` of the first Root without them. A Root without `issued` sets no such bound.
3. A revoked key vouches for nothing, in no Root: a thief can write any `at`. The one exception is a document that its
   holder stored before it took the Root that revokes the key, and whose `at` is before the time of the revocation.
4. A key that one Root revoked stays revoked in every later one.
"""

from collections.abc import Sequence

from p2p.envelope import ROLES, open_sealed, peek
from p2p.errors import BadSignature, Malformed
from p2p.messages import HeadAnswer, HeadAsk, Receipt, Received, Root, decode, encode


class Unproven(BadSignature):
    """A key signed the document that was rotated or revoked before the document's time."""


def head_answer(question: bytes, head: bytes | None, roots: Sequence[bytes]) -> bytes:
    """Return the encoded answer to a HeadAsk: the Head, and the Roots behind the one that the asker holds. `roots`:
    sealed, all of them in order. A question that does not decode asks for no Roots: programs from before this field may
    send anything."""
    try:
        serial = decode(question, HeadAsk).root_serial
    except Malformed:
        serial = None
    newer = [] if serial is None else [one for one in roots if decode(peek(one).payload, Root).serial > serial]
    return encode(HeadAnswer(head=head, roots=newer))


def revoked(chain: Sequence[Root], stored: int | None = None, at: int | None = None) -> set[bytes]:
    """Return the keys that vouch for nothing (rules 3 and 4). `stored`: serial of the newest Root that the holder had
    when it stored the document; None: it stores it now. `at`: the document's own time."""
    gone = set()
    for root in chain:
        for key, since in root.revoked.items():
            kept = stored is not None and at is not None and stored < root.serial and at < since
            if not kept:
                gone.add(key)
    return gone


def open_kept(sealed: bytes, kind: str, chain: Sequence[Root], *, stored: int | None = None) -> bytes:
    """Return the payload of a Received or a Receipt that holds by these Roots (rules 1 to 4). `stored`: see `revoked`.

    Raises `BadSignature`, of which `Unproven` where a former key signed it, and `Malformed`."""
    if not chain:
        raise BadSignature("no Root is held")
    after: Root | None = None
    for root in reversed(chain):
        role = root.roles[ROLES[kind]]
        try:
            payload = open_sealed(sealed, kind, root.run, role.keys, role.threshold)
        except BadSignature:
            after = root
            continue
        at = decode(payload, Receipt).at if kind == "receipt" else decode(payload, Received).at
        if after is not None and after.issued is not None and at >= after.issued:
            raise Unproven(f"Root {after.serial} had replaced the key that signed this {kind}")
        gone = revoked(chain, stored, at)
        if gone.isdisjoint(role.keys):
            return payload
        try:
            good = set(role.keys) - gone
            return open_sealed(sealed, kind, root.run, good, role.threshold)
        except BadSignature as error:
            raise Unproven(f"the key that signed this {kind} was revoked") from error
    raise BadSignature(f"{kind}: not signed by the keys of role {ROLES[kind]} in any Root of the run")
