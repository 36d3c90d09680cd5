"""Exports of ledgers whose documents are changed in turn: Roots, heads, restored logs, files. The product says what is
right of each."""

import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.run.setup import Run
from echo2.ledger.export_files import SUMS, sums
from echo2.ledger.export_replay import replay
from echo2.ledger.ledger_audit import Tampered
from echo2.ledger.ledger_entries import canonical, chain_hash, sha256
from echo2.ledger.ledger_facts import LOG_RESTORED, LogBegun, Remark
from echo2.p2p.envelope import seal
from echo2.p2p.identity import peer_id, public_bytes
from echo2.p2p.swarm import merkle
from echo2.p2p.wire_types import encode
from echo2.protocol.authority import RoleKeys, Root
from echo2.protocol.ledger_heads import LedgerHead
from echo2.protocol.restored_logs import LogRestored
from echo2.protocol.root_chain import Untrusted
from echo2.runtime.errors import LocalFault

KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in range(1, 10)]
ROOTS, OLD, NEW, OTHER = KEYS[:3], KEYS[3], KEYS[4], KEYS[5]
"""Root keys; the ledger's key of the first Root, and that of the second; a key of nobody."""
NODE = peer_id(bytes(32))


P, ORDER_8 = 2**255 - 19, 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
"""The prime of Ed25519, and the y of two points of order 8."""


def role(*keys: Ed25519PrivateKey, threshold: int = 1) -> RoleKeys:
    return RoleKeys(keys=[public_bytes(key) for key in keys], threshold=threshold)


