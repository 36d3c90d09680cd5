"""The chain of a run's Roots, and the verification of documents that stay valid for good. Pure.

Rules
1. A Root is signed by the threshold of its own root keys, and carries the run's id. It names all of `ROLES`; no role
   names a key twice, a refused one (p2p/signatures.py, rule 3), or a threshold above its number of keys. The first
   Root is trusted by its hash, which the invite pins. Each later Root has the next serial, and is also signed by the
   threshold of the previous Root's root keys. A sealed Root has at most `MOST_ROOT_BYTES`: whoever passes it on can put
   more beside the signatures, and every holder keeps and serves it.
2. A Received, a Receipt, a LedgerHead or a LogRestored is valid if the keys of its role in any Root of the chain signed
   it, as many as that Root's threshold. Roots are tried newest first.
3. If only the keys of an earlier Root signed it, those keys were rotated. It is valid if its time (`at`, `issued` of
   a LedgerHead, or `restored`) is before `issued` of the first Root without them. A Root without `issued` sets no such
   bound.
4. A revoked key's signatures count in no Root, since a thief can write any `at`. There are two exceptions. Its holder
   stored the document before taking the Root that revokes the key, and its `at` is before the time of revocation. Or a
   LedgerHead that counts names this one, by the chain of heads, or has its entry: that head's key vouches for it,
   also where rule 3 does not hold.
5. A key that one Root revoked stays revoked in every later one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final

from msgspec import Meta

from echo2.p2p.envelope import ROLES as ROLE_OF
from echo2.p2p.envelope import decode_unverified, verify_envelope
from echo2.p2p.errors import BadSignature
from echo2.p2p.payload_manifest import Manifest
from echo2.p2p.signatures import REFUSED_KEYS
from echo2.p2p.wire_types import Count, Hash, Key, Milliseconds, Name, Token, Wire, decode
from echo2.protocol.group_weights import Costs
from echo2.protocol.leases import Receipt, Received
from echo2.protocol.ledger_heads import LedgerHead
from echo2.protocol.restored_logs import KIND as LOG_RESTORED
from echo2.protocol.restored_logs import LogRestored, SealedLog
from echo2.protocol.task_kinds import PURE_KIND

MOST_ROOTS = 64
"""Most Roots per run."""
MOST_ROOT_BYTES = 64 << 10
"""Most bytes of a sealed Root; with as many keys, revocations and signatures as may be it has some 35,000."""
MOST_OTHER_ENDS = 15
"""Most tokens that end a turn beside `RunSpec.eos`."""
MOST_WEIGHT = 1000
"""Greatest weight of a task."""
PLAIN_TEMPERATURE = 1000
"""Thousandths: a temperature of 1."""
LEAST_TEMPERATURE, MOST_TEMPERATURE = 500, 2000
"""Bounds of a run's temperature, in thousandths."""
MOST_WORDS = 500
"""Most characters of what a RunSpec says to people."""


class RoleKeys(Wire, frozen=True):
    """The keys of a role, and how many of them must sign."""

    keys: Annotated[list[Key], Meta(min_length=1, max_length=32)]
    threshold: Annotated[int, Meta(ge=1, le=32)]


class Root(Wire, frozen=True):
    """operator, offline -> everyone. Keys and thresholds of root, policy, channel and ledger. `issued`: time of
    writing. `revoked`: key -> the time of the run from which its
    signatures no longer count, in any role."""

    run: Hash
    serial: Count
    roles: Annotated[dict[Name, RoleKeys], Meta(max_length=16)]
    expires: Milliseconds
    issued: Milliseconds
    revoked: Annotated[dict[Key, Milliseconds], Meta(max_length=256)] = {}


class Asset(Wire, frozen=True):
    """A file that belongs to the model and never changes: config.json, tokenizer.json."""

    name: Name
    manifest: Manifest


