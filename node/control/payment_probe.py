"""Ask a run how it pays, as a node does that joins: before anybody earns, and without joining.

Rules
1. The Roots that the peer shows are verified up to that of the invite; the request is for their channel key alone.
2. A temporary key asks: the node's identity is not disclosed. Nothing is stored.
"""

import os
from typing import Final

from echo2.node.control.doctor_checks import Check
from echo2.node.market.payee_file import payments
from echo2.node.trust.trusted_set import TrustedSet
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.envelope import seal
from echo2.p2p.errors import P2PError
from echo2.p2p.identity import generate_key
from echo2.p2p.network import Rpc
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.market import PayeeRequest
from echo2.protocol.methods import HEAD, PAYEE
from echo2.protocol.refusals import UNKNOWN_METHOD
from echo2.protocol.requests import Request, Response
from echo2.protocol.versions import HeadRequest

_REQUEST_LIFE_MS: Final = 60_000
"""Milliseconds for which the request is valid."""


async def ask(rpc: Rpc, peer: str, invite: Invite, now: int, *, patience: float) -> Check:
    """Return how the run of an invite pays, as `join` logs it. `peer`: its coordinator. `now`: ms. `patience`: seconds
    for each of two answers."""
    try:
        answer = await _answer(rpc, peer, invite, now, patience)
        if answer.body is not None:
            return _check(payments(PAYEE.answer.decode(answer.body)))
    except P2PError as error:
        return _check(f"not known: {error}")
    if answer.refusal is not None and answer.refusal.code == UNKNOWN_METHOD:  # it has no accounts
        return _check("points, no money")
    return _check(f"not known: {'no answer' if answer.refusal is None else answer.refusal.sentence}")


async def _answer(rpc: Rpc, peer: str, invite: Invite, now: int, patience: float) -> Response:
    """Return the coordinator's answer. Raises `P2PError`."""
    trusted = TrustedSet(invite.run, invite.root_hash)
    for sealed in (await HEAD.ask(rpc, peer, HeadRequest(root_serial=0), timeout=patience)).roots:
        trusted.update_root(sealed, now)
    request = Request(
        recipient=trusted.channel, id=os.urandom(16), method=PAYEE.name, expires=now + _REQUEST_LIFE_MS,
        body=PAYEE.request.encode(PayeeRequest(account=None)),
    )  # fmt: skip
    sealed = seal("request", invite.run, encode(request), generate_key())
    return decode(await rpc.request(peer, PAYEE.name, sealed, timeout=patience), Response)


def _check(actual: str) -> Check:
    return Check(check="pay", actual=actual, wanted="known before you earn")
