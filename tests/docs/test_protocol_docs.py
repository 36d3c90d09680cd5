"""docs/protocol against the code, so that another implementation can rely on the pages.

1. A table headed `Field of X` names exactly the fields of the struct X, in order, with their types and what absence
   means, as `spelled` and `absence` derive them from the code. Every struct of the wire has one, and no table is left
   over.
2. The table of refusal codes is the one of protocol/refusals.py; their sentences are in docs/reference. Tables headed
   `Columns of X` are those of the SQLite files.
3. Every block headed `text example NAME` holds `name = value` lines, which are computed again here.
4. The table of methods is that of protocol/methods.py.
5. Constants that the text states are stated as the code has them (`CONSTANTS`).
"""

import hashlib
import json
import re
import sqlite3
import struct
from collections.abc import Callable
from types import ModuleType
from typing import Any, get_args

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import inspect

from echo2.coordinator.accounts.key_accounts import Remarked
from echo2.coordinator.accounts.ledger import POINTS_ISSUED
from echo2.coordinator.database.schema import SCRIPT as RUN_SCHEMA
from echo2.coordinator.learner.checkpoints import checkpoint, journal
from echo2.coordinator.leases import delivery_record, open_lease_limit
from echo2.coordinator.publishing import publisher
from echo2.coordinator.settings.config import LeasesSection
from echo2.coordinator.settings.network_config import NetworkSection
from echo2.coordinator.submissions import request_priority, response_log
from echo2.coordinator.verdicts.lease_outcomes import LeaseOutcome
from echo2.coordinator.verification import calibration, evidence, token_evidence, verification
from echo2.engines.sampling import sampling_reference as noise
from echo2.ledger import audited_work, half_life, ledger_entries, ledger_facts, payout_facts
from echo2.node.config import NodeConfig
from echo2.node.rollouts import outbox, turn_store
from echo2.node.trust import ledger_store, market_store
from echo2.p2p import envelope, handlers, identity, payload_manifest
from echo2.p2p.discovery import invite, mdns, operator_addresses, peer_records
from echo2.p2p.discovery import messages as discovery_messages
from echo2.p2p.https import client, routes
from echo2.p2p.https.client_limits import HttpsLimits
from echo2.p2p.libp2p import circuit, hole_punch, mux, relay_service, yamux
from echo2.p2p.limits import bans, dial_backoff, least_rate, request_slots, shares, subnets
from echo2.p2p.limits.relay_quota import PUNCH_BURST, RelayLimits
from echo2.p2p.network import GOSSIP_LIMIT
from echo2.p2p.peer import gossip, rpc
from echo2.p2p.swarm import manifest, merkle
from echo2.p2p.swarm import messages as wire
from echo2.p2p.swarm.exchange import PROTOCOL as CHUNK_PROTOCOL
from echo2.p2p.swarm.exchange import STREAMS_PER_PEER
from echo2.p2p.transport import TRANSPORT_SILENCE_SECONDS
from echo2.p2p.wire_types import encode
from echo2.protocol import (
    appeals,
    authority,
    broadcast_messages,
    group_weights,
    leases,
    ledger_heads,
    market,
    methods,
    payout_approval,
    requests,
    restored_logs,
    steps,
    succession,
    versions,
)
from echo2.protocol.refusals import REASONS
from echo2.protocol.requests import Refusal, Response
from echo2.protocol.versions import Head
from echo2.tasks import registry, tokenizer
from echo2.weights import documents, snapshot, store
from tests.support.costs import COSTS, sealed_costs
from tests.support.documents import code, tables
from tests.support.paths import ROOT

HASTE = dial_backoff.OPERATOR_HASTE

FOLDER = ROOT / "docs" / "protocol"
PAGES = {path.name: path.read_text() for path in sorted(FOLDER.glob("*.md"))}
ALL = "\n".join(PAGES.values())


# --- tables ----------------------------------------------------------------------------------------------------------


def headed(words: str) -> dict[str, list[list[str]]]:
    """Return the rows of each table of which the first header is `words X`, by X."""
    sections: dict[str, list[list[str]]] = {}
    for header, *rows in tables(ALL):
        match = re.fullmatch(re.escape(words) + r" `?([\w.]+)`?", header[0])
        if match:
            assert match[1] not in sections, f"two tables of {match[1]}"
            sections[match[1]] = rows
    return sections


# --- structs ---------------------------------------------------------------------------------------------------------


def structs(module: ModuleType) -> list[type[msgspec.Struct]]:
    """Return the public structs that a module defines."""
    return [
        value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, msgspec.Struct)
        and value.__module__ == module.__name__ and not name.startswith("_")
    ]  # fmt: skip