class ExportWorld:
    """An export before it is written. An edit changes fields; what rests on them follows.

    `roots`, `heads`, `logs`: fields of each document beside those that follow, and the keys that sign it. `begun`:
    entry number of the `log.restored` of log 1, and changed fields of its facts."""

    def __init__(self, run: Run) -> None:
        self.run, self.id, self.entries = run, run.id, 30
        first = {"root": role(*ROOTS, threshold=2), "ledger": role(OLD), "policy": role(OTHER), "channel": role(OTHER)}
        second = first | {"ledger": role(NEW), "root": role(ROOTS[0], ROOTS[2], threshold=2)}
        self.roots: list[Any] = [
            [{"serial": 1, "roles": first, "issued": 1}, ROOTS[:2]],
            [{"serial": 2, "roles": second, "issued": 1_000}, [ROOTS[0], ROOTS[2]]],
        ]
        self.heads: list[Any] = [
            [{"number": 1, "size": 5, "issued": 10}, OLD], [{"number": 2, "size": 10, "issued": 20}, OLD],
            [{"number": 3, "size": 20, "issued": 1_030}, NEW], [{"number": 4, "size": 29, "issued": 1_040}, NEW],
        ]  # fmt: skip
        self.logs: list[Any] = []
        self.spec = [ROOTS[0], ROOTS[2]]
        self.length = 0
        """Of the last sealed Root, which an unknown field of it fills up; 0: there is none."""
        self.begun: dict[int, dict[str, Any]] = {}
        self.after: Callable[[Path], object] = lambda folder: None
        """Called with the folder before its files are summed up."""
        self.summed: Callable[[Path], object] = lambda folder: None

    def restored(self) -> None:
        """Restore 12 entries behind head 2, where head 3 had been signed over 14."""
        lost = LedgerHead(log=self.id, number=3, size=14, root=bytes(32), tip=bytes(32), issued=25)
        self.lost = [msgspec.structs.asdict(lost), OLD]
        self.logs = [[{"serial": 1, "number": 2, "size": 12, "restored": 1_010}, [ROOTS[0], ROOTS[2]]]]
        self.begun = {15: {}}

    def write(self, folder: Path) -> None:
        """Write the export's files."""
        (folder / "entries").mkdir(parents=True)
        sealed_logs, ids, written, rows, tip = list[bytes](), [self.id], list[bytes](), list[Any](), bytes(32)
        for number in range(1, self.entries + 1):
            facts: Any = Remark(node=NODE, why="a word")
            kind, key = "node.noted", f"key:{NODE}:{number}"
            if self.logs and number == min(self.begun, default=self.entries):
                documents = self._logs(written)
                sealed_logs = [one for one, _ in documents]
                ids = [self.id, *(hashlib.sha256(payload).digest() for _, payload in documents)]
            if number in self.begun:
                changed = dict(self.begun[number])
                place = changed.pop("place", 0)
                told = {"serial": place + 1, "log": ids[place + 1], "size": 12, "known": 14}
                facts, kind = LogBegun(**(told | {"sealed": sealed_logs[place]} | changed)), LOG_RESTORED
                key = f"restored:{facts.serial}"
            written.append(canonical(number, number * 1_000, kind, key, (), encode(facts)))
            tip = chain_hash(tip, written[-1])
            rows.append((written[-1], tip))
        tips = [tip for _, tip in rows]
        (folder / "entries" / f"{1:010d}").write_bytes(gzip.compress(msgspec.msgpack.encode(rows)))
        (folder / "heads").write_bytes(msgspec.msgpack.encode(self._heads(written, tips, ids)))
        (folder / "roots").write_bytes(msgspec.msgpack.encode(self._roots()))
        spec = msgspec.structs.replace(self.run.runspec, run=self.id)
        (folder / "runspec").write_bytes(seal("runspec", self.id, encode(spec), *self.spec))
        if sealed_logs:
            (folder / "restored").write_bytes(msgspec.msgpack.encode(sealed_logs))
        self.after(folder)
        (folder / SUMS).write_text(sums(folder))
        self.summed(folder)

    def _roots(self) -> list[bytes]:
        roots = [(Root(**({"run": self.id, "expires": 9, "issued": 0} | told)), keys) for told, keys in self.roots]
        sealed = [seal("root", self.id, encode(root), *keys) for root, keys in roots]
        if self.length:
            root, keys = roots[-1]
            for size in range(self.length - len(sealed[-1]) - 40, self.length - len(sealed[-1])):
                filled = encode(msgspec.to_builtins(root, builtin_types=(bytes,)) | {"filling": bytes(size)})
                last = seal("root", self.id, filled, *keys)
                if len(last) == self.length:
                    return [*sealed[:-1], last]
            raise AssertionError("no size of the filling leads to this length")
        return sealed

    def _logs(self, written: list[bytes]) -> list[tuple[bytes, bytes]]:
        shown = seal("ledgerhead", self.id, encode(LedgerHead(**self.lost[0])), self.lost[1])
        documents = list[tuple[bytes, bytes]]()
        for told, keys in self.logs:
            old = hashlib.sha256(documents[-1][1]).digest() if documents else self.id
            usual = {"old": old, "head": shown, "root": merkle.root(written[: told["size"] or 1], sha256)}
            payload = encode(LogRestored(**(usual | told)))
            documents.append((seal("log.restored", self.id, payload, *keys), payload))
        return documents

    def _heads(self, written: list[bytes], tips: list[bytes], ids: list[bytes]) -> list[bytes]:
        sealed, payload = list[bytes](), b""
        for told, key in self.heads:
            size = min(told["size"], len(written)) or 1
            usual = {"log": ids[-1] if ids[1:] and told["number"] > 2 else self.id, "tip": tips[size - 1]}
            usual["root"] = merkle.root(written[:size], sha256)
            if sealed:
                usual |= {"before": hashlib.sha256(payload).digest()}
            payload = encode(LedgerHead(**(usual | told)))
            sealed.append(seal("ledgerhead", self.id, payload, key))
        return sealed


Edit = Callable[[ExportWorld], object]


def told(part: str, place: int, /, **fields: Any) -> Edit:
    """Return an edit of a document's fields. `part`: `roots`, `heads` or `logs`."""
    return lambda world: getattr(world, part)[place][0].update(fields)