class TaskReference(Wire, frozen=True):
    """A task of a run, or in a Hello a task of the node's build. `name`: unique in the run. `kind`: the place where its
    code runs (protocol/task_kinds.py). `weight`: its share of the run's prompts, relative to that of the other tasks.
    `settings_hash`: settings hash of the settings it was made with; None: it has none. `other_ends`: tokens that end a
    turn beside `RunSpec.eos`, in each task of the run (protocol/numbers.py, rule 2)."""

    name: Name
    version: Count
    kind: Name = PURE_KIND
    weight: Annotated[int, Meta(ge=1, le=MOST_WEIGHT)] = 1
    settings_hash: Hash | None = None
    other_ends: Annotated[list[Token], Meta(max_length=MOST_OTHER_ENDS)] = []


class RunSpec(Wire, frozen=True):
    """operator (root) -> everyone. The definition of a run. `model` names its base for people; weights come by edges.

    `limit`: most sampled tokens per rollout. `vocabulary`: number of token ids. `engines`: engine classes admitted,
    each a prefix of "<engine>/<dtype>/<device>". `price_mode`: "points" or "market". `currency`: currency in which the
    market pays; empty: the run pays points. `protocols`: lowest and highest protocol version spoken. `description`: the
    purpose of the run, `page`: its public page, `contact`: how to reach the operator; for people. `temperature`:
    temperature of sampling, in thousandths (protocol/numbers.py, rule 3)."""

    run: Hash
    name: Name
    model: Name
    assets: Annotated[list[Asset], Meta(max_length=16)]
    eos: Token
    vocabulary: Count
    tasks: Annotated[list[TaskReference], Meta(min_length=1, max_length=64)]
    staleness: Count
    group_size: Annotated[int, Meta(ge=1, le=1024)]
    limit: Annotated[int, Meta(ge=1, le=1 << 20)]
    compute_dtype: Name
    engines: Annotated[list[Name], Meta(min_length=1, max_length=16)]
    sampling: Name
    price_mode: Name
    protocols: tuple[int, int] = (1, 1)
    currency: Annotated[str, Meta(max_length=8)] = ""
    description: Annotated[str, Meta(max_length=MOST_WORDS)] = ""
    page: Annotated[str, Meta(max_length=MOST_WORDS)] = ""
    contact: Annotated[str, Meta(max_length=MOST_WORDS)] = ""
    temperature: Annotated[int, Meta(ge=LEAST_TEMPERATURE, le=MOST_TEMPERATURE)] = PLAIN_TEMPERATURE

    def kind_of(self, task: str, version: int) -> str | None:
        """Return the kind of a task; None: the run has no such task."""
        for one in self.tasks:
            if one.name == task and one.version == version:
                return one.kind
        return None

    @property
    def other_ends(self) -> tuple[int, ...]:
        """The tokens beside `eos` that end a turn: those of all tasks, each once."""
        named: dict[int, None] = {}
        for task in self.tasks:
            if task.other_ends:  # seldom; asked for at each rollout's receipt
                named.update(dict.fromkeys(task.other_ends))
        return tuple([end for end in named if end != self.eos]) if named else ()

    @property
    def ends(self) -> tuple[int, ...]:
        """All tokens that end a turn, `eos` first."""
        return (self.eos, *self.other_ends)


_TIME_OF: Final[Mapping[str, Callable[[bytes], int]]] = {
    "received": lambda payload: decode(payload, Received).at,
    "receipt": lambda payload: decode(payload, Receipt).at,
    "ledgerhead": lambda payload: decode(payload, LedgerHead).issued,
    "costs": lambda payload: decode(payload, Costs).at,
    LOG_RESTORED: lambda payload: decode(payload, LogRestored).restored,
}
"""The time of each kind of document that is kept for good."""

ROLES: Final = frozenset({"root", "policy", "channel", "ledger"})


class WrongRoot(BadSignature):
    """A Root that is not a validly signed successor of the Root before it."""


class Unproven(BadSignature):
    """The key that signed the document was replaced before the document's time, or is revoked (rules 3 and 4)."""