WIRE_MODULES = (
    appeals, authority, broadcast_messages, group_weights, leases, ledger_heads, market,
    payout_approval, requests, restored_logs, steps, succession, versions, discovery_messages, gossip,
)  # fmt: skip
BASES = {"Wire", "Document"}
LOCAL = {"Traffic", "PeerTransfer", "FetchReport"}
"""Structs of these modules that never leave the process."""
DESCRIBED = {
    type_.__name__: type_
    for module in (*WIRE_MODULES, documents, wire, payload_manifest, envelope, invite)
    for type_ in structs(module)
    if type_.__name__ not in BASES | LOCAL
} | {
    "Calibration": calibration.Calibration,
    "State": checkpoint.State,
    "Base": checkpoint.Base,
    "JournalEntry": journal.JournalEntry,
    "LeaseOutcome": LeaseOutcome,
    "LeaseReversed": ledger_facts.LeaseReversed,
    "AppealAnswered": ledger_facts.AppealAnswered,
    "LogBegun": ledger_facts.LogBegun,
    "PayoutPlanned": payout_facts.PayoutPlanned,
    "PayoutSent": payout_facts.PayoutSent,
    "PayoutRestored": payout_facts.PayoutRestored,
    "PayoutEnded": payout_facts.PayoutEnded,
    "PayoutQuestioned": payout_facts.PayoutQuestioned,
}


def power(number: int) -> str:
    if number >= 1 << 20 and number & (number - 1) == 0:
        return f"2^{number.bit_length() - 1}"
    return str(number)


def bounds(low: int | None, high: int | None) -> str:
    """Spell the bounds of a length: ` 32`, ` 1..32`, ` up to 32`, or no text."""
    if high is None:
        return ""
    return f" {high}" if low == high else f" {low}..{power(high)}" if low else f" up to {power(high)}"


def spelled(kind: Any) -> str:
    """Spell a type as the tables do, without its unit."""
    match kind:
        case inspect.BoolType():
            return "bool"
        case inspect.IntType():
            return "int" + number_bounds(kind)
        case inspect.FloatType():
            return "float"
        case inspect.StrType():
            return "text" + bounds(kind.min_length, kind.max_length)
        case inspect.BytesType() | inspect.MemoryViewType():
            return "bytes" + bounds(kind.min_length, kind.max_length)
        case inspect.ListType() | inspect.VarTupleType():
            return f"list{bounds(kind.min_length, kind.max_length)} of {spelled(kind.item_type)}"
        case inspect.TupleType():
            return f"[{', '.join(map(spelled, kind.item_types))}]"
        case inspect.DictType():
            many = bounds(kind.min_length, kind.max_length)
            return f"map{many} of {spelled(kind.key_type)} to {spelled(kind.value_type)}"
        case inspect.StructType():
            return str(kind.cls.__name__)
        case inspect.LiteralType():
            return "one of the names"
        case inspect.UnionType():
            return " or ".join("nil" if isinstance(t, inspect.NoneType) else spelled(t) for t in kind.types)
    raise AssertionError(f"no words for {kind}")


def number_bounds(kind: inspect.IntType) -> str:
    """Spell the bounds of a number: ` < 2^53`, ` 1..32`, or no text."""
    low = 1 if kind.gt == 0 else kind.ge
    if kind.lt is not None:
        return f" < {power(kind.lt)}"
    if kind.le is None:
        return ""
    high = f"2^{(kind.le + 1).bit_length() - 1}-1" if kind.le >= 1 << 62 else power(kind.le)
    return f" {low}..{high}"


def absence(field: msgspec.structs.FieldInfo) -> str:
    """Spell the meaning of a missing field."""
    if isinstance(field.default, bytes):
        return json.dumps(field.default.hex())
    if field.default is not msgspec.NODEFAULT:
        return json.dumps(field.default).replace("null", "nil")
    return "required" if field.default_factory is msgspec.NODEFAULT else json.dumps(field.default_factory())


def rows_of(type_: type[msgspec.Struct]) -> list[tuple[str, str, str]]:
    """Return (name, type, absence) of each field, as the tables must have them."""
    kinds = {field.name: field.type for field in inspect.type_info(type_).fields}  # type: ignore[union-attr]
    return [(field.encode_name, spelled(kinds[field.name]), absence(field)) for field in msgspec.structs.fields(type_)]


@pytest.mark.parametrize("name", DESCRIBED)
def test_the_table_of_a_struct_names_its_fields_types_and_absences(name: str) -> None:
    table = headed("Field of").get(name)
    assert table is not None, f"docs/protocol has no table `Field of {name}`"
    written = [(code(row[0]), row[1], code(row[2])) for row in table]
    assert written == rows_of(DESCRIBED[name])
    assert all(len(row) == 4 and row[3] for row in table), "every field has a meaning"


def test_no_table_describes_a_struct_that_does_not_exist() -> None:
    assert set(headed("Field of")) == set(DESCRIBED)


# --- refusals, methods, roles ----------------------------------------------------------------------------------------


def test_the_table_of_codes_is_that_of_the_code() -> None:
    (rows,) = [rows for header, *rows in tables(ALL) if header[0] == "Code"]
    written = {code(row[0]): (row[1], row[2]) for row in rows}
    true = {name: (reason.fault, "yes" if reason.retry else "no") for name, reason in REASONS.items()}
    assert written == true
    assert len(rows) == len(true)


