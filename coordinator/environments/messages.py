"""Calls to an environment's process, as msgspec Structs: one prompt, one episode or one turn a call. Pure."""

from typing import Literal

import msgspec

from echo2.tasks.chat import ChatSettings
from echo2.tasks.measure import Measure
from echo2.tasks.task import Split

Fault = Literal["", "transcript", "task-score", "not-scorable"]
"""The code of protocol/refusals.py for an episode that has no score; empty: it has one."""


class OpenTask(msgspec.Struct, frozen=True, kw_only=True):
    """Call "open". `version` None: the newest. `tokenizer`: path of the model's tokenizer.json. `eos`: the id that ends
    a turn. `other_ends`: further ones that do. `chat`: how prompts are written; None: as text alone."""

    task: str
    version: int | None
    tokenizer: str
    eos: int
    other_ends: tuple[int, ...] = ()
    chat: ChatSettings | None = None


class TaskOpened(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to "open". `train`, `heldout`: number of prompts. `turns`: most sampled turns of an episode. `unfiltered`:
    which of its limits are missing, and why; empty: none is. `measure`: measure of its held-out results. `opens`:
    whether it opens its episodes. `remarks`: its sentences for the operator."""

    version: int
    train: int
    heldout: int
    turns: int
    unfiltered: str
    measure: Measure = Measure()
    opens: bool = False
    remarks: list[str] = []


class AskPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """Call "prompt"."""

    split: Split
    index: int


class Prompted(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to "prompt". `fault`: fault of the task's code; empty: `tokens` is the prompt."""

    tokens: list[int] = []
    fault: str = ""


class AskScore(msgspec.Struct, frozen=True, kw_only=True):
    """Call "score". `tokens`, `turns`: the same as in `tasks.task.Transcript`. `limit`: most sampled tokens."""

    split: Split
    index: int
    tokens: list[int]
    turns: list[int]
    limit: int


class Scored(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to "score". `reason`: reason of the fault."""

    reward: float = 0.0
    success: bool = False
    fault: Fault = ""
    reason: str = ""


class AskEpisode(msgspec.Struct, frozen=True, kw_only=True):
    """Call "begin": an episode that stays open between calls. `episode`: its name. `past`: the turns that it had in
    another process, sampled and given alternating: it is taken through them. `prompt`: prompt of its lease, where the
    task opens it."""

    episode: bytes
    split: Split
    index: int
    past: list[list[int]]
    prompt: list[int] = []


class EpisodeBegun(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to "begin". `fault`: why it cannot be begun, or not taken through its past; empty: it is open."""

    fault: str = ""


class AskTurn(msgspec.Struct, frozen=True, kw_only=True):
    """Call "turn": the next sampled turn of an open episode. `episode`: its name. `tokens`: tokens of the turn; none:
    it is to be opened. `last`: the episode is over whatever the reply. `left`: episodes to forget."""

    episode: bytes
    tokens: list[int]
    last: bool
    left: list[bytes] = []


class TurnTaken(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to "turn". `given`: the environment's tokens; None: the episode is over, with `reward` and `success`.
    `fault`: why it failed, which ends it; empty: it did not."""

    given: list[int] | None = None
    reward: float = 0.0
    success: bool = False
    fault: str = ""


class AskDemonstrations(msgspec.Struct, frozen=True, kw_only=True):
    """Call "demonstrate": the task's own answers to `number` prompts of the training split, drawn by `seed`. `noise`,
    `slip`: the same as in tasks.task.Task.demonstration."""

    number: int
    seed: int
    noise: float
    slip: float


class Demonstrated(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to "demonstrate". `rows`: (tokens of a prompt, of its answer). `fault`: fault of the task's code; empty:
    it has none."""

    rows: list[tuple[list[int], list[int]]] = []
    fault: str = ""
