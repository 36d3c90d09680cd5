"""Discovery of a run on the local network, confirmed by a person who types its fingerprint.

The rules of an announcement are in p2p/discovery/mdns.py.
"""

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Final

from echo2.node.errors import BadConfig
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.discovery.mdns import Announcement, discover
from echo2.runtime.errors import LocalFault
from echo2.runtime.terminal_question import ask_text

LISTENING_SECONDS: Final = 3.0
"""Time to listen for announcements."""
FINGERPRINT_LETTERS: Final = 16
"""Letters of a fingerprint."""


def look(seconds: float = LISTENING_SECONDS) -> list[Announcement]:
    """Listen for `seconds` and return the announced runs. Raises `BadConfig`."""
    try:
        return asyncio.run(discover(seconds))
    except LocalFault as error:
        raise BadConfig(f"{error}; give an invite: echo2-node join INVITE") from error


def lines(announcements: Sequence[Announcement]) -> list[str]:
    """Return one line of text per announced run: fingerprint, name, addresses."""
    return [f"{one.invite.fingerprint}  {one.name}  {', '.join(one.invite.addresses)}" for one in announcements]


def confirm_invite(accepted: str | None) -> Invite:
    """Return the invite of the announced run whose fingerprint is `accepted`, or is typed now. Raises `BadConfig`."""
    announcements = look()
    if not announcements:
        raise BadConfig("no run was joined, and none is announced on the local network: echo2-node join INVITE")
    if accepted is None and not sys.stdin.isatty():
        raise BadConfig(
            f"no run was joined here; the local network announces {_announcement_list(announcements)}: compare the "
            "fingerprint with the operator's, and join with `echo2-node join --accept-fingerprint FINGERPRINT`, or by "
            "an invite"
        )
    return choose(announcements, accepted, _ask)


def choose(
    announcements: Sequence[Announcement], accepted: str | None, ask: Callable[[Sequence[Announcement]], str]
) -> Invite:
    """Return the invite of the run whose fingerprint is `accepted`, or the text that `ask` returns. The invite has the
    addresses of all announcements of that run. Raises `BadConfig` if no run has the fingerprint."""
    wanted = normal(accepted if accepted is not None else ask(announcements))
    matching = [one.invite for one in announcements if normal(one.invite.fingerprint) == wanted]
    if not matching:
        raise BadConfig(
            f"no announced run has the fingerprint {fingerprint_form(wanted)}; the local network announces "
            f"{_announcement_list(announcements)}: correct the fingerprint, or ask the operator for an invite"
        )
    addresses = list(dict.fromkeys(address for invite in matching for address in invite.addresses))[:16]
    first = matching[0]
    return Invite(run=first.run, root_hash=first.root_hash, addresses=addresses, https_key=first.https_key)


def normal(fingerprint: str) -> str:
    """Return a fingerprint in the form for comparison: letters and digits, in capitals."""
    return "".join(letter for letter in fingerprint.upper() if letter.isalnum())


def fingerprint_form(fingerprint: str) -> str:
    """Return what was given as a fingerprint in the form in which fingerprints are printed, XXXX-XXXX-XXXX-XXXX; of
    more letters than one has, the first; "(nothing)" for none."""
    letters = normal(fingerprint)
    if not letters:
        return "(nothing)"
    shown = "-".join(letters[at : at + 4] for at in range(0, min(len(letters), FINGERPRINT_LETTERS), 4))
    return f"{shown}..." if len(letters) > FINGERPRINT_LETTERS else shown


def _announcement_list(announcements: Sequence[Announcement]) -> str:
    return ", ".join(f"{one.invite.fingerprint} ({one.name})" for one in announcements)


def _ask(announcements: Sequence[Announcement]) -> str:
    print("Runs on the local network. Compare with the operator's, which `echo2-coord invite` prints:", file=sys.stderr)
    for text_line in lines(announcements):
        print(f"  {text_line}", file=sys.stderr)
    return ask_text("Type the fingerprint of the run to join: ", "--accept-fingerprint FINGERPRINT")