def spelled_bytes(count: int) -> str:
    return f"{count >> 10} KiB" if count >= 16 << 10 else f"{count} bytes"


def method_row(method: methods.Method[Any, Any]) -> list[str]:
    """Spell a row of the table of docs/protocol/requests.md; each cell may continue after these words."""
    request, answer = method.request.label, method.answer.label
    if method.sealed:
        body = "an empty body" if answer == "empty" else answer
        request, answer = f"sealed Request of {request}", f"Response of {body}"
    limit = spelled_bytes(method.limit)
    if method.at_coordinator is not None:
        limit += f", {spelled_bytes(method.at_coordinator)} at the coordinator"
    if method is methods.SUBMIT:
        limit += " and the largest submission"
    if method is methods.STEP:
        limit += " and 5 bytes per token of `limit`"
    return [f"`{method.name}`", method.direction, request, limit, method.slots, answer]


def test_the_table_of_methods_is_that_of_the_code() -> None:
    (rows,) = [rows for header, *rows in tables(PAGES["requests.md"]) if header[0] == "Method"]
    assert [code(row[0]) for row in rows] == [method.name for method in methods.METHODS]
    true = [method_row(method) for method in methods.METHODS]
    more = re.compile(r"( of|, at) .*")
    for row, wanted in zip(rows, true, strict=True):
        assert row[:2] + row[3:5] == wanted[:2] + wanted[3:5]
        for place in (2, 5):
            rest = row[place].removeprefix(wanted[place])
            assert row[place].startswith(wanted[place]), (row[place], wanted[place])
            assert not rest or more.fullmatch(rest), row[place]


def test_every_class_of_slots_is_one_of_the_table_and_every_method_with_one_has_a_row() -> None:
    assert request_slots.CLASS_OF.keys() <= {method.name for method in methods.METHODS}
    assert {method.slots for method in methods.METHODS} == request_slots.CLASSES.keys()


def test_the_table_of_kinds_is_that_of_the_envelope() -> None:
    (rows,) = [rows for header, *rows in tables(PAGES["documents.md"]) if header[0] == "Kind"]
    assert {code(row[0]): row[1] for row in rows} == envelope.ROLES


# --- SQLite ----------------------------------------------------------------------------------------------------------


SCHEMAS = {
    "run": RUN_SCHEMA,
    "store": store.SCHEMA,
    "outbox": outbox.SCHEMA,
    "turns": turn_store.SCHEMA,
    "ledger": ledger_store.SCHEMA,
    "market": market_store.SCHEMA,
}


def columns(*schemas: str) -> dict[str, list[str]]:
    """Return table -> its columns, of a database made by these scripts."""
    with sqlite3.connect(":memory:") as database:
        for schema in schemas:
            database.executescript(schema)
        names = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        column_names = {name: [row[1] for row in database.execute(f"PRAGMA table_info({name})")] for name in names}
    database.close()
    return column_names


@pytest.mark.parametrize(
    ("file", "schema"),
    SCHEMAS.items(),
)
def test_every_table_of_a_database_is_described_with_its_columns(file: str, schema: str) -> None:
    described = headed("Columns of")
    for table, names in columns(schema).items():
        rows = described.get(f"{file}.{table}")
        assert rows is not None, f"docs/protocol has no table `Columns of {file}.{table}`"
        assert [name for row in rows for name in re.findall(r"`(\w+)`", row[0])] == names, f"{file}.{table}"


def test_no_table_describes_a_table_that_does_not_exist() -> None:
    there = {f"{file}.{table}" for file, schema in SCHEMAS.items() for table in columns(schema)}
    assert set(headed("Columns of")) == there


# --- constants -------------------------------------------------------------------------------------------------------


