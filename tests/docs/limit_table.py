"""Write the table of limits on what others may hold or use here: `python -m tests.docs.limit_table`.

Each limit stands there once, with the number that the code has.

Rules
1. A limit that somebody else's bytes, requests or keys can reach has a row. Its number is the constant or the default
   setting that the code reads.
2. "Reserve" is for parties with accepted work alone (coordinator/nodes/trusted_parties.py).
3. "Given back" says by which event, and within which time, what a stranger held is free again.
4. The table goes between the lines `<!-- limits -->` and `<!-- end of limits -->` of docs/reference/limits.md.
"""

from typing import Final, NamedTuple

from echo2.coordinator.accounts import ledger_service, ledger_tiles
from echo2.coordinator.epochs import free_places, presence
from echo2.coordinator.leases import expiry_budgets, open_lease_limit, retry_times
from echo2.coordinator.nodes import node_registry, sightings
from echo2.coordinator.payouts import payee_requests
from echo2.coordinator.publishing import foreign_heads
from echo2.coordinator.run import former_identity
from echo2.coordinator.settings.config import CoordinatorConfig
from echo2.coordinator.submissions import request_priority, response_log
from echo2.coordinator.verdicts import reviews, token_storage, waiting_groups
from echo2.coordinator.web import page_listener, rationed_reads, tile_routes
from echo2.p2p.discovery import dial_back, peer_records
from echo2.p2p.https.client_limits import HttpsLimits
from echo2.p2p.limits import (
    bans,
    connection_places,
    dial_backoff,
    least_rate,
    proxy_header,
    request_slots,
    shares,
    subnets,
)
from echo2.p2p.limits.relay_quota import PUNCH_BURST, PUNCH_EACH, PUNCHES, RELAYED_RATE, RelayLimits
from echo2.p2p.network import GOSSIP_LIMIT
from echo2.p2p.peer import gossip
from echo2.p2p.swarm import download, exchange
from echo2.runtime import descriptors
from echo2.runtime.units import DAY, MBIT
from tests.docs.settings_table import replace_between
from tests.support.paths import ROOT

PAGE: Final = ROOT / "docs" / "reference" / "limits.md"
BEGIN, END = "<!-- limits -->", "<!-- end of limits -->"
QUARTER: Final = "a quarter"
NONE: Final = "none"
WITHOUT_WORK: Final = "all peers without accepted work"
_CONFIG, _HTTPS, _WEB, _RELAY = CoordinatorConfig(), HttpsLimits(), page_listener.WebLimits(), RelayLimits()
_SLOTS = request_slots


class Limit(NamedTuple):
    """One limit. `most`: number and unit. `per`: holder, all of whose keys share it. `reserve`: part of it for parties
    with accepted work. `returned`: event that frees what was occupied. `place`: setting or module."""

    name: str
    most: str
    per: str
    reserve: str
    returned: str
    place: str


def _count(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) else f"{number:g}"


def _at_rate(burst: float, rate: float) -> str:
    return f"{_count(burst)} at once, then {_count(rate)} a second"


