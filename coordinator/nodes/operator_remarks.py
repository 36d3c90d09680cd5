"""Write the operator's remarks on a key: `echo2-coord nodes vouch | ban | unban | note`.

Rules
1. A running coordinator writes the entry itself and applies it from its next answer on; the command reaches it over the
   run folder's socket. If none runs, the command opens the run's database.
2. A key is named by its whole peer id: any node may choose any name.
3. A remark that changes nothing writes nothing, except for a note.
"""

from pathlib import Path
from typing import Final

from echo2.coordinator.accounts.key_accounts import Accounts, Remarked
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database, InUse
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.nodes.teams import blot_out
from echo2.coordinator.run import operator_commands
from echo2.ledger.standing import describe
from echo2.p2p.errors import Malformed, Unreachable
from echo2.p2p.identity import public_key
from echo2.runtime.errors import LocalFault
from echo2.runtime.printable import printable

MOST_WORDS: Final = 300
"""Most characters of a reason or a note; the ledger keeps them for ever."""
BLOT: Final = "blot-team"
"""The word that deletes a team's name, given in place of the peer id."""
KINDS: Final[dict[str, Remarked]] = {
    "vouch": "node.vouched",
    "ban": "node.banned",
    "unban": "node.unbanned",
    "note": "node.noted",
}


def key_of(peer: str) -> bytes:
    """Return the public key of a peer id. Raises `LocalFault`."""
    try:
        return public_key(peer)
    except Malformed as error:
        raise LocalFault(f"{error}: name a node by its peer id; `echo2-coord nodes ls` shows them") from error


def record_remark(accounts: Accounts, word: str, peer: str, why: str, now: int) -> str:
    """Write a remark into the ledger, unless it changes nothing (rule 3); return the key's standing in words. `word`: a
    key of `KINDS`, or `BLOT`. Raises `LocalFault`."""
    if word == BLOT:
        return blot_out(accounts.database, peer)
    node = key_of(peer)
    if len(why) > MOST_WORDS:
        raise LocalFault(f"{len(why)} characters are too many for the ledger: say it in {MOST_WORDS}")
    if word in ("ban", "note") and not why.strip():
        raise LocalFault("say why: the node is told, and the ledger keeps it" if word == "ban" else "the note is empty")
    before = accounts.of(node, now)
    if word == "vouch" and accounts.account(node).vouched:
        return f"{peer} was vouched for before: {describe(before)}"
    if word == "unban" and before.suspended_until is None:
        return f"{peer} is neither banned nor suspended: {describe(before)}"
    accounts.remark(node, KINDS[word], words(why), now)
    return f"{peer} is {describe(accounts.of(node, now))}"


def words(text: str) -> str:
    """Return a text of the operator as the ledger keeps it: every reader's terminal shows it."""
    return printable(" ".join(text.encode(errors="replace").decode().split()))


def submit_remark(home: Path, word: str, peer: str, why: str, now: int) -> str:
    """Send a remark to the coordinator that runs in `home`, or write it if none runs (rule 1). Return the key's
    standing in words. Raises `LocalFault`, and `Unreachable` if a coordinator runs but does not answer."""
    if word != BLOT:
        key_of(peer)
    try:
        return str(operator_commands.command(home, "remark", word=word, node=peer, why=why)["said"])
    except Unreachable as unreachable:
        path = RunFolder(home).database
        if not path.exists():
            raise LocalFault(f"no {path}: name the run folder with --home; `echo2-coord run` makes the file") from None
        try:
            with Database.open(path) as database:
                return record_remark(Accounts(database, Ledger(database)), word, peer, why, now)
        except InUse:
            raise unreachable from None