LIMITS = HttpsLimits()
RELAY = RelayLimits()
CONSTANTS: dict[str, str] = {
    "requests.md: the protocol of requests": f"`{rpc.PROTOCOL}`",
    "chunks.md: the protocol of chunks": f"`{CHUNK_PROTOCOL}`",
    "requests.md: skew": f"{response_log.MOST_EXPIRY_SKEW_MS // 60_000} minutes",
    "requests.md: small request": f"{methods.SMALL_REQUEST_BYTES >> 10} KiB",
    "requests.md: answers remembered": f"{response_log.MOST_ANSWERS} answers",
    "requests.md: status beat": f"every {rpc.RPC_HEARTBEAT_SECONDS:g} s",
    "requests.md: requests of a party": f"{request_slots.PER_PARTY} of one class of one party",
    "requests.md: the least rate": f"{least_rate.LEAST_RATE:,.0f} bytes per second over {least_rate.RATE_SECONDS:g} s",
    "requests.md: gossip limit": f"at most {GOSSIP_LIMIT >> 10} KiB",
    "requests.md: pushes": f"for at most {gossip.PUSH_SECONDS:g} s",
    "requests.md: sweeps": f"For {gossip.SWEEPS * gossip.SWEEP_SECONDS:g} s after a message, every"
    f" {gossip.SWEEP_SECONDS:g} s",
    "requests.md: judged": f"judged at {gossip.JUDGED_RATE:g} per second, {gossip.JUDGED_BURST:g} at once",
    "evidence.md: bins": f"{token_evidence.BINS} bins",
    "evidence.md: edges": f"first edges {', '.join(map(str, token_evidence.GAP_EDGES[:6]))}",
    "evidence.md: start": f"first {token_evidence.START_TOKENS} sampled tokens",
    "evidence.md: statistics": ", ".join(f"`{name}`" for name in token_evidence.STATISTICS),
    "evidence.md: bets": f"bets {', '.join(map(str, evidence.BETS))} in units of 1/{evidence.BET_UNIT}",
    "evidence.md: least p": f"at least 2^{(evidence.LEAST_P / token_evidence.ONE).hex().partition('p')[2]}",
    "evidence.md: thresholds": f"{evidence.REFUSAL_EVIDENCE:,} per node and day, {evidence.LIFELONG_REFUSAL:,} per key",
    "evidence.md: doubt": f"from {evidence.DOUBT_EVIDENCE:,} on",
    "evidence.md: largest stake": f"above 2^{evidence.MOST_POWER} becomes",
    "evidence.md: smallest stake": f"below 2^{evidence.LEAST_POWER} becomes 0",
    "evidence.md: confidence": f"confidence {calibration.CONFIDENCE}",
    "evidence.md: allowance": f"{calibration.NOISE_ALLOWANCE:g} times",
    "evidence.md: bound": f"in nats that is {calibration.MARGIN_ALLOWANCE:g} times the drift",
    "evidence.md: fewest tokens": f"{calibration.TOKENS_LEAST:,} tokens",
    "mux.md: the protocol of streams": f"`{mux.PROTOCOL}`",
    "mux.md: header": f"a header of {mux.HEADER.size} bytes",
    "mux.md: longest frame": f"| 1 to {mux.FRAME_MAX} |",
    "mux.md: first window": f"a credit of {mux.WINDOW_MIN >> 10} KiB",
    "mux.md: largest window": f"up to {mux.WINDOW_MAX >> 20} MiB",
    "mux.md: streams": f"may have {mux.STREAMS_MAX}",
    "mux.md: quantum": f"{mux.QUANTUM} bytes each",
    "mux.md: faults forgiven": f"{bans.FORGIVEN_CHARGES} such faults are forgiven",
    "mux.md: a ban": f"{bans.BAN_SECONDS / 60:g} minutes, {bans.BAN_FACTOR:g} times as long",
    "mux.md: answers": f"At most {mux.ANSWERS_MAX} frames",
    "chunks.md: first ban": f"For {bans.BAN_SECONDS / 60:g} minutes",
    "peer.md: connections of a subnet": f"; {subnets.PER_SUBNET} from one IPv4 /24 or IPv6 /48",
    "peer.md: dials": f"{subnets.DIALS_BURST:g} of them at once and then {subnets.DIALS_RATE:g} per second",
    "peer.md: connections in all": f"{NodeConfig().connections} in all at a node",
    "peer.md: connections of a coordinator": f"{NetworkSection().connections} at a coordinator",
    "peer.md: streams": f"{mux.STREAMS_MAX} of the other side's open on a connection",
    "peer.md: unread bytes": f"{yamux.UNREAD_MAX >> 20} MiB on a connection",
    "peer.md: silence": f"| {TRANSPORT_SILENCE_SECONDS:g} s | the stream is reset |",
    "peer.md: requests at work": f"| requests at work | {request_slots.PER_PARTY} of one class of methods",
    "peer.md: streams of a subnet": f"{shares.STREAMS_PER_PARTY} of one subnet",
    "peer.md: streams of all": f"{shares.STREAMS_PER_PLACE} for each connection that it admits",
    "peer.md: unfinished bytes": f"{shares.STRANGERS_UNFINISHED // 1_000_000} MB of all peers without accepted work",
    "peer.md: requests": f"{subnets.ASKS_BURST:g} at once, then {subnets.ASKS_RATE:g} per second",
    "peer.md: chunk streams": f"| chunk streams | {STREAMS_PER_PEER} |",
    "peer.md: gossip": f"{gossip.JUDGED_BURST:g} at once, then {gossip.JUDGED_RATE:g} per second; of a party together",
    "peer.md: a method's name": f"a method's name of more than {handlers.METHOD_LIMIT} bytes",
    "chunks.md: smallest chunk": f"{wire.CHUNK_SIZE_MIN >> 10} KiB",
    "chunks.md: largest chunk": f"{wire.CHUNK_SIZE_MAX >> 20} MiB",
    "https.md: the paths": f"`GET {routes.PEER}`",
    "https.md: chunks at a time": f"At most {routes.BATCH} chunks",
    "https.md: news": f"after {routes.LONG_POLL_SECONDS:g} s",
    "https.md: connections": f"{LIMITS.connections} connections, of which one IPv4 address",
    "https.md: connections of one": f"may have {LIMITS.per_visitor},",
    "https.md: requests": f"{LIMITS.rate:g} requests per second and address, {LIMITS.burst:g} at once",
    "https.md: handshake": f"handshake has {LIMITS.handshake:g} s",
    "https.md: patience": f"each write of {routes.WRITE_BYTES >> 10} KiB {LIMITS.patience:g} s",
    "https.md: unfinished bytes": f"{shares.STRANGERS_UNFINISHED_HTTPS // 1_000_000} MB of bodies",
    "https.md: a node's patience": f"after {client.SILENCE_SECONDS:g} s without a byte",
    "https.md: lanes": f"in at most {client.LANES} requests",
    "reach.md: reservations": f"{RELAY.reservations}, of which {RELAY.per_party} of one",
    "reach.md: life": f"{RELAY.life:g} s, or as long as",
    "reach.md: circuits": f"{RELAY.circuits}, of which a peer may have {RELAY.per_peer} as source",
    "reach.md: a circuit": f"ends after {RELAY.duration:g} s or {RELAY.data >> 20} MiB",
    "reach.md: rate of a node": f"{NodeConfig().relay_rate:g} Mbit/s at a node",
    "reach.md: rate of a coordinator": f"{NetworkSection().relay_rate:g} Mbit/s at a coordinator",
    "reach.md: requests": f"looked at together | {relay_service.REQUESTS} |",
    "reach.md: a message": f"at most {circuit.MOST_CIRCUIT_MESSAGE_BYTES} bytes",
    "reach.md: upgrade": f"at most {hole_punch.ADDRESSES} addresses",
    "reach.md: rounds": f"at most {hole_punch.ROUNDS} rounds",
    "reach.md: grace": f"closed {hole_punch.RELAY_GRACE_SECONDS:g} s after",
    "reach.md: announced": f"addresses, at most {mdns.MOST_ANNOUNCED_ADDRESSES}",
    "reach.md: service": f"`{mdns.SERVICE}`",
    "reach.md: rounds with a peer": f"{PUNCH_BURST:g} rounds at once with one other",
    "reach.md: rounds in all": f"{hole_punch.BURST:g} with all",
    "reach.md: a subnet": f"more than {hole_punch.PER_SUBNET} of one public subnet",
    "documents.md: a record's life": f"less than {peer_records.RECORD_LIFE_MS // 3_600_000} h ago",
    "documents.md: a record's renewal": f"and every {peer_records.RECORD_RENEWAL_MS // 3_600_000} h;",
    "documents.md: a record from ahead": f"no more than {peer_records.RECORD_SKEW_MS // 60_000} minutes ahead",
    "documents.md: a record's bytes": f"at most {peer_records.MOST_RECORD_BYTES} bytes",
    "documents.md: dials": f"{dial_backoff.DIAL_BURST:g} at once, "
    f"then {60 * dial_backoff.DIALS_PER_SECOND:g} per minute",
    "documents.md: a failure": f"a backoff of {dial_backoff.DIAL_PAUSE_SECONDS:g} s",
    "documents.md: failures": f"{dial_backoff.LONGEST_DIAL_PAUSE_SECONDS / 60:g} minutes at most; "
    "four failures in a public subnet",
    "documents.md: an operator's address": f"a pause of {dial_backoff.DIAL_PAUSE_SECONDS / HASTE:g} s for that host",
    "documents.md: an operator's pause": f"{dial_backoff.LONGEST_DIAL_PAUSE_SECONDS / HASTE:g} s at most; "
    f"{dial_backoff.OPERATOR_FAILURES:g} failures in a public subnet, of all names",
    "documents.md: an operator's subnet": f"dial in {dial_backoff.FAILURE_EACH / HASTE:g} s",
    "documents.md: an operator's new host": f"delay of up to {operator_addresses.SPREAD_SECONDS:g} s",
    "documents.md: envelope limit": f"{envelope.ENVELOPE_LIMIT >> 20} MiB",
    "documents.md: document limit": f"{documents.MAX_DOCUMENT >> 20} MiB",
    "documents.md: invite length": f"{invite.MOST_INVITE_CHARACTERS} characters",
    "leases-and-rollouts.md: margin": f"| `margin` | {verification.EXACT_THRESHOLDS.margin:g} |",
    "leases-and-rollouts.md: drift_most": f"| `drift_most` | {verification.EXACT_THRESHOLDS.drift_most:g} |",
    "leases-and-rollouts.md: drift_median": f"| `drift_median` | {verification.EXACT_THRESHOLDS.drift_median:g} |",
    "leases-and-rollouts.md: close_rate": f"| `close_rate` | {verification.EXACT_THRESHOLDS.close_rate:g} |",
    "leases-and-rollouts.md: close_chance": f"| `close_chance` | {verification.EXACT_THRESHOLDS.close_chance:g} |",
    "leases-and-rollouts.md: given tokens": f"{verification.MOST_GIVEN} tokens",
    "documents.md: edges of an index": f"the newest {publisher.REACH_EDGES}; readers take up to {documents.MAX_EDGES}",
    "leases-and-rollouts.md: open leases of a node": f"may have {LeasesSection().per_node} open leases by default",
    "leases-and-rollouts.md: most open leases": f"of its request, and by {open_lease_limit.MOST_OPEN_LEASES}.",
    "leases-and-rollouts.md: groups measured": f"last {delivery_record.MEASURED_GROUPS} groups, or twice",
    "requests.md: asks that wait": f"more than {request_priority.MOST_UNANSWERED}"
    " of these requests have been unanswered",
    "requests.md: expired requests": f"until {response_log.MOST_EXPIRY_SKEW_MS // 60_000} minutes *past* its `expires`",
    "documents.md: chunks of an edge": f"{wire.CHUNK_SIZE_MIN >> 10} KiB to {wire.CHUNK_SIZE_MAX >> 20} MiB",
    "ledger.md: points issued": f"{POINTS_ISSUED:,}".replace(",", " "),
}


