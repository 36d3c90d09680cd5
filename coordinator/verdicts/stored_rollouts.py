"""Read the rollouts whose tokens are stored, for the operator: prompt, answers, rewards, probabilities.

Rules
1. Tokens are stored for the challenge window, and up to a number of bytes (token_storage.py). A group without them is
   not listed.
2. Rewards are small and tokens are large: groups are chosen by their rewards first, among the newest `MOST_SEARCHED`
   that match, and only the chosen ones are decoded. A search by words decodes one group after the other. Rewards lie
   behind the tokens in the file, so they are read of those groups alone, and only for an order by reward.
3. Reading blocks no writer, and each group is read by itself: a list that stands in a pager for hours holds no
   snapshot, which would let the file's log grow as long. A group that is forgotten meanwhile is left out.
4. A refused group may have any numbers that its node chose: each is shown as far as it can be.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
import numpy as np

from echo2.coordinator.database.database import Database
from echo2.p2p.identity import peer_id
from echo2.p2p.wire_types import decode
from echo2.protocol.leases import Lease, Submission
from echo2.tasks.task import Score, Tokenizer

MOST_SEARCHED: Final = 20_000
"""Most groups of which one search reads the rewards."""

Order = Literal["newest", "best", "worst"]

_LISTED = (
    "SELECT v.lease AS id, v.at AS at FROM verdicts v JOIN leases l ON l.id = v.lease"
    " JOIN submissions s ON s.lease = v.lease WHERE s.payload IS NOT NULL"
)
_SCORED = (
    "SELECT c.id, coalesce(s.scores, e.scores) FROM ({}) c JOIN submissions s ON s.lease = c.id"
    " LEFT JOIN episode_scores e ON e.lease = c.id ORDER BY c.at DESC, c.id"
)
_STORED = (
    "SELECT l.document, s.payload, coalesce(s.scores, e.scores), v.at, v.verdict, v.code, n.name, d.step"
    " FROM verdicts v JOIN leases l ON l.id = v.lease JOIN submissions s ON s.lease = v.lease"
    " LEFT JOIN episode_scores e ON e.lease = v.lease LEFT JOIN nodes n ON n.key = v.node"
    " LEFT JOIN draws d ON d.lease = v.lease WHERE v.lease = ? AND s.payload IS NOT NULL"
)


@dataclass(frozen=True)
class Wanted:
    """The groups to list. `node`: public key of the node that made them; None: any. `version`: version that made them;
    None: any. `task`: empty: any. `prompt`: its index in the task; None: any. `words`: text in the prompt or in an
    answer; empty: any."""

    order: Order = "newest"
    most: int = 20
    node: bytes | None = None
    version: int | None = None
    refused: bool = False
    task: str = ""
    prompt: int | None = None
    words: str = ""


class TextPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an answer. `by`: "policy" if it was sampled, else "task"."""

    by: str
    text: str


class ShownAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout. `reward`: None: not scored. `tokens`: text and probability of each sampled token."""

    sample: int
    reward: float | None
    success: bool | None
    parts: list[TextPart]
    tokens: list[tuple[str, float]]


class ShownGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One group. `at`: time of the verdict, ms. `step`: step that drew it; None: none yet, or it is not recorded."""

    lease: str
    node: str
    name: str
    task: str
    index: int
    era: int
    version: int
    step: int | None
    at: int
    verdict: str
    code: str
    prompt: str
    answers: list[ShownAnswer]

    @property
    def reward(self) -> float | None:
        """The mean reward; None: not scored."""
        rewards = [one.reward for one in self.answers if one.reward is not None]
        return sum(rewards) / len(rewards) if rewards else None

    @property
    def best_and_worst(self) -> list[ShownAnswer]:
        """The answers with the highest and the lowest reward; one that is not scored counts as 0."""
        answers = sorted(self.answers, key=lambda one: -(one.reward if one.reward is not None else 0.0))
        return answers[:1] + answers[1:][-1:]


def list_groups(
    database: Database,
    tokenizer: Tokenizer,
    wanted: Wanted,
    is_late: Callable[[], bool] = lambda: False,
    *,
    by_token: bool = False,
) -> Iterator[ShownGroup]:
    """Return the stored groups that match, at most `wanted.most`, in its order. `is_late`: returns whether to search no
    further. `by_token`: see `read_group`."""
    shown = 0
    for lease in _choose(database, wanted):
        if is_late():
            return
        group = read_group(database, tokenizer, lease, by_token=by_token)
        if group is None or not _matches(group, wanted):
            continue
        yield group
        shown += 1
        if shown == wanted.most:
            return


