"""An attack for each row of docs/reference/limits.md (tests/docs/limit_table.py), by the row's limit and its holder."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from echo2.coordinator.leases.expiry_budgets import HOUR, LONGEST_EXPIRY_PAUSE_MS
from echo2.coordinator.payouts.payee_requests import PENDING_CHANGE_MS
from echo2.coordinator.publishing.foreign_heads import ASK_EVERY, HEAD_ANSWER_SECONDS, MOST_WAITING_CLAIMS
from echo2.coordinator.web.page_listener import WebLimits
from echo2.coordinator.web.tile_routes import TILE_SECONDS
from echo2.p2p.https.client_limits import HttpsLimits
from echo2.p2p.limits.dial_backoff import FAILURE_EACH
from echo2.p2p.limits.least_rate import RATE_SECONDS
from echo2.p2p.limits.relay_quota import RelayLimits
from echo2.p2p.transport import TRANSPORT_SILENCE_SECONDS
from echo2.runtime.units import DAY
from tests.docs.limit_table import LIMITS
from tests.support.limit_attacks import accept_attacks, market_attacks, reach_attacks, run_attacks, serve_attacks
from tests.support.limit_attacks import stream_attacks as streams
from tests.support.limit_attacks.attack import Attack, Taken

ONE_SUBNET: Final = ["8.8.0.1"]
MANY: Final = [f"8.8.{number}.1" for number in range(8)]
STORE: Final = "what a store keeps is bounded; the newest displace the oldest"
LEASE_SECONDS: Final = 3600.0

Run = Callable[[Path, float], Taken]


def store(run: Run) -> Attack:
    """Return an attack on a store: it keeps what it has."""
    return Attack(run, DAY / 1000, STORE)


_ATTACKS: Final[Mapping[str, Mapping[str, Attack]]] = {
    "connections over libp2p": {
        "coordinator": Attack(accept_attacks.half_handshakes(accept_attacks.strangers, "8.{}.0.1")),
        "subnet": Attack(accept_attacks.half_handshakes(accept_attacks.of_one_subnet, "8.8.0.{}")),
    },
    "new connections over libp2p": {"subnet": Attack(accept_attacks.new_connections)},
    "handshakes under": {
        "coordinator": Attack(accept_attacks.half_handshakes(accept_attacks.handshakes, "8.{}.0.1")),
    },
    "PROXY headers": {"entrance": Attack(accept_attacks.proxy_headers)},
    "streams that others opened": {
        "coordinator": Attack(streams.streams_of_all),
        "party": Attack(
            streams.streams_of_a_party, 2 * RATE_SECONDS,
            "requests beyond the rate of a party are delayed first, and answers to resets are bytes that come",
        ),
    },
    "chunk streams": {
        "peer": Attack(
            streams.chunk_streams, TRANSPORT_SILENCE_SECONDS,
            "a chunk stream may be idle; it counts for its own peer alone, and gives way as a stream",
        ),
    },
    "bytes of unfinished requests over libp2p": {"all peers": Attack(streams.unfinished_bytes)},
    "bytes of unfinished bodies over HTTPS": {
        "all peers": Attack(serve_attacks.over_https(serve_attacks.https_unfinished, MANY)),
    },
    "whole requests": {
        "entrance": Attack(streams.slots(streams.slots_of_all, streams.SUBNETS)),
        "party": Attack(streams.slots(streams.slots_of_a_party, 2 * ONE_SUBNET)),
    },
    "requests over libp2p": {"peer": Attack(streams.requests)},
    "lease requests while": {"coordinator": Attack(run_attacks.unanswered_requests)},
    "connections over HTTPS": {
        "coordinator": Attack(serve_attacks.over_https(serve_attacks.https_strangers, MANY, connections=20)),
        "household": Attack(serve_attacks.over_https(serve_attacks.https_household, ONE_SUBNET, per_visitor=10)),
    },
    "requests over HTTPS": {
        "household": Attack(serve_attacks.request_rate(lambda parties: HttpsLimits(parties=parties))),
    },
    "connections to the page": {
        "page": Attack(serve_attacks.at_page(serve_attacks.page_strangers, MANY, connections=8)),
        "public household": Attack(serve_attacks.at_page(serve_attacks.page_household, ONE_SUBNET, per_visitor=5)),
    },
    "requests to the page": {
        "public household": Attack(serve_attacks.request_rate(lambda parties: WebLimits(parties=parties))),
    },
    "reads of the page": {
        "page": Attack(serve_attacks.READS_OF_ALL),
        "party": Attack(serve_attacks.READS_OF_A_PARTY),
    },
    "a part of a bundle": {
        "connection": Attack(
            serve_attacks.unread_parts, TILE_SECONDS,
            "64 KiB at the least rate take as long; its connection gives way to others from the start",
        ),
    },
    "proofs of the ledger": {"coordinator": Attack(run_attacks.PROOFS)},
    "ends of leases": {"coordinator": Attack(run_attacks.ENDS)},
    "answers that are remembered": {"coordinator": store(run_attacks.remembered_answers)},
    "open leases of new keys": {
        "coordinator": Attack(run_attacks.leases_of_new_keys, LEASE_SECONDS, "a lease is whole, and lasts its life"),
    },
    "expired leases of new keys": {
        "party": Attack(
            run_attacks.expiries_of_new_keys, (HOUR + LONGEST_EXPIRY_PAUSE_MS) / 1000,
            "the pause is the attacker's own, and counts an hour",
        ),
    },
    "lease requests that wait": {
        "coordinator": Attack(run_attacks.retries, 600.0, "the wait is the attacker's own, and passes"),
    },
    "tokens of refused groups": {
        "party": Attack(run_attacks.refused_tokens, 2 * DAY / 1000, "a verdict can be run again for a day"),
    },
    "keys without groups": {"coordinator": store(run_attacks.keys_without_groups)},
    "nodes that are remembered": {"coordinator": store(run_attacks.remembered_nodes)},
    "peers that a newcomer": {"answer": store(run_attacks.named_peers)},
    "open leases of a known key": {"key": Attack(run_attacks.leases_of_a_known_key)},
    "groups that wait": {"coordinator": store(run_attacks.decoded_groups)},
    "appeals": {"key": store(run_attacks.appeals)},
    "changes of the payout": {
        "key": Attack(market_attacks.payout_accounts, PENDING_CHANGE_MS / 1000, "it is a rate of entries for good"),
    },
    "claims of foreign heads": {
        "coordinator": Attack(
            run_attacks.foreign_claims, 2 * MOST_WAITING_CLAIMS * (ASK_EVERY + HEAD_ANSWER_SECONDS),
            "each is asked for in its order; those of nodes that work come first",
        ),
    },
    "keys present in a market": {"epoch": store(market_attacks.present_keys)},
    "asks of keys without": {"epoch": Attack(market_attacks.free_asks, 60.0, "an ask is an entry of its epoch")},
    "relay reservations": {"relay": Attack(reach_attacks.reservations)},
    "relayed circuits": {
        "relay": Attack(
            reach_attacks.circuits, RelayLimits().duration, "a circuit is whole; it gives way to those of other parties"
        ),
    },
    "relayed bytes": {"relay": Attack(reach_attacks.relayed_bytes)},
    "dial backs": {"host": Attack(reach_attacks.dial_backs)},
    "hole punches": {"host": Attack(reach_attacks.hole_punches)},
    "dials to addresses": {
        "host": Attack(reach_attacks.dials, 16 * FAILURE_EACH, "it is a rate of dials, spent on hosts that fail"),
    },
    "records of peers": {"host": store(reach_attacks.records)},
    "a gossip message": {"message": Attack(streams.gossip_message)},
    "gossip that is no copy": {"party": Attack(streams.gossip_rate)},
    "peers that are known to have the newest gossip": {"topic": store(reach_attacks.holders)},
    "senders whose payload bytes": {"host": store(reach_attacks.senders)},
    "banned peers": {"host": store(reach_attacks.bans)},
    "connections to a former identity": {"identity": Attack(accept_attacks.former_identity)},
    "open files": {"daemon": store(run_attacks.open_files)},
    "disk for rollouts": {"run": store(run_attacks.stored_rollouts)},
    "disk for versions": {"store": store(run_attacks.stored_versions)},
}  # fmt: skip
"""By the first words of a row's limit, and of its holder."""


def row_of(limit: str, per: str) -> tuple[str, str]:
    """Return the key in `_ATTACKS` of a row; empty strings where it has none."""
    for name, of_holders in _ATTACKS.items():
        if limit.startswith(name):
            holder = next((one for one in of_holders if per.startswith(one)), "")
            return name, holder
    return "", ""


ATTACKS: Final[dict[str, Attack | None]] = {
    f"{limit.name}, {limit.per}": _ATTACKS.get(name, {}).get(holder)
    for limit in LIMITS
    for name, holder in [row_of(limit.name, limit.per)]
}
"""By the row; None: the row has no attack."""
LEFT: Final = {(name, holder) for name, of_holders in _ATTACKS.items() for holder in of_holders} - {
    row_of(limit.name, limit.per) for limit in LIMITS
}
"""Attacks on rows that are not there."""