@pytest.mark.parametrize("what", CONSTANTS)
def test_a_stated_number_is_that_of_the_code(what: str) -> None:
    page, _, _ = what.partition(":")
    assert CONSTANTS[what] in " ".join(PAGES[page].split())


# --- examples --------------------------------------------------------------------------------------------------------


def examples() -> dict[str, dict[str, str]]:
    """Return name -> its `name = value` lines; a line that begins with spaces continues the one before."""
    examples_read: dict[str, dict[str, str]] = {}
    for name, body in re.findall(r"^```text example ([\w-]+)\n(.*?)^```", ALL, re.MULTILINE | re.DOTALL):
        body = re.sub(r"\n +", "", body)
        assert name not in examples_read, f"two examples {name}"
        examples_read[name] = dict(
            text_line.split(" = ", 1) for text_line in re.sub(r" += ", " = ", body).splitlines() if " = " in text_line
        )
    return examples_read


def envelope_example() -> dict[str, str]:
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    run, payload = bytes(range(32)), bytes.fromhex("82a365726101a776657273696f6e0c")
    sealed = envelope.seal("head", run, payload, key)
    return {
        "private key": bytes(range(32)).hex(),
        "public key": identity.public_bytes(key).hex(),
        "peer id": identity.peer_id(identity.public_bytes(key)),
        "run": run.hex(),
        "payload": payload.hex(),
        "signed bytes": envelope.signed_bytes("head", run, payload).hex(),
        "sealed": sealed.hex(),
        "document hash": envelope.document_hash(sealed).hex(),
    }


