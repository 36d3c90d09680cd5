"""`verifiers:PATH`: a taskset of the verifiers library, whose episodes run in its own environment server.

    a lease's prompt      the tokens of the rollout's first call to the model
    a sampled turn        answers the pending call
    the environment's     what the next call's tokens have behind those so far
    the score             the reward of the rollout's trace

Rules
1. A call's tokens must begin with all tokens of the episode so far, sampled ones unchanged. The episode of an
   environment that rewrites its history fails, and says so.
2. The sampled spans of the trace must be the turns that were sampled here, token by token.
3. Unless the file says `opened`, all samples of a group see one prompt: the first calls for a row must have the same
   tokens. The first row is tried twice at once, so that a taskset without it is refused before the run begins.
4. A rollout whose prompt alone was asked for stays open for the first sample of its row, `MOST_SPARE` of them at most.
   One whose first call failed or does not fit, or that has ended meanwhile, is cancelled: no sample waits for it.
5. Time per answer is bounded here, so that one rollout that waits for ever costs the others nothing. One that computes
   for ever stops them all: the server is then started anew (other_side.py, rule 4).
6. Where it says so, the prompts of all leases are the tokens with which all first calls begin, as far as they are
   known: of `TRIED_ROLLOUTS` rollouts at first, those of them that make a call, and each later one may shorten them.
   The tokens of a sample's first call behind the prompt of its lease are the environment's first turn. A call that
   begins otherwise fails its episode.
"""

import json
import random
import shutil
import string
import tempfile
import time
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from itertools import count, takewhile
from pathlib import Path
from typing import Any, Final, Protocol

from echo2.tasks.chat import ChatTokenizer
from echo2.tasks.measure import Measure
from echo2.tasks.task import Score, Split, TaskBroken, TaskFault, Tokenizer
from echo2.tasks.tokenizer import FileTokenizer
from echo2.tasks.verifiers import taskset_file
from echo2.tasks.verifiers.other_side import SCRIPTS, OtherSide
from echo2.tasks.verifiers.taskset_file import TasksetFile

FIRST_CONVERSATION_SECONDS: Final = 120.0
"""Most seconds of the first conversation."""
MOST_SPARE: Final = 64
MOST_PROMPTS: Final = 4096
"""Prompts that are remembered for rule 3."""
LEAST_FIRST_CALL_SECONDS: Final = 0.1
"""Least seconds for the first call of a rollout that was begun beside others."""
TRIED_ROLLOUTS: Final = 16
"""Rollouts whose first calls tell how prompts begin (rule 6)."""
MOST_TURNS: Final = 2
"""Told as most turns: tasksets do not say how many they have, so that the run must be served."""


class EnvironmentServer(Protocol):
    """The part of `OtherSide` that episodes use."""

    def listen(self, name: str) -> None: ...
    def forget(self, name: str) -> None: ...
    def tell(self, do: str, name: str = "", **what: object) -> None: ...
    def hear(self, name: str, seconds: float) -> dict[str, Any]: ...
    def has_said(self, name: str) -> bool: ...
    def close(self) -> None: ...