def newest_past(database: Database, most: int, era: int, oldest: int) -> list[bytes]:
    """Return the leases of the newest accepted groups that no node can be asked for again: of versions before the
    `oldest` of the era that is leased, without a twin that is on its way."""
    query = (
        "SELECT v.lease FROM verdicts v JOIN leases l ON l.id = v.lease WHERE v.verdict = 'accepted'"
        " AND (l.era < ? OR (l.era = ? AND l.version < ?)) AND NOT EXISTS (SELECT 1 FROM leases o"
        " WHERE o.position = l.position AND o.attempt = l.attempt AND o.state IN ('open', 'received'))"
        " ORDER BY v.entry DESC LIMIT ?"
    )
    return [lease for (lease,) in database.all(query, (era, era, oldest, most))]


def read_group(database: Database, tokenizer: Tokenizer, lease: bytes, *, by_token: bool = True) -> ShownGroup | None:
    """Return the stored group of a lease; None: its tokens are not stored. `by_token`: decode each token by itself
    too."""
    row = database.one(_STORED, (lease,))
    if row is None:
        return None
    document, payload, scored, at, verdict, code, name, step = row
    asked, given = decode(document, Lease), decode(payload, Submission)
    scores = _scores(scored) or [None] * len(given.rollouts)
    return ShownGroup(
        lease=lease.hex(), node=peer_id(asked.node), name=name or "", task=asked.task, index=asked.index,
        era=asked.era, version=asked.version, step=step, at=at, verdict=verdict, code=code,
        prompt=tokenizer.decode(asked.prompt),
        answers=[
            ShownAnswer(
                sample=sample,
                reward=None if score is None else score.reward,
                success=None if score is None else score.success,
                parts=list(_parts(tokenizer, rollout.tokens, rollout.turns)),
                tokens=list(_token_texts(tokenizer, rollout.tokens, rollout.turns, rollout.logprobs))
                if by_token
                else [],
            )
            for sample, (rollout, score) in enumerate(zip(given.rollouts, scores, strict=False))
        ],
    )  # fmt: skip


def _choose(database: Database, wanted: Wanted) -> Iterable[bytes]:
    """Return the leases of the groups that may match, in the order wanted (rule 2)."""
    where, values = " AND v.verdict = ?", ["refused" if wanted.refused else "accepted"]
    conditions: list[tuple[str, object]] = [("v.node", wanted.node), ("l.version", wanted.version)]
    given = [(column, value) for column, value in conditions if value is not None]
    where += "".join(f" AND {column} = ?" for column, _ in given)
    query = f"{_LISTED}{where} ORDER BY v.at DESC, v.lease LIMIT {MOST_SEARCHED}"
    parameters = (*values, *(value for _, value in given))
    if wanted.order == "newest":
        return [lease for lease, _ in database.all(query, parameters)]
    rows = database.all(_SCORED.format(query), parameters)
    means = [(lease, mean) for lease, scored in rows if scored and (mean := _mean(scored)) is not None]
    means.sort(key=lambda one: one[1], reverse=wanted.order == "best")
    return [lease for lease, _ in means]


def _matches(group: ShownGroup, wanted: Wanted) -> bool:
    if (wanted.task and group.task != wanted.task) or (wanted.prompt is not None and group.index != wanted.prompt):
        return False
    texts = [group.prompt, *("".join(part.text for part in one.parts) for one in group.answers)]
    return any(wanted.words.casefold() in text.casefold() for text in texts)


def _scores(scored: bytes | None) -> list[Score | None]:
    return [] if scored is None else msgspec.msgpack.decode(scored, type=list[Score | None])


def _mean(scored: bytes) -> float | None:
    """Return the mean reward of the rollouts that have one; None: none has."""
    rewards = [one.reward for one in _scores(scored) if one is not None]
    return sum(rewards) / len(rewards) if rewards else None


def _parts(tokenizer: Tokenizer, tokens: list[int], turns: list[int]) -> Iterator[TextPart]:
    start = 0
    for number, length in enumerate(turns):
        text = tokenizer.decode(tokens[start : start + length])
        yield TextPart(by="task" if number % 2 else "policy", text=text)
        start += length


def _token_texts(
    tokenizer: Tokenizer, tokens: list[int], turns: list[int], logprobs: bytes
) -> Iterator[tuple[str, float]]:
    with np.errstate(over="ignore"):  # rule 4
        probabilities = iter(np.exp(np.frombuffer(logprobs[: len(logprobs) // 4 * 4], "<f4").astype(float)).tolist())
    start = 0
    for number, length in enumerate(turns):
        if number % 2 == 0:
            for token, probability in zip(tokens[start : start + length], probabilities, strict=False):
                yield tokenizer.decode([token]) or "(end)", probability
        start += length