def record_example() -> dict[str, str]:
    secret = bytes(range(32))
    key, run = Ed25519PrivateKey.from_private_bytes(secret), secret
    peer = identity.peer_id(identity.public_bytes(key))
    address, issued = f"/ip4/192.0.2.7/tcp/4310/p2p/{peer}", 1_700_000_000_000
    sealed = peer_records.RecordIssuer(key, run).issue([address], issued)
    return {
        "private key": secret.hex(), "run": run.hex(), "peer": peer, "address": address, "issued": str(issued),
        "sealed": sealed.hex(),
    }  # fmt: skip


def refusal_example() -> dict[str, str]:
    refusal = Refusal(code="finished", sentence=REASONS["finished"].sentence)
    return {"answer": encode(Response(refusal=refusal)).hex()}


def sampling_example() -> dict[str, str]:
    seed, position, logits = bytes.fromhex("d26ec5ac459d28f567ad2177324558ef"), 0, [0.5, 0.0, 2.0, -1.0]
    key = noise.key(seed, position)
    bits = [noise.bits(key, token) for token in range(4)]
    gumbels = [noise.gumbel(value) for value in bits]
    scores = [struct.unpack("<f", struct.pack("<f", a + b))[0] for a, b in zip(logits, gumbels, strict=True)]
    w = [min(f32(f32(float(value)) + 0.5) * 2.0**-31, 1 - 2.0**-24) for value in bits]
    return {
        "seed": seed.hex(),
        "position": str(position),
        "key": f"{key:016x}",
        "word 0": f"{noise.word(key, 0):016x}",
        "word 1": f"{noise.word(key, 1):016x}",
        "bits": " ".join(map(str, bits)),
        "w": " ".join(f"{value:.9g}" for value in w),
        "gumbel": " ".join(f"{value:.9g}" for value in gumbels),
        "logits": " ".join(f"{value:g}" for value in logits),
        "scores": " ".join(f"{value:.9g}" for value in scores),
        "token": str(noise.choose(logits, key)),
    }


def f32(value: float) -> float:
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def root_example() -> dict[str, str]:
    data = struct.pack("<2f", 1.0, 2.0)
    entry = documents.TensorEntry(name="w", dtype="F32", shape=(2,))
    aliases = {"tied": "w"}
    digest = manifest.digest(data)
    covered = b"".join(
        [
            b"echo2/content-root/1\0", struct.pack("<I", 1), *map(counted, ("w", "F32")),
            struct.pack("<IQ", 1, 2), digest, struct.pack("<I", 1), *map(counted, ("tied", "w")),
        ]
    )  # fmt: skip
    root = snapshot.root_of([entry], aliases, [digest])
    assert manifest.digest(covered) == root
    return {"data": data.hex(), "tensor hash": digest.hex(), "hashed": covered.hex(), "content root": root.hex()}


