"""The table of the coordinator's refusals: code, sentence, fault, and the node's reaction.

1. A code is stable: programs read it. A sentence is for people and may be improved.
2. `fault` names the side that can act: "node" broke a rule, "operator" configured it so, "nobody": neither can.
3. `retry`: the same node may ask again; where it is False, this very request never succeeds.
4. `then` is the node's reaction to this code (`Then`). For a code that it does not know, a node does as for the empty
   reaction.
5. The numbers of a sentence are formatted together by runtime/figures.py, with enough digits that compared numbers
   differ.
"""

from numbers import Integral, Real
from typing import Final, Literal, NamedTuple

from echo2.protocol.requests import Refusal
from echo2.runtime.figures import apart

Fault = Literal["node", "operator", "nobody"]
Then = Literal["", "greet", "end", "other engine", "finish", "other version", "wait", "fewer", "moved"]
"""Empty: ask again after `retry_after`. "greet": send `hello` again, which returns the coordinator's time and the
newest Root. "end": stop, since the run accepts no work of this node. "other engine": compute in another number format,
or stop. "finish": deliver finished groups, and stop. "other version": ask again once another version is loaded. "wait":
ask again after `retry_after`, even if a newer version arrives meanwhile. "fewer": ask again with fewer open leases.
"moved": take the addresses of the peer's Head (node/links/coordinator_client.py, rule 7)."""


class Reason(NamedTuple):
    """One row of the table. `sentence`: a template for `str.format`."""

    sentence: str
    fault: Fault
    retry: bool = False
    then: Then = ""