def verify_root(sealed: bytes, before: Root | None, run: bytes | None = None) -> Root:
    """Verify the Root that follows `before` (rule 1). `before`: None for the first Root, whose hash the caller has
    checked. `run`: the run's id; None: the first Root's own. Raises `WrongRoot`, `Malformed`."""
    if len(sealed) > MOST_ROOT_BYTES:
        raise WrongRoot(f"the Root has {len(sealed)} bytes, at most {MOST_ROOT_BYTES} are accepted")
    root = decode(decode_unverified(sealed).payload, Root)
    if before is not None and root.serial != before.serial + 1:
        raise WrongRoot(f"a Root with serial {root.serial} cannot follow serial {before.serial}")
    run = run or (before or root).run
    if root.run != run or not root.roles.keys() >= ROLES:
        raise WrongRoot("the Root belongs to another run, or lacks a role")
    if any(not len(set(role.keys)) == len(role.keys) >= role.threshold for role in root.roles.values()):
        raise WrongRoot("a role of the Root names a key twice, or a threshold above its number of keys")
    if any(not REFUSED_KEYS.isdisjoint(role.keys) for role in root.roles.values()):
        raise WrongRoot("a role of the Root names a key of small order, or one that is not canonical")
    for signers in (root,) if before is None else (before, root):
        role = signers.roles["root"]
        try:
            verify_envelope(sealed, "root", run, role.keys, role.threshold)
        except BadSignature as error:
            raise WrongRoot(str(error)) from None
    return root


def threshold_changes(before: Root, root: Root) -> list[str]:
    """Return a sentence for each role of which the next Root changes the threshold or the number of keys."""
    sentences = []
    for role, new in root.roles.items():
        old = before.roles.get(role)
        if old is None or (old.threshold, len(old.keys)) == (new.threshold, len(new.keys)):
            continue
        word = "LOWERS" if new.threshold < old.threshold else "RAISES" if new.threshold > old.threshold else "KEEPS"
        sentences.append(
            f"Root {root.serial} {word} the threshold of {role}: {new.threshold} of {len(new.keys)} keys sign, before "
            f"{old.threshold} of {len(old.keys)}"
        )
    return sentences


def revoked_keys(chain: Sequence[Root], stored: int | None = None, at: int | None = None) -> set[bytes]:
    """Return the revoked keys (rules 4 and 5). `stored`: serial of the newest Root that the holder had when it stored
    the document; None: it stores it now. `at`: the document's own time."""
    keys = set()
    for root in chain:
        for key, since in root.revoked.items():
            stored_before = stored is not None and at is not None and stored < root.serial and at < since
            if not stored_before:
                keys.add(key)
    return keys


def open_kept(
    sealed: bytes, kind: str, chain: Sequence[Root], *, stored: int | None = None, named: bool = False
) -> bytes:
    """Verify a document that is kept for good by these Roots, and return its payload (rules 2 to 5). `stored`: see
    `revoked`. `named`: a LedgerHead that counts names it, or has its entry (rule 4).

    Raises `Malformed` and `BadSignature`; its subclass `Unproven` where a key that no longer counts signed it."""
    if not chain:
        raise BadSignature("no Root of the run is known to verify it with")
    successor: Root | None = None
    for root in reversed(chain):
        role = root.roles[ROLE_OF[kind]]
        try:
            payload = verify_envelope(sealed, kind, root.run, role.keys, role.threshold)
        except BadSignature:
            successor = root
            continue
        at = _TIME_OF[kind](payload)
        if not named and successor is not None and at >= successor.issued:
            raise Unproven(f"Root {successor.serial} had replaced the key that signed this {kind}")
        without = set() if named else revoked_keys(chain, stored, at)
        if without.isdisjoint(role.keys):
            return payload
        try:
            good = set(role.keys) - without
            return verify_envelope(sealed, kind, root.run, good, role.threshold)
        except BadSignature as error:
            raise Unproven(f"the key that signed this {kind} was revoked") from error
    raise BadSignature(f"{kind}: not signed by the keys of role {ROLE_OF[kind]} in any Root of the run")


def open_log(sealed: bytes, chain: Sequence[Root], *, stored: int | None = None) -> SealedLog:
    """Verify a LogRestored, and the head that it shows, by these Roots. `stored`: see `revoked`. Raises `Malformed`,
    `BadSignature`."""
    document = decode(open_kept(sealed, LOG_RESTORED, chain, stored=stored), LogRestored)
    open_kept(document.head, "ledgerhead", chain, named=True)
    return SealedLog(document, sealed)