def counted(text: str) -> bytes:
    return struct.pack("<I", len(text.encode())) + text.encode()


def merkle_example() -> dict[str, str]:
    leaves = [b"a", b"b", b"c"]
    first, second, third = (merkle.leaf_hash(leaf, manifest.digest) for leaf in leaves)
    proof = merkle.proof(leaves, 2, manifest.digest)
    return {
        "leaf a": first.hex(),
        "leaf b": second.hex(),
        "leaf c": third.hex(),
        "node ab": proof[0].hex(),
        "root": merkle.root(leaves, manifest.digest).hex(),
        "proof of c": proof[0].hex(),
        "proof of a": f"{second.hex()} {third.hex()}",
    }


def frames_example() -> dict[str, str]:
    return {
        "ask": wire.encode(wire.PayloadRequest(bytes(32))).hex(),
        "want 0, 7": wire.encode(wire.ChunkRequest((0, 7))).hex(),
        "cancel 7": wire.encode(wire.Cancel((7,))).hex(),
        "have 0, 2, 9 of 10": wire.encode(wire.Have(wire.pack_bitmap(0b1000000101, 10))).hex(),
        "new 3": wire.encode(wire.HaveMore((3,))).hex(),
        "gone 300": wire.encode(wire.NotAvailable(300)).hex(),
    }


def https_example() -> dict[str, str]:
    return {"etag of head": routes.etag(b"head"), "gone 300": routes.frame_message(wire.NotAvailable(300)).hex()}


def mux_example() -> dict[str, str]:
    return {
        "open": mux.HEADER.pack(mux.OPEN, 1, 0).hex(),
        'data "abc"': (mux.HEADER.pack(mux.DATA, 1, 3) + b"abc").hex(),
        "credit 65536": mux.HEADER.pack(mux.CREDIT, 1, 65536).hex(),
        "away, at fault": mux.HEADER.pack(mux.GOAWAY, 0, mux.FAULT).hex(),
    }


def test_the_table_of_frames_is_that_of_the_code() -> None:
    (rows,) = [rows for header, *rows in tables(PAGES["mux.md"]) if header[:2] == ["Type", "Name"]]
    assert [getattr(mux, row[1]) for row in rows] == [int(row[0]) for row in rows] == list(range(8))


def ledger_example() -> dict[str, str]:
    node = identity.peer_id(identity.public_bytes(Ed25519PrivateKey.from_private_bytes(bytes(range(32)))))
    postings = ledger_entries.transfer(ledger_entries.ESCROW, ledger_entries.accrued_account(node), 109)
    first = ledger_entries.canonical(
        1,
        1000,
        "points.issued",
        "points:1",
        ledger_entries.transfer(ledger_entries.FUND, ledger_entries.ESCROW, 500),
        b"\x80",
    )
    second = ledger_entries.canonical(2, 2000, "lease.accepted", "lease:00", postings, b"\x80")
    one = ledger_entries.chain_hash(ledger_entries.ORIGIN, first)
    assert one == hashlib.sha256(bytes(32) + first).digest()
    return {
        "entry 1": first.hex(),
        "hash 1": one.hex(),
        "entry 2": second.hex(),
        "hash 2": ledger_entries.chain_hash(one, second).hex(),
        "balances": f"fund:operator -500, escrow:run 391, {ledger_entries.accrued_account(node)} 109",
    }


def cost_example() -> dict[str, str]:
    """Compute the sizes of a version's documents, with numbers as late in a run."""
    key, run, some = Ed25519PrivateKey.from_private_bytes(bytes(range(32))), bytes(32), bytes(32)
    peer = identity.peer_id(identity.public_bytes(key))
    addresses = [f"/ip4/192.0.2.7/tcp/4310/p2p/{peer}", f"/ip4/192.0.2.7/tcp/4311/https/p2p/{peer}"]
    now = 1_700_000_000_000
    head = Head(
        era=1, version=2000, version_hash=some, index_hash=some, step=2000, sequence=now, addresses=addresses,
        root_serial=1, issued=now, expires=now + 180_000,
    )  # fmt: skip
    edge = documents.Edge(
        era=1, base=1999, base_root=some, version=2000, root=some, codec="classes/1", payload_hash=some,
        length=1_000_000, chunk_size=1 << 14, chunk_root=some,
    )  # fmt: skip
    index = documents.EdgeIndex(era=1, version=2000, edges=[bytes([number]) * 32 for number in range(130)])
    return {
        "head with two addresses": f"{len(envelope.seal('head', run, encode(head), key))} bytes",
        "edge": f"{len(envelope.seal('edge', run, edge.to_bytes(), key))} bytes",
        "index of 130 edges": f"{len(index.to_bytes())} bytes",
    }