LIMITS: Final = (
    Limit("connections over libp2p", _count(_CONFIG.network.connections), "coordinator",
          f"{QUARTER}, one place per party", "the connection's end", "`network.connections`"),
    Limit("connections over libp2p", _count(_CONFIG.network.subnet_connections), "subnet", NONE,
          "the connection's end", "`network.subnet_connections`"),
    Limit("new connections over libp2p", _at_rate(subnets.DIALS_BURST, subnets.DIALS_RATE),
          "subnet; a household has half", NONE, "time", "`p2p/limits/subnets.py`"),
    Limit("handshakes under way", f"a quarter of the connections, at least {connection_places.HANDSHAKES_MIN}",
          "coordinator", NONE, "the oldest of the household with most gives way", "`p2p/limits/connection_places.py`"),
    Limit("PROXY headers awaited", "a quarter of the connections", "entrance", NONE,
          f"the header, or {_count(proxy_header.HEADER_SECONDS)} s", "`p2p/limits/proxy_header.py`"),
    Limit("streams that others opened", f"{shares.STREAMS_PER_PLACE} per connection that may be open", "coordinator",
          QUARTER, "the party with most gives way", "`p2p/limits/shares.py`"),
    Limit("streams that others opened", _count(shares.STREAMS_PER_PARTY), "party", NONE,
          "its own fullest connection gives way", "`p2p/limits/shares.py`"),
    Limit("chunk streams", _count(exchange.STREAMS_PER_PEER), "peer", NONE, "the stream's end",
          "`p2p/swarm/exchange.py`"),
    Limit("bytes of unfinished requests over libp2p", f"{shares.STRANGERS_UNFINISHED // 10**6} MB", WITHOUT_WORK,
          f"{shares.KNOWN_FACTOR - 1} times as much",
          f"the party with most gives way; below {_count(least_rate.LEAST_RATE)} bytes a second after "
          f"{_count(least_rate.RATE_SECONDS)} s", "`p2p/limits/shares.py`, `least_rate.py`"),
    Limit("bytes of unfinished bodies over HTTPS", f"{shares.STRANGERS_UNFINISHED_HTTPS // 10**6} MB", WITHOUT_WORK,
          f"{shares.KNOWN_FACTOR - 1} times as much", "as over libp2p", "`p2p/limits/shares.py`"),
    Limit("whole requests at work", f"{_SLOTS.CLASSES['submit']} submissions, as many leases, receipts, steps and "
          f"waiting plans; {_SLOTS.CLASSES['hello']} hellos, {_SLOTS.CLASSES[_SLOTS.OTHER_CLASS]} others",
          "entrance and class", QUARTER, "the answer", "`p2p/limits/request_slots.py`"),
    Limit("whole requests at work", _count(_SLOTS.PER_PARTY), "party and class; a waiting plan: one per peer", NONE,
          "the answer", "`p2p/limits/request_slots.py`"),
    Limit("requests over libp2p", _at_rate(subnets.ASKS_BURST, subnets.ASKS_RATE),
          f"peer; a party has {subnets.PARTY} times that", NONE, "time; further ones are delayed",
          "`p2p/limits/subnets.py`, `p2p/peer/rpc.py`"),
    Limit("lease requests while too many are unanswered",
          f"{request_priority.RETRIES_PER_SECOND} retries a second, in turn", "coordinator",
          "a party has one place in the order", "time", "`coordinator/submissions/request_priority.py`"),
    Limit("connections over HTTPS", _count(_CONFIG.https.connections), "coordinator",
          f"{QUARTER}, one connection per subnet",
          f"one without a whole request gives way; {_count(_HTTPS.idle)} s idle",
          "`https.connections`"),
    Limit("connections over HTTPS", _count(_CONFIG.https.address_connections),
          "household; at a private address not those of keys with accepted work", NONE,
          "the connection's end; at a private address one of its own gives way", "`https.address_connections`"),
    Limit("requests over HTTPS", _at_rate(_HTTPS.burst, _HTTPS.rate),
          "household, or key with accepted work at a private address", NONE, "time; further ones are refused",
          "`p2p/https/client_limits.py`"),
    Limit("connections to the page", _count(_CONFIG.web.connections), "page", f"{QUARTER}, one per subnet",
          f"an idle one gives way; {_count(_WEB.idle)} s idle, {_count(least_rate.RATE_SECONDS)} s with half a head",
          "`web.connections`"),
    Limit("connections to the page", _count(_CONFIG.web.address_connections), "public household", NONE,
          "the connection's end", "`web.address_connections`"),
    Limit("requests to the page", _at_rate(_WEB.burst, _WEB.rate), "public household, behind a trusted proxy too",
          NONE, "time; further ones are refused", "`coordinator/web/page_listener.py`"),
    Limit("reads of the page that wait, of each kind", _count(rationed_reads.MOST_WAITING), "page",
          "the last quarter is for parties of which none waits", "its turn: parties in rotation",
          "`coordinator/web/rationed_reads.py`"),
    Limit("reads of the page that wait, of each kind", _count(rationed_reads.MOST_OF_PARTY), "party", NONE,
          "its turn", "`coordinator/web/rationed_reads.py`"),
    Limit("a part of a bundle that nobody receives", f"{ledger_tiles.PART_BYTES >> 10} KiB", "connection", NONE,
          f"{_count(tile_routes.TILE_SECONDS)} s", "`coordinator/web/tile_routes.py`"),
    Limit("proofs of the ledger over RPC", f"{_count(ledger_service.LEDGER_REQUEST_RATE)} requests a second, "
          f"{_count(ledger_service.PER_PARTY)} of a party", "coordinator",
          f"all but {_count(ledger_service.STRANGERS_REQUEST_RATE)}", "time; the answer has heads alone",
          "`coordinator/accounts/ledger_service.py`"),
    Limit("ends of leases over RPC", f"{_count(ledger_service.ENDS_RATE)} requests a second, "
          f"{_count(ledger_service.ENDS_PER_PARTY)} of a party", "coordinator",
          f"all but {_count(ledger_service.STRANGERS_ENDS_RATE)}", "time; the answer has heads alone",
          "`coordinator/accounts/ledger_service.py`"),
    Limit("answers that are remembered", f"{_count(response_log.MOST_ANSWERS)}, "
          f"{response_log.MOST_ANSWER_BYTES >> 20} MiB", "coordinator", NONE,
          f"the oldest gives way; {response_log.MOST_EXPIRY_SKEW_MS // 60_000} minutes",
          "`coordinator/submissions/response_log.py`"),
    Limit("open leases of new keys", f"a share of the room, {_CONFIG.leases.newcomers:g}", "coordinator",
          "the rest of the room", "hand-in, return or expiry; in rotation by party", "`leases.newcomers`"),
    Limit("expired leases of new keys", f"{expiry_budgets.FREE_OF_PARTY} an hour, "
          f"{expiry_budgets.FREE_EXPIRIES} of a connection", "party", NONE,
          f"pauses of {expiry_budgets.EXPIRY_PAUSE_MS // 1000} to {expiry_budgets.LONGEST_EXPIRY_PAUSE_MS // 1000} s",
          "`coordinator/leases/expiry_budgets.py`"),
    Limit("lease requests that wait for room", f"{retry_times.RETRIES_PER_SECOND} a second", "coordinator", NONE,
          "time; many of one party do not delay others", "`coordinator/leases/retry_times.py`"),
    Limit("tokens of refused groups on disk", f"{token_storage.MOST_REFUSED >> 20} MiB", "party", NONE, "24 hours",
          "`coordinator/verdicts/token_storage.py`"),
    Limit("keys without groups", _count(node_registry.MOST_WITHOUT_GROUPS), "coordinator",
          "keys with groups are not counted",
          f"the one seen longest ago gives way; {node_registry.UNPROVEN_ROW_MS // 86_400_000} days",
          "`coordinator/nodes/node_registry.py`"),
    Limit("nodes that are remembered in memory", f"{_count(sightings.MOST_WORKED)} with accepted work, "
          f"{_count(sightings.MOST_OTHERS)} others", "coordinator", "each kind has its own",
          "the one seen longest ago gives way", "`coordinator/nodes/sightings.py`"),
    Limit("peers that a newcomer is told of", _count(node_registry.MOST_NAMED_PEERS),
          f"answer; {node_registry.PER_SUBNET} of one subnet", "half", "at each hello",
          "`coordinator/nodes/node_registry.py`"),
    Limit("open leases of a known key",
          f"what it delivers in twice its usual turnaround, {open_lease_limit.MOST_OPEN_LEASES}",
          "key; one while its last leases did not come", NONE, "hand-in, return or expiry",
          "`coordinator/leases/open_lease_limit.py`"),
    Limit("groups that wait for the scorer and stand decoded in memory", f"{waiting_groups.MOST_BYTES >> 20} MiB",
          "coordinator", NONE, "the verdict; further ones are read from disk again",
          "`coordinator/verdicts/waiting_groups.py`"),
    Limit("appeals", f"1 at a time; versions kept for all of them: {reviews.MOST_PINNED_VERSIONS}", "key",
          "keys with accepted work alone", "the answer", "`coordinator/verdicts/reviews.py`"),
    Limit("changes of the payout account", f"{DAY // payee_requests.PENDING_CHANGE_MS} a day", "key", NONE, "time",
          "`coordinator/payouts/payee_requests.py`"),
    Limit("claims of foreign heads that wait", f"{foreign_heads.MOST_WAITING_CLAIMS} of each kind", "coordinator",
          "a kind of their own", f"one is asked for every {foreign_heads.ASK_EVERY:g} s",
          "`coordinator/publishing/foreign_heads.py`"),
    Limit("keys present in a market", f"{_count(presence.MOST_WORKERS)} that work, {_count(presence.MOST_NEWCOMERS)} "
          f"newcomers, {_count(presence.MOST_STRANGERS)} others", "epoch", "each kind has its own",
          "the epoch's end", "`coordinator/epochs/presence.py`"),
    Limit("asks of keys without accepted work", f"{free_places.FREE_ASKS}, {free_places.FREE_OF_PARTY} of one party",
          "epoch", "nodes with accepted work need none", "the epoch's end; who found no place is among the next",
          "`coordinator/epochs/free_places.py`"),
    Limit("relay reservations", f"{_RELAY.reservations}, {_RELAY.per_party} of one party", "relay", QUARTER,
          f"{_count(_RELAY.life)} s, or the connection's end", "`p2p/limits/relay_quota.py`"),
    Limit("relayed circuits", f"{_RELAY.circuits}, {_RELAY.per_target} to one target, {_RELAY.per_peer} of one peer",
          "relay", f"{QUARTER}, one per party", "the party with most gives way; "
          f"{_RELAY.data >> 30} GiB or {_count(_RELAY.duration)} s", "`p2p/limits/relay_quota.py`"),
    Limit("relayed bytes", f"{_CONFIG.network.relay_rate:g} Mbit/s; at a node {RELAYED_RATE / MBIT:g}", "relay", NONE,
          "time", "`network.relay_rate`"),
    Limit("dial backs", f"{_count(dial_back.AT_ONCE)} ports at a time",
          f"host; one request in {_count(dial_back.DIAL_BACK_PAUSE_SECONDS)} s of a public subnet, or private address",
          QUARTER, "the attempt's end", "`p2p/discovery/dial_back.py`"),
    Limit("hole punches that others begin", f"{PUNCHES} under way",
          f"host; of a peer {_count(PUNCH_BURST)} at once, then one per {_count(PUNCH_EACH)} s", QUARTER,
          f"the dials' end; half a round ends in {_count(least_rate.RATE_SECONDS)} s", "`p2p/libp2p/hole_punch.py`"),
    Limit("dials to addresses that others tell", _at_rate(dial_backoff.DIAL_BURST, dial_backoff.DIALS_PER_SECOND),
          f"host; of a subnet {_count(dial_backoff.FAILURES)} may fail, then one per "
          f"{_count(dial_backoff.FAILURE_EACH)} s",
          f"the operator's addresses have limits of their own, {dial_backoff.OPERATOR_HASTE:g} times as fast", "time",
          "`p2p/limits/dial_backoff.py`"),
    Limit("records of peers", _count(peer_records.MOST_RECORDS), "host", NONE, "the one received longest ago gives way",
          "`p2p/discovery/peer_records.py`"),
    Limit("a gossip message", f"{GOSSIP_LIMIT >> 10} KiB", "message", NONE, "at once", "`p2p/network.py`"),
    Limit("gossip that is no copy of the newest message", f"{gossip.JUDGED_BURST:g}, then {gossip.JUDGED_RATE:g} per s",
          "party", NONE, "time", "`p2p/peer/gossip.py`"),
    Limit("peers that are known to have the newest gossip", f"{gossip.LEAST_HOLDERS}, or twice those connected more",
          "topic", NONE, "those that are not connected are forgotten", "`p2p/peer/gossip.py`"),
    Limit("senders whose payload bytes are counted apart", _count(download.MOST_SENDERS), "host", NONE,
          "the one counted longest is forgotten", "`p2p/swarm/download.py`"),
    Limit("banned peers", _count(bans.MOST_BANS), "host", NONE, "the oldest is forgotten", "`p2p/limits/bans.py`"),
    Limit("connections to a former identity", f"{former_identity.FORMER_DESCRIPTORS}, half of them by each route",
          f"identity; {former_identity.PER_VISITOR} of one household over HTTPS", QUARTER, "the connection's end",
          "`coordinator/run/former_identity.py`"),
    Limit("open files", f"{_count(descriptors.MOST_DESCRIPTORS)}, of which {descriptors.RESERVED_DESCRIPTORS} for its "
          "own files", "daemon", NONE, "the connection's end", "`runtime/descriptors.py`"),
    Limit("disk for rollouts", f"{_CONFIG.store.rollout_bytes // 10**9} GB", "run",
          "what the learner, an audit or an appeal may still need", "the oldest give way; 24 hours",
          "`store.rollout_bytes`"),
    Limit("disk for versions", f"{_CONFIG.store.budget_bytes // 10**9} GB", "store", NONE, "newer versions",
          "`store.budget_bytes`"),
)  # fmt: skip


def table() -> str:
    """Return the limits as a Markdown table."""
    head = ["| limit | most | of | reserve | given back by | place |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *(f"| {' | '.join(limit)} |" for limit in LIMITS)])


def with_table(document: str) -> str:
    """Return `document` with the present table between the marking lines. Raises `ValueError` if those are missing."""
    return replace_between(document, BEGIN, END, table())


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