class ServerRollout:
    """A rollout in the server, from its first call to its trace."""

    def __init__(self, server: EnvironmentServer, name: str, split: Split, index: int, seconds: float) -> None:
        self._server, self._name, self._seconds = server, name, seconds
        self._prompt: list[int] | None = None
        self._tokens = list[int]()
        self._sampled = list[list[int]]()
        self._ended: dict[str, Any] | None = None
        server.listen(name)
        server.tell("begin", name, split=split, index=index)

    @property
    def prompt(self) -> list[int]:
        """The tokens of the first call. Raises `TaskFault`."""
        return self.prompt_within(self._seconds)

    def prompt_within(self, seconds: float) -> list[int]:
        """Return the tokens of the first call, which comes within so many seconds. Raises `TaskFault`."""
        if self._prompt is None:
            told = self._server.hear(self._name, seconds)
            if "called" not in told:
                raise TaskFault("it ended before the model was asked anything", verified=True)
            self._prompt = [int(token) for token in told["called"]]
            self._tokens = list(self._prompt)
        return list(self._prompt)

    @property
    def is_spare(self) -> bool:
        """Whether its first call is there, unanswered: a sample may play it."""
        return bool(self._tokens) and not self._sampled and not self._server.has_said(self._name)

    def give(self, sampled: Sequence[int], *, cut: bool) -> list[int] | None:
        """Answer the pending call; return what the environment says, None at the end. Raises `TaskFault`."""
        if not self.prompt:
            raise TaskFault("its prompt is empty", verified=True)
        before = [*self._tokens, *sampled]
        self._sampled.append(list(sampled))
        self._server.tell("answer", self._name, tokens=list(sampled), finish="length" if cut else "stop")
        told = self._server.hear(self._name, self._seconds)
        if "called" not in told:
            self._ended = told
            return None
        called = [int(token) for token in told["called"]]
        given = called[len(before) :]
        if called[: len(before)] != before:
            same = next(
                (at for at, pair in enumerate(zip(called, before, strict=False)) if pair[0] != pair[1]), len(called)
            )
            raise TaskFault(
                f"the environment rewrites its history: its next call has other tokens from number {same} on, and the "
                f"episode has {len(before)} so far",
                verified=True,
            )
        if not given:
            raise TaskFault("the environment asks the model again and says nothing in between", verified=True)
        self._tokens = called
        return given

    def outcome(self) -> float:
        """Return the reward, once the rollout has ended; end it where it has not. Raises `TaskFault`."""
        if self._ended is None:
            self._server.tell("stop", self._name)
            self._ended = self._server.hear(self._name, self._seconds)
        if "reward" not in self._ended:
            raise TaskFault("it goes on behind its last turn", verified=True)
        if self._ended["sampled"] != self._sampled:
            raise TaskFault("the sampled tokens of its trace are not those that were sampled", verified=True)
        return float(self._ended["reward"])

    def leave(self) -> None:
        """Cancel it, if it still runs."""
        self._server.tell("leave", self._name)
        self._server.forget(self._name)


class VerifiersEpisode:
    """An episode over a rollout, which begins with its first turn, or where nobody knows its prompt yet."""

    def __init__(self, task: "VerifiersTask", split: Split, index: int, ends: Sequence[int]) -> None:
        self._task, self._split, self._index, self._ends = task, split, index, ends
        self._rollout: ServerRollout | None = None

    @property
    def prompt(self) -> Sequence[int]:
        """Token ids of the prompt. Raises `TaskFault` (rules 3 and 6)."""
        if self._task.opened:
            return self._task.beginning()
        known = self._task.known_prompt(self._split, self._index)
        return self.begin().prompt if known is None else known

    def begin(self) -> ServerRollout:
        """Return the rollout, begun, with its first call there. Raises `TaskFault` (rule 3)."""
        if self._rollout is None:
            rollout = self._task.rollout(self._split, self._index)
            try:
                self._task.check_prompt(self._split, self._index, rollout.prompt)
            except TaskFault:
                rollout.leave()
                raise
            self._rollout = rollout
        return self._rollout

    def open(self, prompt: Sequence[int]) -> Sequence[int]:
        """Return what the first call has behind a lease's prompt. Raises `TaskFault` (rule 6)."""
        rollout = self._task.rollout(self._split, self._index)
        try:
            called = rollout.prompt
            self._task.note_call(called)
            if called[: len(prompt)] != list(prompt) or len(called) == len(prompt):
                raise TaskFault("its prompt does not begin as those of other episodes do", verified=True)
        except TaskFault:
            rollout.leave()
            raise
        self._rollout = rollout
        return called[len(prompt) :]

    def reply(self, sampled: Sequence[int]) -> Sequence[int] | None:
        """See `tasks.task.Episode`."""
        return self.begin().give(sampled, cut=sampled[-1] not in self._ends)

    def score(self) -> Score:
        """See `tasks.task.Episode`."""
        reward = self.begin().outcome()
        return Score(reward, reward >= self._task.success)

    def leave(self) -> None:
        """See `tasks.task.left`."""
        if self._rollout is not None:
            self._task.give_back(self._split, self._index, self._rollout)