REASONS: dict[str, Reason] = {
    # --- refused requests
    "malformed": Reason("These bytes are not a {what}: {detail}.", "node"),
    "bad-signature": Reason("The request is not signed by the node it speaks for: {detail}.", "node"),
    "wrong-recipient": Reason("The request is meant for another coordinator or run.", "node", then="greet"),
    "moved": Reason(
        "This is a former identity of the run's coordinator: {detail}. Update echo2, or ask the operator for a new"
        " invite.",
        "operator",
        True,
        then="moved",
    ),
    "wrong-method": Reason("A request for method {asked} was sent under method {method}.", "node"),
    "unknown-method": Reason("There is no method {method}.", "node"),
    "clock": Reason(
        "The request expires {off} s away from now, the most is {most} s: set the clock, or say hello.",
        "node",
        then="greet",
    ),
    "id-reused": Reason("Another request with this id was answered before: use a new id.", "node"),
    "too-large": Reason("The submission has {size} bytes, the most is {most}.", "node"),
    "banned": Reason(
        "This node was banned: {why}. Ask the run's operator; once the ban is lifted, start the node again.",
        "operator",
        then="end",
    ),
    "replaced": Reason(
        "The key of this node was replaced by {successor}. {balance} This key gets no work.", "operator", then="end"
    ),
    "suspended": Reason(
        "This node is suspended until {until}, for a group that was refused ({reason}); after that it may ask again.",
        "node",
        True,
    ),
    "suspended-by-proof": Reason(
        "This node is suspended, since a group of it was refused with proof ({reason}): `echo2-node why` names its"
        " lease, `echo2-node appeal` asks for another check of it, and the run's operator can lift the suspension.",
        "node",
        True,
    ),
    "no-hello": Reason("This node has not said hello to this run: say hello, then ask again.", "node", then="greet"),
    "fenced": Reason(
        "Another daemon with this node's key is connected from elsewhere, and the run gives leases to one of them. Stop"
        " one of the two. If both are yours, give this one another home: `--home DIR`. If you know of no other,"
        " somebody has your key: stop this node, and `echo2-node keys rotate`.",
        "node",
        True,
        then="wait",
    ),
    "protocol": Reason(
        "This run speaks protocols {low} to {high}, the node {theirs}: update echo2 to protocol {high}.",
        "node",
        then="end",
    ),
    "task-version": Reason("The node lacks task {task} version {version}: update echo2.", "node", then="end"),
    "engine": Reason(
        "Engine {engine} is not admitted to this run; admitted: {admitted}.", "operator", then="other engine"
    ),
    # --- refused leases
    "not-ready": Reason("The coordinator has no version to roll out yet.", "nobody", True),
    "finished": Reason("The run is finished: no more leases.", "operator", then="finish"),
    "busy": Reason("More nodes ask for leases than the coordinator can answer now.", "nobody", True, then="wait"),
    "paused": Reason("The run is paused; the coordinator's page says why.", "operator", True),
    "no-prompt": Reason(
        "The run's task has no prompt ready: its process is starting, or failed as the coordinator's log says.",
        "operator",
        True,
    ),
    "not-calibrated": Reason(
        "Groups of engine class {engine} cannot be checked yet: the operator opens it by `echo2-coord calibrate`. Until"
        " then another class is needed, such as one in float32.",
        "operator",
        True,
        then="wait",
    ),
    "wrong-version": Reason(
        "Version {version}, as it was named, is not one of this run's; hold version {wanted}.",
        "node",
        True,
        then="other version",
    ),
    "stale-version": Reason(
        "Version {version} is too old (step {step}, staleness limit {limit}); hold version {wanted}.",
        "nobody",
        True,
        then="other version",
    ),
    "no-room": Reason("Enough rollouts are under way for version {version} at step {step}.", "nobody", True),
    "newer-version": Reason(
        "Enough rollouts of version {version} are under way; hold version {wanted}.",
        "nobody",
        True,
        then="other version",
    ),
    "later": Reason(
        "A group of version {version} would hardly come back in time at step {step}.",
        "nobody",
        True,
    ),
    "too-many-leases": Reason("This node holds {held} open leases, the most is {most}.", "node", True, then="fewer"),
    "new-share": Reason(
        "Nodes without enough accepted groups share {share} of {whole} groups while others ask for leases, and"
        " that share is in use: ask again.",
        "nobody",
        True,
    ),
    "no-ask": Reason(
        "This run pays in {currency}, and no ask of this node stands: `echo2-node config set ask 0.12/h` states one.",
        "node",
        True,
        then="wait",
    ),
    "standby": Reason(
        "This node stands by in epoch {epoch}, at rank {rank}: with an ask of at most {active_at} per hour it would be"
        " active.",
        "nobody",
        True,
        then="wait",
    ),
    "not-active": Reason("This node is not active in epoch {epoch}: {why}.", "nobody", True, then="wait"),
    "promised": Reason(
        "All the work that this node is paid for in epoch {epoch} is done or under way: the next epoch brings more.",
        "nobody",
        True,
        then="wait",
    ),
    "payee": Reason("The account is not taken: {detail}.", "node"),
    "new-connection": Reason(
        "Over this connection, {held} groups are open or wait for their verdict: the next lease comes once one"
        " is decided, or once the node has enough accepted groups.",
        "nobody",
        True,
    ),
    "slow-share": Reason(
        "A group takes this node much longer than others, or its last lease ended without one: such nodes share"
        " {share} of {whole} groups, and all of these are leased.",
        "nobody",
        True,
    ),
    "rate-share": Reason(
        "Few leases are free: this node holds {held} groups, and its share is {share}.",
        "nobody",
        True,
    ),
    "undecided": Reason(
        "This node has {held} groups that wait for their verdict, the most is {most}: the next lease comes after"
        " a verdict.",
        "nobody",
        True,
    ),
    "expiries": Reason(
        "Within the hour {expired} leases of this node or its network expired or brought faulty groups"
        " (eight that were given back count as one): the next one is given in {wait} s."
        " Leave the node running until it has submitted its group.",
        "node",
        True,
    ),
    "too-slow": Reason(
        "A group takes this node {own} s, and the longest lease of this run lasts {most} s: a faster engine or device"
        " is needed. The node may try again in {wait} s.",
        "node",
        True,
    ),
    # --- refused steps of an episode
    "step": Reason("Sample {sample}, turn {turn_number}: {detail}.", "node"),
    "step-pending": Reason("The environment has not answered this turn yet: ask again.", "nobody", True),
    "one-episode": Reason(
        "A node without enough accepted groups has one episode open at a time: this one begins once that has ended.",
        "nobody",
        True,
    ),
    # --- refused reports of a group under way
    # --- refused appeals
    "no-appeal": Reason("This verdict cannot be appealed: {detail}.", "node"),
    "one-appeal": Reason(
        "An appeal of this node waits for its answer: the next one can be made after that.", "nobody", True
    ),
    # --- submissions refused without a receipt
    "unknown-lease": Reason("There is no such lease.", "node"),
    "not-owner": Reason("This lease was given to another node.", "node"),
    "other-bytes": Reason("Other bytes were submitted for this lease before; both are kept.", "node"),
    # --- submissions refused by receipt
    "late": Reason("Received {late} ms after the lease expired.", "node"),
    "version-lie": Reason("The lease binds era {era} version {version}; {detail}.", "node"),
    "other-weights": Reason(
        "The lease asks for bytes of version {version}, to show that the node has it: {detail}.", "node"
    ),
    "incomplete": Reason("A group of {wanted} rollouts was leased, {got} came.", "node"),
    "tokens": Reason("Sample {sample}: {detail}.", "node"),
    "turns": Reason("Sample {sample}: {detail}.", "node"),
    "logprobs": Reason("Sample {sample}: {detail}.", "node"),
    "segments": Reason("Sample {sample}: {detail}.", "node"),
    "end": Reason("Sample {sample}: {detail}.", "node"),
    "transcript": Reason("Sample {sample}: {detail}.", "node"),
    "not-generated": Reason(
        "Of {tokens} sampled tokens that were looked at, {count} are not the seeded choice: nothing of it was"
        " generated.",
        "node",
    ),
    "seeded-choice": Reason(
        "Sample {sample}, sampled token {position}: the seeded choice is another token, better by {margin} nats.",
        "node",
    ),
    "close-choices": Reason(
        "Of {tokens} sampled tokens {count} narrowly miss the seeded choice, the most is {most};"
        " first: sample {sample}, sampled token {position}.",
        "node",
    ),
    "near-ties": Reason(
        "Of {tokens} sampled tokens {count} narrowly miss the seeded choice: with the node's groups before it, more"
        " than an honest node's would but for a chance of one in a million.",
        "node",
    ),
    "party-near-ties": Reason(
        "Of {tokens} sampled tokens {count} narrowly miss the seeded choice. Groups from this network did so more often"
        " than honest ones: until that has passed, groups with such tokens are accepted only of keys that had few.",
        "nobody",
    ),
    "drift": Reason(
        "Sample {sample}, sampled token {position}: log-probability off by {off}, the most is {most}.", "node"
    ),
    "drift-median": Reason(
        "Sample {sample}: log-probabilities off by {off} in the median, the most is {most}.", "node"
    ),
    "evidence": Reason(
        "This group, with the node's groups before it, differs more from the coordinator's pass than an honest node's"
        " would but for a chance of one in a million: look for quantised weights, another temperature, faulty memory.",
        "node",
    ),
    "unknown-device": Reason(
        "This group is outside what rounding in {rounding} explains, and is one of the first of its kind of device in"
        " this run ({device}): it is not paid, and counts for nothing against the node. The operator's log names it."
        " Another engine or device may be inside the bounds, and float32 is, where the run admits it.",
        "nobody",
    ),
    "not-scorable": Reason("The coordinator cannot check this group: {detail}.", "operator"),
    # --- submissions accepted, but not trained on
    "task-score": Reason("The task gives no finite reward for this group: it is paid, but not trained on.", "operator"),
    "canary": Reason(
        "The right tokens of this group were known before: it is not trained on, and is paid once {groups} further"
        " groups of this node are accepted.",
        "nobody",
    ),
    "quarantine": Reason(
        "There was some evidence against this node's arithmetic today (UTC): until the day has ended its groups are"
        " accepted, not trained on, and their pay is kept.",
        "node",
    ),
    "quarantine-paid": Reason(
        "On the day (UTC) of this group the evidence against this node stayed low and fell, or a re-run agrees with the"
        " node: the group is paid.",
        "nobody",
    ),
    "quarantine-unpaid": Reason(
        "On the day (UTC) of this group there was too much evidence against this node's arithmetic: the group is not"
        " paid. Look for quantised weights, another temperature, faulty memory.",
        "node",
    ),
    # --- verdicts that were reversed
    "reversed-paid": Reason("The verdict was reversed: the group is paid after all ({why}).", "nobody"),
    "reversed-unpaid": Reason("The verdict was reversed: the group is taken back ({why}).", "node"),
    # --- the code of an acceptance
    "ok": Reason("", "nobody"),
}
"""Refusal code -> its row. A new refusal code has a row here and in docs/protocol/requests.md; `refusal` makes the
answer. Words of its own on the page stand in coordinator/web/refusal_texts.py. For a group's code CONTRIBUTING.md has a
list: "To add a verification rule"."""