def signed(part: str, number: int, keys: Any) -> Edit:
    return lambda world: getattr(world, part)[number].__setitem__(1, keys)


def role_of(number: int, name: str, new: RoleKeys | None) -> Edit:
    def edit(world: ExportWorld) -> None:
        roles = dict(world.roots[number][0]["roles"])
        roles.pop(name)
        world.roots[number][0]["roles"] = roles if new is None else roles | {name: new}

    return edit


def flip(name: str, place: int) -> Edit:
    def after(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[place] ^= 1
        (folder / name).write_bytes(data)

    return lambda world: setattr(world, "after", after)


def both(*edits: Edit) -> Edit:
    return lambda world: [edit(world) for edit in edits]


def third_root(world: ExportWorld, **fields: Any) -> None:
    """Add a Root, which the first one's keys have not signed."""
    first, second = (root[0]["roles"] for root in world.roots)
    second["root"] = role(ROOTS[0], KEYS[6], threshold=2)
    world.roots[1][1] = [ROOTS[0], ROOTS[1], KEYS[6]]
    world.roots.append([{"serial": 3, "roles": first | second | {"root": role(KEYS[6], KEYS[7], threshold=2)},
                         "issued": 2_000} | fields, [ROOTS[0], KEYS[6], KEYS[7]]])  # fmt: skip
    world.spec = [KEYS[6], KEYS[7]]


def restored_twice(world: ExportWorld, **fields: Any) -> None:
    """Restore the same copy a second time, before the new log has a head."""
    second = {"serial": 2, "number": 2, "size": 12, "restored": 1_020} | fields
    world.logs.append([second, [ROOTS[0], ROOTS[2]]])
    world.begun = {15: {"place": 1}}


def nothing_restored(size: int) -> Edit:
    """Return an edit by which so few entries, and no head, were restored."""

    def edit(world: ExportWorld) -> None:
        world.heads.clear()
        world.logs[0][0].update(size=size, number=0)
        world.begun = {15: {"size": size}} if size else {}

    return edit


EDITS: dict[str, Edit] = {
    "nothing": lambda world: None,
    "one Root": both(lambda world: world.roots.pop(), role_of(0, "root", role(ROOTS[0], ROOTS[2], threshold=2)),
                     signed("roots", 0, [ROOTS[0], ROOTS[2]]), role_of(0, "ledger", role(OLD, NEW))),
    "a Root's serial": told("roots", 1, serial=3), "the same serial": told("roots", 1, serial=1),
    "a first serial": told("roots", 0, serial=0), "a Root of another run": told("roots", 1, run=bytes(32)),
    "a Root without a role": role_of(1, "policy", None), "a Root without a ledger's key": role_of(1, "ledger", None),
    "a threshold above its keys": role_of(1, "policy", role(OTHER, threshold=2)),
    "a threshold of 0": role_of(1, "policy", RoleKeys(keys=[public_bytes(OTHER)], threshold=0)),
    "a key twice": role_of(1, "policy", role(OTHER, OTHER)), "a key twice of a threshold": role_of(
        1, "policy", role(OTHER, OTHER, NEW, threshold=2)),
    **{f"a policy key whose number is {number:#x}": role_of(
        1, "policy", RoleKeys(keys=[public_bytes(OTHER), number.to_bytes(32, "little")], threshold=1))
       for number in (0, 1, 2, P - 2, P - 1, P, 2**255 - 1, 2**255, ORDER_8, P - ORDER_8)},
    "as many keys as the threshold": role_of(1, "policy", role(OTHER, NEW, threshold=2)),
    "a Root that the one before did not sign": signed("roots", 1, [ROOTS[2]]),
    "a Root that it did not sign itself": signed("roots", 1, [ROOTS[0], ROOTS[1]]),
    "a Root signed by more": signed("roots", 1, ROOTS), "a first Root of one signature": signed("roots", 0, ROOTS[:1]),
    "one signature twice": signed("roots", 0, [ROOTS[0], ROOTS[0]]),
    "no time of a Root": told("roots", 1, issued=None),
    "a RunSpec that the first Root's keys signed": lambda world: setattr(world, "spec", ROOTS[:2]),
    "a Root as long as may be": lambda world: setattr(world, "length", 65_536),
    "a Root that is too long": lambda world: setattr(world, "length", 65_537),
    "a third Root": third_root, "a third Root that the second one's keys have not signed": both(
        third_root, signed("roots", 2, [KEYS[6], KEYS[7]])),
    "a third Root without its own keys": both(third_root, signed("roots", 2, [ROOTS[0], KEYS[6]])),
    "the key of a Root before one without a time": both(
        third_root, told("roots", 1, issued=None), signed("heads", 3, OLD), told("roots", 2, issued=1_035)),
    "a Root of another run without heads": both(told("roots", 1, run=bytes(32)), lambda world: world.heads.clear()),
    "a revoked key": told("roots", 1, revoked={public_bytes(OLD): 5}),
    "a revoked key that signs last": told("roots", 1, revoked={public_bytes(NEW): 5}),
    "revoked at first": told("roots", 0, revoked={public_bytes(NEW): 5}),
    "a head's number": told("heads", 1, number=3), "a first number": told("heads", 0, number=0),
    "sizes that are the same": told("heads", 1, size=5), "a size that falls": told("heads", 2, size=9),
    "a size one more": told("heads", 1, size=6), "no size": told("heads", 0, size=0),
    "a size of 1": told("heads", 0, size=1),
    "times that are the same": told("heads", 1, issued=10), "a time one more": told("heads", 1, issued=11),
    "a first time of 0": told("heads", 0, issued=0), "a first time before it": told("heads", 0, issued=-1),
    "another root": told("heads", 2, root=bytes(32)), "another tip": told("heads", 2, tip=bytes(32)),
    "a head of another log": told("heads", 2, log=bytes(32)),
    "a head that names another": told("heads", 2, before=bytes(32)),
    "no hash": told("heads", 2, before=None),
    "a first head that names another": told("heads", 0, before=bytes(32)),
    "a head of nobody": signed("heads", 2, OTHER), "a last head of the old key": signed("heads", 3, OLD),
    "a named head of the old key": signed("heads", 2, OLD),
    "a last head of the old key in its time": both(signed("heads", 3, OLD), signed("heads", 2, OLD),
                                                   told("heads", 2, issued=998), told("heads", 3, issued=999)),
    "a last head of the old key at its end": both(signed("heads", 3, OLD), signed("heads", 2, OLD),
                                                  told("heads", 2, issued=999), told("heads", 3, issued=1_000)),
    "the old key, where no time ends it": both(signed("heads", 3, OLD), told("roots", 1, issued=None)),
    "no heads": lambda world: world.heads.clear(), "a head over all": told("heads", 3, size=30),
    "a head over more": told("heads", 3, size=31), "a first file with another number": lambda world: setattr(
        world, "after", lambda folder: (folder / "entries" / f"{1:010d}").rename(folder / "entries" / f"{2:010d}")),
    "a file of another hash": lambda world: setattr(
        world, "summed", lambda folder: (folder / SUMS).write_text(sums(folder).replace("a", "b", 1))),
    "another state": lambda world: setattr(world, "after", lambda folder: (folder / "state").write_text("{}")),
    **{f"byte {place} of {name}": flip(name, place)
       for name in ("roots", "heads", "runspec") for place in (9, 40, 77, -1)},
}  # fmt: skip
RESTORED: dict[str, Edit] = {
    "nothing": lambda world: None,
    "another serial": told("logs", 0, serial=2), "another log before": told("logs", 0, old=bytes(32)),
    "one entry": both(told("logs", 0, size=1), lambda world: world.begun[15].update(size=1)),
    "as many as were known": both(told("logs", 0, size=14), lambda world: world.begun[15].update(size=14)),
    "more than were known": both(told("logs", 0, size=15), lambda world: world.begun[15].update(size=15)),
    "the number that was known": told("logs", 0, number=3), "a number above it": told("logs", 0, number=4),
    "a number below heads before": told("logs", 0, number=1), "a number of later heads": told("logs", 0, number=3),
    "fewer than heads before": both(told("logs", 0, size=9), lambda world: world.begun[15].update(size=9)),
    "as many as a head before": both(told("logs", 0, size=10), lambda world: world.begun[15].update(size=10)),
    "another root": told("logs", 0, root=bytes(32)), "the ledger's key": signed("logs", 0, [NEW]),
    "one of two keys": signed("logs", 0, ROOTS[:1]), "the old root keys in their time": both(
        signed("logs", 0, ROOTS[:2]), told("logs", 0, restored=999)),
    "the old root keys at its end": both(signed("logs", 0, ROOTS[:2]), told("logs", 0, restored=1_000)),
    **{f"a head shown of number {number}": lambda world, number=number: world.lost[0].update(number=number)
       for number in (1, 2)},
    **{f"a head shown of size {size}": lambda world, size=size: both(
        lambda world: world.lost[0].update(size=size), lambda world: world.begun[15].update(known=size))(world)
       for size in (11, 12)},
    "restored twice": restored_twice,
    "restored twice in another order": lambda world: restored_twice(world, old=world.id),
    "no entries restored": nothing_restored(0), "one entry restored": nothing_restored(1),
    "a head shown of another log": lambda world: world.lost[0].update(log=bytes(32)),
    "a head shown of nobody": lambda world: world.lost.__setitem__(1, OTHER),
    "a head shown of a revoked key": told("roots", 1, revoked={public_bytes(OLD): 5}),
    "no entry": lambda world: world.begun.clear(),
    "the entry behind the head": both(lambda world: world.begun.clear(), lambda world: world.begun.update({21: {}})),
    "the entry at its size": both(lambda world: world.begun.clear(), lambda world: world.begun.update({12: {}})),
    "the entry at once": both(lambda world: world.begun.clear(), lambda world: world.begun.update({13: {}})),
    "the entry at its head": both(lambda world: world.begun.clear(), lambda world: world.begun.update({20: {}})),
    **{f"entry with {name} {value!r:.9}": lambda world, name=name, value=value: world.begun[15].update({name: value})
       for name, value in (("serial", 0), ("serial", 2), ("serial", -1), ("size", 13), ("known", 13), ("known", 15),
                           ("log", bytes(32)), ("sealed", b""), ("rules", 2))},
    "a new log's head of a number before": both(told("heads", 2, number=2), told("logs", 0, number=3)),
    "a head of the old log": lambda world: world.heads[2][0].update(log=world.id),
    "heads of the old log behind": lambda world: [one[0].update(log=world.id) for one in world.heads[2:]],
    "a head of the size restored": told("heads", 2, size=12),
    "a head one larger": both(told("heads", 2, size=15)),
    "a first head of the new log": told("heads", 1, log=bytes(32)),
}  # fmt: skip


class Export(NamedTuple):
    """An export in a folder. `state`: that the product computes; None: it refuses the export."""

    name: str
    folder: Path
    state: str | None

    def same(self, module: ModuleType) -> bool:
        """Tell whether a replayer says of this export what the product does."""
        try:
            state = module.replayed(self.folder).state()
        except Exception:
            state = None
        return bool(state == self.state)


def exports(run: Run, folder: Path) -> list[Export]:
    """Write an export for each edit."""
    made = list[Export]()
    for restored, edits in ((False, EDITS), (True, RESTORED)):
        for name, edit in edits.items():
            world, place = ExportWorld(run), folder / f"{len(made)}"
            if restored:
                world.restored()
            edit(world)
            world.write(place)
            try:
                state = replay(place).state.as_bytes().decode()
            except (Tampered, Untrusted, LocalFault):
                state = None
            made.append(Export(f"{'restored' if restored else 'export'}: {name}", place, state))
    return made
