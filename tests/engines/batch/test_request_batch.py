"""Groups over a program that takes whole requests: a story per rule, with a program that answers as the test says."""

from collections.abc import Callable, Sequence

import msgspec
import pytest

from echo2.engines.batch.request_batch import Completion, RequestBatch, TokenRequest, check
from echo2.engines.batch.rollout_state import RolloutState
from echo2.engines.engine import EngineError, Job, Sample, SampledTurn
from echo2.tasks import registry
from echo2.tasks.task import Transcript, replay
from tests.support.served import play, served
from tests.support.tiny_model import TEXT, job

ROOT = bytes(range(32))
VOCABULARY = TEXT.size

Answer = Callable[[TokenRequest], Completion | EngineError]


def tokens_of(*tokens: int, logprob: float = -1.0) -> Completion:
    return Completion(tokens, [logprob] * len(tokens), ROOT)


class Program:
    """Answers each request at the next `advance`, by `answer`."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.queue, self.withdrawn = answer, dict[int, TokenRequest](), list[int]()

    def submit(self, id: int, request: TokenRequest) -> None:
        if request.most > 100:
            raise EngineError("too long for this program")
        self.queue[id] = request

    def withdraw(self, ids: Sequence[int]) -> None:
        self.withdrawn += ids
        for id in ids:
            self.queue.pop(id, None)

    def advance(self) -> list[tuple[int, Completion | EngineError]]:
        queue, self.queue = self.queue, {}
        return [(id, self.answer(request)) for id, request in queue.items()]

    def limit(self, longest: int) -> int:
        return 6


def rollouts(asked: Job) -> list[RolloutState]:
    if asked.served:
        return [RolloutState(asked, seed, None, number=number) for number, seed in enumerate(asked.seeds)]
    task = registry.get(asked.task, 1)
    return [RolloutState(asked, seed, task.episode("train", asked.index, TEXT)) for seed in asked.seeds]


def batch_of(answer: Answer) -> tuple[RequestBatch, Program]:
    program = Program(answer)
    return RequestBatch(program, rollouts, VOCABULARY, ROOT), program


def run(batch: RequestBatch, *jobs: Job) -> list[list[Sample] | Exception]:
    for ticket, asked in enumerate(jobs):
        batch.begin(ticket, asked)
    outcomes: dict[int, list[Sample] | Exception] = {}
    while len(outcomes) < len(jobs):
        outcomes |= {done.ticket: done.outcome for done in batch.step()}
    return [outcomes[ticket] for ticket in range(len(jobs))]


def test_a_group_is_one_request_per_rollout_with_seed_and_limit() -> None:
    asked = job(3, samples=2, limit=2)
    batch, program = batch_of(lambda request: tokens_of(7, 8))
    batch.begin(1, asked)
    first, second = program.queue.values()
    assert first == TokenRequest(asked.prompt, asked.seeds[0], 0, 2, asked.ends, False)
    assert second.seed == asked.seeds[1]
    ((ticket, samples),) = batch.step()
    assert (ticket, samples) == (1, [Sample(tokens=[7, 8], turns=[2], logprobs=[-1.0, -1.0])] * 2)


def test_turns_go_on_behind_the_environments_reply_and_keep_count() -> None:
    asked, seen = job(2, samples=1, limit=6, task="guess"), list[TokenRequest]()

    def guess_and_end(request: TokenRequest) -> Completion:
        seen.append(request)
        return tokens_of(7, asked.eos)

    batch, _ = batch_of(guess_and_end)
    ((sample,),) = run(batch, asked)  # type: ignore[misc]
    assert len(sample.turns) > 1
    assert [request.most for request in seen] == [6, 4]
    for request in seen:
        assert request.tokens == [*asked.prompt, *sample.tokens[: request.first]]
        assert sample.tokens[request.first : request.first + 2] == [7, asked.eos]
    episode = registry.get("guess", 1).episode("train", asked.index, TEXT)
    replay(episode, Transcript(sample.tokens, sample.turns), ends=TEXT.ends, limit=6)


def test_rows_beyond_the_limit_wait() -> None:
    batch, _ = batch_of(lambda request: tokens_of(7, 8))
    assert (batch.rows.limit, batch.rows.free) == (6, 6)
    batch.begin(1, job(0, samples=4, limit=2))
    assert (batch.rows.running, batch.rows.waiting, batch.rows.free) == (4, 0, 2)
    batch.begin(2, job(1, samples=4, limit=2))
    assert (batch.rows.running, batch.rows.waiting, batch.rows.free) == (6, 2, 0)


def test_a_cancelled_group_is_withdrawn_and_the_others_go_on() -> None:
    batch, program = batch_of(lambda request: tokens_of(7, 8))
    for ticket in (1, 2):
        batch.begin(ticket, job(ticket, samples=2, limit=2))
    batch.cancel(1)
    batch.cancel(5)
    assert program.withdrawn == [1, 2]
    assert [done.ticket for done in batch.step()] == [2]
    assert batch.step() == []


def test_a_group_that_cannot_be_submitted_is_not_queued() -> None:
    batch, program = batch_of(lambda request: tokens_of(7))
    with pytest.raises(EngineError, match="too long for this program"):
        batch.begin(1, job(0, samples=2, limit=200))
    assert (batch.rows.running, program.queue) == (0, {})


def test_a_name_is_given_once() -> None:
    batch, _ = batch_of(lambda request: tokens_of(7))
    batch.begin(1, job(0, samples=2, limit=2))
    with pytest.raises(EngineError, match="a group named 1 is under way"):
        batch.begin(1, job(0))


def test_a_group_without_samples_ends_at_once() -> None:
    batch, _ = batch_of(lambda request: tokens_of(7))
    assert run(batch, job(0, samples=0)) == [[]]


def test_an_error_of_the_program_as_a_whole_loses_all_groups() -> None:
    def fail(request: TokenRequest) -> Completion:
        raise RuntimeError("gone")

    batch, _ = batch_of(fail)
    batch.begin(1, job(0, samples=2))
    with pytest.raises(RuntimeError, match="gone"):
        batch.step()
    assert batch.rows.running == 0
    batch.begin(1, job(0, samples=2))


FALSE: dict[str, tuple[Completion | EngineError, str]] = {
    "an error": (EngineError("the server says no"), "the server says no"),
    "other weights": (tokens_of(7, 8)._replace(root=bytes(32)), "computed with the weights 0000000000000000, not with"),
    "weights without a name": (tokens_of(7, 8)._replace(root=b""), "computed with the weights of no name"),
    "fewer log-probabilities": (Completion([7, 8], [-1.0], ROOT), "has 1 log-probabilities for 2 tokens"),
    "a token that the model does not have": (tokens_of(7, 9999), "outside the model's vocabulary"),
    "a negative token": (tokens_of(7, -1), "outside the model's vocabulary"),
    "NaN": (tokens_of(7, 8, logprob=float("nan")), "not finite"),
    "minus infinity": (tokens_of(7, 8, logprob=-float("inf")), "not finite"),
    "a probability above 1": (tokens_of(7, 8, logprob=0.5), "above 0"),
    "nothing": (tokens_of(), "has 0 tokens, where 1 to 2 were requested"),
    "too much": (tokens_of(7, 8, 9), "has 3 tokens, where 1 to 2"),
    "an end too early": (tokens_of(7), "does not end at the token"),
    "tokens after the end": (tokens_of(TEXT.eos, 8), "does not end at the token"),
}


@pytest.mark.parametrize(("answer", "sentence"), FALSE.values(), ids=FALSE.keys())
def test_a_false_answer_ends_its_group_with_a_sentence_and_no_other(
    answer: Completion | EngineError, sentence: str
) -> None:
    good, bad = job(0, samples=2, limit=2), job(1, samples=2, limit=2)
    batch, program = batch_of(lambda request: answer if request.seed == bad.seeds[1] else tokens_of(7, 8))
    outcome, error = run(batch, good, bad)
    assert isinstance(outcome, list)
    assert isinstance(error, EngineError)
    assert sentence in str(error)
    assert not program.queue


def test_rounding_above_zero_is_zero() -> None:
    batch, _ = batch_of(lambda request: tokens_of(7, 8, logprob=3e-6))
    (samples,) = run(batch, job(0, samples=1, limit=2))
    assert isinstance(samples, list)
    assert samples[0].logprobs == [0.0, 0.0]


def test_an_answer_may_end_at_its_limit_by_the_ending_token() -> None:
    request = TokenRequest([1], bytes(16), 0, 2, TEXT.ends, False)
    check(tokens_of(7, TEXT.eos), request, VOCABULARY, ROOT)
    check(tokens_of(TEXT.eos), request, VOCABULARY, ROOT)
    check(tokens_of(7, 8), request._replace(greedy=True), VOCABULARY, ROOT)


def test_an_answer_may_end_at_each_of_several_tokens() -> None:
    request = TokenRequest([1], bytes(16), 0, 4, (*TEXT.ends, 40), False)
    check(tokens_of(7, 40), request, VOCABULARY, ROOT)
    with pytest.raises(EngineError, match="does not end at the token 1 or 40"):
        check(tokens_of(40, TEXT.eos), request, VOCABULARY, ROOT)


def test_a_turn_of_a_served_group_is_asked_for_once_the_one_before_is_answered() -> None:
    requests = list[TokenRequest]()

    def answer(request: TokenRequest) -> Completion:
        requests.append(request)
        return tokens_of(4, TEXT.eos)

    def environment(sampled_turn: SampledTurn) -> list[int] | None:
        return [7, 8, 9] if sampled_turn.turn_number == 0 else None

    batch, _ = batch_of(answer)
    one = served(job(3, 2, limit=20))
    (samples,) = play(batch, [(one, environment)], late=3)
    assert [sample.tokens for sample in samples] == [[4, TEXT.eos, 7, 8, 9, 4, TEXT.eos]] * 2
    assert [sample.turns for sample in samples] == [[2, 3, 2]] * 2
    assert sorted(request.first for request in requests) == [0, 0, 5, 5]
    assert all(request.tokens[-3:] == [7, 8, 9] for request in requests if request.first)
    assert sorted(request.most for request in requests) == [18, 18, 20, 20]


def test_an_opened_rollout_asks_for_its_first_turn_behind_what_the_environment_gives() -> None:
    requests = list[TokenRequest]()

    def answer(request: TokenRequest) -> Completion:
        requests.append(request)
        return tokens_of(4, TEXT.eos)

    def environment(sampled_turn: SampledTurn) -> list[int] | None:
        return None if sampled_turn.turn_number else [7, 8 + sampled_turn.sample]

    batch, _ = batch_of(answer)
    one = msgspec.structs.replace(served(job(3, 2, limit=20)), opened=True)
    (samples,) = play(batch, [(one, environment)], late=3)
    assert [sample.tokens for sample in samples] == [[7, 8, 4, TEXT.eos], [7, 9, 4, TEXT.eos]]
    assert [sample.turns for sample in samples] == [[0, 2, 2]] * 2
    assert [(request.first, request.tokens[-2:]) for request in requests] == [(2, [7, 8]), (2, [7, 9])]