ONE_EPISODE: Final = "one-episode"
"""The code of the first turn of an episode that must wait for the end of another one."""
FENCED_CODE: Final = "fenced"
"""The code for a daemon with whose key another daemon works."""
UNKNOWN_METHOD: Final = "unknown-method"
"""The code for a method that the run does not have, as that of accounts where it pays points."""
STEP_PENDING: Final = "step-pending"
"""The code of a turn that waits for the environment."""
QUARANTINE: Final = "quarantine"
"""The code of a group whose pay is kept until the day (UTC) of its verdict has ended."""
STANDBY: Final = "standby"
"""A node that stands by gets no lease."""
AT_VERDICT: Final = frozenset(("ok", "task-score", "canary"))
"""The codes of receipts whose work counts in the epoch of their verdict."""


def sentence(code: str, **facts: object) -> str:
    """Return the sentence of a code with its facts filled in, cut to the limit of the wire type."""
    measured = {
        name: float(fact) for name, fact in facts.items() if isinstance(fact, Real) and not isinstance(fact, Integral)
    }
    written = dict(zip(measured, apart(*measured.values()), strict=True))
    return REASONS[code].sentence.format(**facts | written)[:2000]


TOO_OLD: Final = ("protocol", "task-version")
"""The codes that ask a node for a newer build."""


def refusal(code: str, *, retry_after: int | None = None, **facts: object) -> Refusal:
    """Build the refusal to send. `retry_after` (ms) is required exactly where the table's `retry` is True."""
    if REASONS[code].retry != (retry_after is not None):
        raise ValueError(f"{code}: retry_after is {retry_after}, but the table's `retry` is {REASONS[code].retry}")
    return Refusal(code=code, sentence=sentence(code, **facts), retry_after=retry_after)


def then(refused: Refusal) -> Then:
    """Return what a node does on a refusal (rule 4)."""
    reason = REASONS.get(refused.code)
    return "" if reason is None else reason.then