def tasks_example() -> dict[str, str]:
    """Compute question and answer of the places that the page names; the answer of a guess is its secret."""
    episodes = {}
    for place in examples()["tasks"]:
        name, version, split, index = place.split()
        task: Any = registry.get(name, int(version))
        if hasattr(task, "question"):
            question, answer = task.question(split, int(index))
        else:
            low, high, secret = task.bounds(split, int(index))
            question, answer = f"guess {low}-{high}>", str(secret)
        episodes[place] = f"{json.dumps(question)} {json.dumps(answer)}"
    return episodes


def decay_example() -> dict[str, str]:
    known = {f"n({hours})": str(half_life.decay_table(audited_work.HALF_LIFE)[hours]) for hours in (0, 1, 84, 167)}
    after, _ = audited_work.decay_count(30 * audited_work.ONE, 1, 1 + 24 * audited_work.HOUR)
    return known | {"30 groups after 24 h": str(after)}


def weight_example() -> dict[str, str]:
    return {
        f"{tokens} tokens": f"{group_weights.whole_weight(None, tokens, [()])} milli-RE" for tokens in (128, 14, 1, 200)
    }


def costs_example() -> dict[str, str]:
    shapes = (16, [[96]] * 8), (1024, [[4]] * 8)
    priced, plain = ([group_weights.whole_weight(one, *shape) for shape in shapes] for one in (COSTS, None))
    return {
        "sealed": sealed_costs().hex(),
        "16 + 8 x 96": f"{priced[0]} milli-RE",
        "1024 + 8 x 4": f"{priced[1]} milli-RE",
        "without Costs": f"{plain[0]} and {plain[1]} milli-RE",
    }


EXAMPLES: dict[str, Callable[[], dict[str, str]]] = {
    "envelope": envelope_example,
    "record": record_example,
    "refusal": refusal_example,
    "sampling": sampling_example,
    "content-root": root_example,
    "merkle": merkle_example,
    "frames": frames_example,
    "https": https_example,
    "mux": mux_example,
    "ledger": ledger_example,
    "decay": decay_example,
    "weight": weight_example,
    "costs": costs_example,
    "tasks": tasks_example,
    "cost": cost_example,
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_worked_example_is_what_the_code_computes(name: str) -> None:
    assert examples()[name] == EXAMPLES[name]()


def test_no_example_is_left_uncomputed() -> None:
    assert set(examples()) == set(EXAMPLES)


# --- tasks -----------------------------------------------------------------------------------------------------------


def test_every_task_of_this_build_stands_on_the_page_with_its_sizes() -> None:
    assert "tasks.md" in PAGES, "no page says what a task asks and how it scores"
    (rows,) = [rows for header, *rows in tables(PAGES["tasks.md"]) if header[0] == "Task"]
    written = {(code(row[0]), int(row[1])): [int(cell) for cell in row[2:6]] for row in rows}
    true = {}
    for name, version in registry.list_tasks():
        task = registry.get(name, version)
        train, heldout = task.size("train"), task.size("heldout")
        true[name, version] = [train + heldout, (train + heldout) // heldout, train, heldout]
    assert written == true
    exampled = {tuple(place.split()[:2]) for place in examples()["tasks"]}
    assert exampled == {(name, str(version)) for name, version in true}


def test_the_characters_of_the_tiny_tokenizer_are_those_of_the_page() -> None:
    assert "    " + tokenizer.CHARACTERS.replace("\n", "\\n") + "\n" in PAGES["tasks.md"]
    assert f"decode to `<{2 + len(tokenizer.CHARACTERS)}>`" in PAGES["tasks.md"]
    assert (tokenizer.PAD, tokenizer.EOS, tokenizer.CHAR_SIZE) == (0, 1, 64)


# --- vectors, modules, pages -----------------------------------------------------------------------------------------


def test_every_golden_vector_is_named_and_every_name_is_one() -> None:
    there = {path.name for path in (ROOT / "tests" / "vectors").iterdir()}
    assert set(re.findall(r"`(?:tests/vectors/)?([\w-]+\.json)`", PAGES["README.md"])) == there


def test_every_source_file_that_the_pages_name_exists() -> None:
    named = set(re.findall(r"`((?:p2p|protocol|weights|engines|coordinator|node|tasks|tests)/[\w/]+\.py)`", ALL))
    assert named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_every_kind_of_ledger_entry_is_described() -> None:
    written = {
        kind
        for path in (ROOT / "coordinator").rglob("*.py")
        for kind in re.findall(r"_?append\w*\(\s*\w+(?:\.\w+)?, \"([\w.]+)\"", path.read_text())
    } | {*get_args(Remarked), *payout_facts.KINDS, ledger_facts.LOG_RESTORED}
    (rows,) = [rows for header, *rows in tables(PAGES["ledger.md"]) if header[0] == "Kind of entry"]
    assert {code(row[0]) for row in rows} == written


def test_the_overview_links_every_page() -> None:
    linked = set(re.findall(r"\]\((\w[\w-]*\.md)", PAGES["README.md"]))
    assert set(PAGES) - {"README.md"} <= linked
