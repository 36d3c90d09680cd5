"""The attacks that are tried, each keyed by one sentence, and where each attack of the design's catalogue stands."""

from functools import partial
from typing import Final

from benchmarks.attacks.ask_attacks import DroppedLeases, FalseAsks, FreeAsks
from benchmarks.attacks.attack import Attack
from benchmarks.attacks.connections import Bombs, SilentConnections, TinyRequests
from benchmarks.attacks.flood_actions import Flood
from benchmarks.attacks.floods import Forgers, Hoarders, LastSecond, Returners, Sleepers, Turncoats
from benchmarks.attacks.forced_answers import ForcedAnswers
from benchmarks.attacks.forged import Forged
from benchmarks.attacks.forgeries import FORGERIES
from benchmarks.attacks.halves import UNSERVED, HalfBodies, HalfStreams, half_request
from benchmarks.attacks.page_attacks import Names, Rebinding
from benchmarks.attacks.pay_rows import COMPUTED
from benchmarks.attacks.selection import Censor, CensorBack, CheckedDraft, DropLow, Farm, NearTies

HOARD: Final = "1,000 free keys on one connection take leases and return nothing"
MADE_UP: Final = "one key submits made-up groups without end"
SLEEP: Final = "keys work until they are known, then submit made-up groups"
SILENCE: Final = "one address opens 300 connections a second that send nothing"
IDLE: Final = "the same to the page"
BOMB: Final = "one megabyte of empty maps under each method"
DROP: Final = "keys generate, look, and drop groups of low reward"
CENSOR: Final = "keys drop every third prompt"
BACK: Final = "keys give every third prompt back at once"
FARM: Final = "keys work on short prompts alone, and give the others back"
BEST: Final = "a key hands in the best of four rollouts, and counts the choices within the margin"
DRAFT: Final = "a cheap engine checks and corrects its own tokens by the exact weights"
ANSWER: Final = "a node of a bfloat16 class writes one right answer into each group"
MARKUP: Final = "names that are markup, formulas or control characters"
REBIND: Final = "a foreign name leads to the page's address"
TINY: Final = "400 tiny requests are always under way"
HALF_REQUEST: Final = "8 connections begin 256 submissions and do not finish them"
HALF_BODY: Final = "8 addresses begin 256 submissions over HTTPS and do not finish them"
HALF_STREAM: Final = "20 connections open 250 streams each, and send nothing on them"
CONNECTIONS: Final = "connections"
"""The family of floods that request no lease."""
PRIVATE_SOURCE: Final = "24 connections of one private address open 250 streams each, as behind a proxy that hides them"
_LONG: Final = 20.0
"""Seconds of a flood in a full run."""