class VerifiersTask:
    """A taskset. `sizes`: rows per split. `success`, `seconds`, `opened`: of its file."""

    turns = MOST_TURNS
    measure = Measure()

    def __init__(
        self,
        name: str,
        version: int,
        sizes: dict[Split, int],
        server: EnvironmentServer,
        *,
        success: float = 1.0,
        seconds: float = 8.0,
        renderer: dict[str, Any] | None = None,
        opened: bool = False,
    ) -> None:
        self.name, self.version, self.success, self.opened = name, version, success, opened
        self._sizes, self._server, self._seconds, self._renderer = sizes, server, seconds, renderer
        self._names = count()
        self._text: Tokenizer | None = None
        self._removals: list[weakref.finalize[..., VerifiersTask]] = []
        """Of the folders with tokenizers, which the server reads as long as it lives."""
        self._spare: OrderedDict[tuple[Split, int, int], ServerRollout] = OrderedDict()
        """By split, index and a number of its own."""
        self._prompts: OrderedDict[tuple[Split, int], list[int]] = OrderedDict()
        self._common: list[int] | None = None
        """The tokens with which all first calls begin; None: none was made yet (rule 6)."""

    def size(self, split: Split) -> int:
        """Return the number of rows of a split."""
        return self._sizes[split]

    def episode(self, split: Split, index: int, text: Tokenizer) -> VerifiersEpisode:
        """Return an episode. Raises IndexError outside the split."""
        if not 0 <= index < self._sizes[split]:
            raise IndexError(f"index {index} is outside {split}, which has {self._sizes[split]} rows")
        if self._text is not text:
            self._server.tell("write", **write_tokenizer(text, self._folder(), self._renderer))
            self._text, self._common = text, None
            if not self.opened:
                self._try(split, index, text)
        if self.opened and self._common is None:
            self._try_many()
        return VerifiersEpisode(self, split, index, text.ends)

    def beginning(self) -> list[int]:
        """Return the tokens with which all prompts begin (rule 6). Raises `TaskFault`."""
        if not self._common:
            raise TaskFault(
                "its prompts have no token in common at their beginning, and a lease needs one: begin them with a "
                'system message, or set run.template = "chat"',
                verified=True,
            )
        return list(self._common)

    def note_call(self, called: Sequence[int]) -> None:
        """Note the tokens of a first call (rule 6). The last one is always the sample's own."""
        before = called[:-1] if self._common is None else self._common
        same = (one == other for one, other in zip(before, called[:-1], strict=False))
        self._common = list(before[: sum(takewhile(bool, same))])

    def ready(self, text: Tokenizer) -> None:
        """Pose a row, with time for the first conversation: verifiers loads renderer and harness for it. Raises
        `TaskFault`."""
        usual, self._seconds = self._seconds, FIRST_CONVERSATION_SECONDS
        try:
            self.episode("train", 0, text)
        except TaskFault:
            self._text = None  # the first episode tries again
            raise
        finally:
            self._seconds = usual
            while self._spare:
                self._spare.popitem()[1].leave()

    def demonstration(
        self, split: Split, index: int, text: Tokenizer, seed: int, noise: float, slip: float = 0.0
    ) -> Sequence[int]:
        """Return the row's `answer`, for rows that have one. Its `mistake` is the usual one, if it has that too.
        A wrong character is one of the answer's alphabet: a digit for digits, else a letter."""
        name = str(next(self._names))
        self._server.listen(name)
        self._server.tell("answer_of", name, split=split, index=index)
        row = self._server.hear(name, self._seconds)
        self._server.forget(name)
        chance = random.Random(f"{self.name}/{split}/{index}/{seed}")
        mistaken = slip > 0 and chance.random() < slip and isinstance(row["mistake"], str)
        answer = row["mistake" if mistaken else "answer"]
        if not isinstance(answer, str):
            raise TaskFault("its rows have no text named answer", verified=False)
        alphabet = string.digits if answer.isdigit() else string.ascii_lowercase
        spelled = "".join(
            chance.choice(alphabet.replace(right, "")) if chance.random() < noise else right for right in answer
        )
        return [*text.encode(spelled), text.eos]

    def rollout(self, split: Split, index: int) -> ServerRollout:
        """Return a rollout of a row: one that is open already, or a new one (rule 4)."""
        for key in [key for key in self._spare if key[:2] == (split, index)]:
            spare = self._spare.pop(key)
            if spare.is_spare:
                return spare
            spare.leave()
        return ServerRollout(self._server, str(next(self._names)), split, index, self._seconds)

    def give_back(self, split: Split, index: int, rollout: ServerRollout) -> None:
        """Keep a rollout that nobody played, or cancel it (rule 4)."""
        if not rollout.is_spare:
            rollout.leave()
            return
        self._spare[split, index, next(self._names)] = rollout
        if len(self._spare) > MOST_SPARE:
            self._spare.popitem(last=False)[1].leave()

    def known_prompt(self, split: Split, index: int) -> list[int] | None:
        """Return the prompt of a row, if it was posed before."""
        return self._prompts.get((split, index))

    def check_prompt(self, split: Split, index: int, prompt: list[int]) -> None:
        """Compare a prompt with the first one of its row (rule 3). Raises `TaskFault`."""
        if self._prompts.setdefault((split, index), prompt) != prompt:
            raise TaskFault(
                f"the prompts of row {index} differ from sample to sample, and the samples of a group share one: "
                "write opened = true into the taskset's file, or let all samples of a row have the same",
                verified=True,
            )
        if len(self._prompts) > MOST_PROMPTS:
            self._prompts.popitem(last=False)

    def close(self) -> None:
        """End the server, and remove the tokenizers that were written for it."""
        self._server.close()
        for remove in self._removals:
            remove()

    def _folder(self) -> Path:
        """Make a folder for a tokenizer. It is gone with this task, also where nobody closes that."""
        folder = tempfile.mkdtemp(prefix="echo2-tokenizer-")
        self._removals.append(weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True))
        return Path(folder)

    def _try_many(self) -> None:
        """Pose rows that are spread over the training split, all at once and in the time of one (rule 6). Raises
        `TaskFault` if none is posed."""
        indices = [number * self._sizes["train"] // TRIED_ROLLOUTS for number in range(TRIED_ROLLOUTS)]
        rollouts = [self.rollout("train", index) for index in indices]
        fault, until = None, time.monotonic() + self._seconds
        for index, rollout in zip(indices, rollouts, strict=True):
            try:
                self.note_call(rollout.prompt_within(max(LEAST_FIRST_CALL_SECONDS, until - time.monotonic())))
                self.give_back("train", index, rollout)
            except TaskBroken:
                raise
            except TaskFault as one:
                rollout.leave()
                fault = one
        if self._common is None and fault is not None:
            raise fault

    def _try(self, split: Split, index: int, text: Tokenizer) -> None:
        """Pose a row twice at once (rule 3). Raises `TaskFault`."""
        both = [VerifiersEpisode(self, split, index, text.ends) for _ in range(2)]
        try:
            for episode in both:
                episode.begin()
        finally:
            for episode in both:
                episode.leave()


def write_tokenizer(text: Tokenizer, folder: Path, renderer: dict[str, Any] | None) -> dict[str, Any]:
    """Write a tokenizer for transformers into an empty folder; return how conversations are written with it. Raises
    `TaskFault`."""
    settings = text.settings if isinstance(text, ChatTokenizer) else None
    plain = text.plain if isinstance(text, ChatTokenizer) else text
    if not isinstance(plain, FileTokenizer):
        raise TaskFault("the model has no tokenizer.json", verified=False)
    plain.save(folder / "tokenizer.json")
    described: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": plain.name_of(plain.eos)}
    if settings is not None:
        described |= {**settings.specials, "chat_template": settings.template}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    own = {
        "name": "custom",
        "import_path": f"{SCRIPTS / 'run_renderer.py'}:RunRenderer",
        "ends": list(text.ends),
        "templated": settings is not None,
        "thinking": None if settings is None else settings.enable_thinking,
    }
    return {"model": str(folder), "ends": list(text.ends), "renderer": renderer or own}


def task(argument: str) -> VerifiersTask:
    """Return the task of a file, with its server started. Raises `TasksetFault`."""
    file = taskset_file.read(argument)
    server = OtherSide([file.python, str(SCRIPTS / "bridge_server.py"), json.dumps(_settings(file))])
    try:
        opened = server.wait_until_open()
    except BaseException:
        server.close()
        raise
    sizes: dict[Split, int] = {"train": int(opened["train"]), "heldout": int(opened["heldout"])}
    return VerifiersTask(
        f"verifiers:{argument}",
        int(opened["version"]),
        sizes,
        server,
        success=file.success,
        seconds=file.seconds,
        renderer=file.renderer,
        opened=file.opened,
    )


def _settings(file: TasksetFile) -> dict[str, Any]:
    told = {"version": taskset_file.VERSION, "path": file.path, "env": file.env, "rows": file.rows}
    return told | {"opened": True} if file.opened else told