FLOODS: Final[dict[str, Attack]] = {
    HOARD: Attack("floods", partial(Flood, Hoarders(1000, 1, 1)), _LONG),
    "30 keys on 30 connections of one subnet take leases and return nothing": Attack(
        "floods", partial(Flood, Hoarders(30, 30, 1)), _LONG, quick=False
    ),
    "40 keys from 40 subnets take leases and return nothing": Attack(
        "floods", partial(Flood, Hoarders(40, 40, 40)), _LONG, 0.6, quick=False
    ),
    MADE_UP: Attack("floods", partial(Flood, Forgers(1, 1, 1), 3), _LONG),
    "1,000 keys on one connection submit made-up groups": Attack(
        "floods", partial(Flood, Forgers(1000, 1, 1), 3), _LONG, quick=False
    ),
    "20 keys give each lease back at once": Attack("floods", partial(Flood, Returners(20, 5, 1)), _LONG),
    "keys work until they are known, then return nothing": Attack(
        "floods", partial(Flood, Turncoats(10, 10, 1, seconds=1.0)), _LONG, 0.6, quick=False, generates=True
    ),
    SLEEP: Attack(
        "floods", partial(Flood, Sleepers(10, 10, 1, seconds=1.0), 9), _LONG, 0.6, quick=False, generates=True
    ),
    "nodes hand in honest groups at the last second": Attack(
        "floods", partial(Flood, LastSecond(10, 10, 10)), _LONG, 0.6, quick=False, generates=True
    ),
    SILENCE: Attack(CONNECTIONS, SilentConnections, _LONG),
    IDLE: Attack(CONNECTIONS, partial(SilentConnections, page=True), _LONG, quick=False),
    TINY: Attack(CONNECTIONS, TinyRequests, _LONG),
    HALF_REQUEST: Attack(CONNECTIONS, partial(HalfStreams, 8, 8, 32, half=half_request("submit")), _LONG),
    HALF_BODY: Attack(CONNECTIONS, partial(HalfBodies, 8, 8, 32), _LONG),
    HALF_STREAM: Attack(CONNECTIONS, partial(HalfStreams, 20, 2, 250, protocol=UNSERVED), _LONG),
    PRIVATE_SOURCE: Attack(
        CONNECTIONS,
        partial(HalfStreams, 24, 1, 250, source="127.0.0.1", protocol=UNSERVED),
        _LONG,
    ),
    BOMB: Attack(CONNECTIONS, Bombs, bar=None),
}
SELECTION: Final[dict[str, Attack]] = {
    DROP: Attack("selection", DropLow, bar=0.6),
    CENSOR: Attack("selection", Censor, bar=0.6, quick=False),
    BACK: Attack("selection", CensorBack, bar=0.6, quick=False),
    FARM: Attack("selection", Farm, bar=0.6, quick=False),
    BEST: Attack("selection", NearTies, bar=None),
    DRAFT: Attack("selection", CheckedDraft, bar=None),
    ANSWER: Attack("selection", ForcedAnswers, bar=None),
}
ASKS: Final[dict[str, Attack]] = {
    "a key sends asks that are false, early, late or another's": Attack(
        "pay", FalseAsks, bar=None, quick=False, market=True
    ),
    "200 free keys of 20 subnets seal an ask each": Attack("pay", FreeAsks, bar=None, quick=False, market=True),
    "a node drops the leases that earn less for its time": Attack(
        "pay", DroppedLeases, bar=None, quick=False, market=True
    ),
}
PAGE: Final[dict[str, Attack]] = {
    MARKUP: Attack("page", Names, bar=None),
    REBIND: Attack("page", Rebinding, bar=None),
}
ATTACKS: Final[dict[str, Attack]] = {
    **{sentence: Attack("forgeries", partial(Forged, sentence), bar=None) for sentence in FORGERIES},
    **PAGE,
    **SELECTION,
    **FLOODS,
    **ASKS,
}
"""Every attack on a run, in the order in which they are tried: floods leave suspended keys and full tables behind."""
SENTENCES: Final = (*ATTACKS, *COMPUTED)
"""Every attack."""

TRIED: Final[dict[str, str]] = {
    "stream flood": HALF_STREAM,
    "slow-loris": HALF_BODY,
    "msgpack bomb": BOMB,
    "quantised or smaller model": "tokens of other weights",
    "prefill": "a token that was not chosen",
    "other temperature": "tokens chosen by other seeds",
    "best-of-N": BEST,
    "selective non-return": DROP,
    "copied rollout": "a submission for another node's lease",
    "replay and duplicate": "a request replayed",
    "easy-prompt picking": FARM,
    "forged log-probs": "log-probabilities a hundredth lower",
    "over-long output": "a completion beyond the limit",
    "version lie or choice among versions": "an older version's number",
    "sybil join": HOARD,
    "long con": SLEEP,
    "leaderboard XSS and name spoofing": MARKUP,
    "CSV formula injection": MARKUP,
    "local control hijack (DNS rebinding)": REBIND,
    "ask bait-and-switch": "a node probes how high it may ask",
    "fleet pricing": "a fleet of half of the supply",
}
"""Attack of the design's catalogue -> the sentence under which it is tried."""
