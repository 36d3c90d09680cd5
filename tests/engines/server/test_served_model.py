"""A model that a server runs: what is sent to it, which answers count, and when it is given up. The server here is a
small one over a bigram table (tests/support/table_server.py); stories of the whole engine are in test_engine."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo2.engines.batch.checkpoint_patches import CheckpointPatch, patches_of_changes, whole
from echo2.engines.batch.request_batch import Completion, ProgramLost, TokenRequest
from echo2.engines.engine import EngineError
from echo2.engines.server import requirements, served_model
from echo2.engines.server.http_client import HttpClient, ServerGone
from echo2.engines.server.served_model import MOST_FAILURES, ServedModel
from echo2.weights.journaled import Rolling
from tests.support import table_models
from tests.support.bigram import read_table
from tests.support.table_models import TableModel
from tests.support.table_server import TableServer
from tests.support.tiny_model import TEXT

SOON = 20.0
"""Seconds within which the server answers."""


@pytest.fixture
def server() -> Iterator[TableServer]:
    with TableServer(TEXT.size).running() as server:
        yield server


@pytest.fixture
def model(tmp_path: Path) -> TableModel:
    return table_models.make(tmp_path / "model")


@pytest.fixture
def served(server: TableServer, model: TableModel) -> Iterator[ServedModel]:
    client = HttpClient(server.address, patience=SOON)
    served = ServedModel(client, requirements.info_of(client).vllm_config, TEXT.size)
    served.write(whole(model.old), model.old.root, whole=True)
    yield served
    client.close()


def request(number: int = 0, most: int = 6) -> TokenRequest:
    return TokenRequest([3, 4, 5 + number], bytes([number]) * 16, 0, most, TEXT.ends, greedy=False)


def answer(served: ServedModel) -> list[tuple[int, Completion | EngineError]]:
    """Advance until a request ends."""
    until = time.monotonic() + SOON
    while time.monotonic() < until:
        if ended := served.advance():
            return ended
    raise AssertionError("the server did not answer")


def test_a_completion_has_the_tokens_their_log_probabilities_and_the_version(
    served: ServedModel, model: TableModel
) -> None:
    served.submit(7, request())
    ((id, completion),) = answer(served)
    assert id == 7
    assert completion.root == model.old.root
    assert 1 <= len(completion.tokens) <= 6
    assert len(completion.logprobs) == len(completion.tokens)
    assert served.advance() == []


def test_a_temperature_is_refused_as_the_server_tells_no_log_probabilities_at_it(served: ServedModel) -> None:
    with pytest.raises(EngineError, match="samples at temperature 1 alone: use the engine vllm"):
        served.submit(7, request()._replace(temperature=800))


def test_a_request_that_was_withdrawn_gets_no_answer(served: ServedModel) -> None:
    for id in range(3):
        served.submit(id, request(id))
    served.withdraw([0, 2, 5])
    assert [id for id, _ in answer(served)] == [1]
    assert served.advance() == []


def test_weights_are_sent_in_parts_of_bounded_size(
    served: ServedModel, server: TableServer, model: TableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a request would be one body of the whole model's size, in base64."""
    sizes: list[int] = []
    post = served.client.post

    def spied(path: str, body: Mapping[str, Any] | None = None, **bounds: Any) -> dict[str, Any]:
        if path == "/update_weights" and body is not None:
            sizes.append(len(body["update_info"].get("patches", [])))
        return post(path, body, **bounds)

    monkeypatch.setattr(served.client, "post", spied)
    patch = step(model)
    assert patch.positions is not None
    pieces = [
        patch._replace(bits=bits, positions=positions)
        for bits, positions in zip(np.array_split(patch.bits, 5), np.array_split(patch.positions, 5), strict=True)
    ]
    monkeypatch.setattr(served_model, "PART_BYTES", 2 * max(piece.nbytes for piece in pieces))
    served.write(pieces, model.new.root)
    assert sizes == [2, 2, 1, 0]
    assert np.array_equal(server.table, read_table(model.new))
    assert server.version == model.new.root.hex()


@pytest.mark.parametrize("seconds", [SOON / 4, SOON])
def test_a_server_that_takes_each_part_just_in_time_is_given_up(
    server: TableServer, model: TableModel, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """A change of 40 parts has the patience of one request, and a second per `LEAST_RATE` bytes."""
    client, now = HttpClient(server.address, patience=SOON), [0.0]
    served = ServedModel(client, requirements.info_of(client).vllm_config, TEXT.size, clock=lambda: now[0])
    monkeypatch.setattr(served_model, "PART_BYTES", 1)
    (tensor,) = whole(model.old)

    def parts() -> Iterator[CheckpointPatch]:
        for number in range(40):
            now[0] = number * seconds / 5
            yield tensor

    post, sent = client.post, list[float]()

    def spied(path: str, body: Mapping[str, Any] | None = None, **bounds: Any) -> dict[str, Any]:
        sent.append(bounds.get("within", SOON))
        return post(path, body, **bounds)

    monkeypatch.setattr(client, "post", spied)
    with pytest.raises(ServerGone, match="takes weights at less than 4 MiB/s"):
        served.write(parts(), model.old.root, whole=True)
    assert 2 < len(sent) < 40
    assert min(sent) < SOON / 2, "each part has the time that is left"
    client.close()


def step(model: TableModel) -> CheckpointPatch:
    """Apply the step to the model's weights on disk, and return what it changed."""
    rolling = Rolling(model.rolling)
    rolling.apply(model.payload, model.new.root)
    (patch,) = patches_of_changes(rolling.last_changes(), rolling.snapshot)
    return patch


def test_a_step_too_small_to_show_in_a_log_probability_is_no_fault(
    served: ServedModel, server: TableServer, tmp_path: Path
) -> None:
    """Below `PERCEPTIBLE` changed weights, equal log-probabilities prove nothing."""
    small = table_models.make(tmp_path / "small", share=0.001)
    served.write(whole(small.old), small.old.root, whole=True)
    server.fault = "old weights"
    served.write([step(small)], small.new.root)
    assert server.version == small.new.root.hex()


def failures(served: ServedModel, count: int) -> list[Completion | EngineError]:
    outcomes = []
    for id in range(count):
        served.submit(id, request())
        outcomes += [outcome for _, outcome in answer(served)]
    return outcomes


def test_the_server_is_given_up_after_failures_in_a_row_only(served: ServedModel, server: TableServer) -> None:
    server.fault = "errors"
    assert all(isinstance(one, EngineError) for one in failures(served, MOST_FAILURES - 1))
    server.fault = ""
    assert isinstance(failures(served, 1)[0], Completion)
    server.fault = "errors"
    assert len(failures(served, MOST_FAILURES - 1)) == MOST_FAILURES - 1
    with pytest.raises(ProgramLost, match=r"8 requests in a row failed, the last one so: .*an illegal memory access"):
        failures(served, 1)


def test_a_server_whose_choice_is_another_is_refused_with_its_first_weights(
    served: ServedModel, server: TableServer, model: TableModel
) -> None:
    server.fault = "no seeds"
    with pytest.raises(EngineError, match="does not follow the run's sampling rule"):
        served.write(whole(model.old), model.old.root, whole=True)


def test_a_request_above_the_servers_length_is_never_sent(served: ServedModel, server: TableServer) -> None:
    before = server.asked
    with pytest.raises(
        EngineError, match="a rollout of 513 tokens is too long: the server's model and memory allow 512"
    ):
        served.submit(1, request(most=510))
    assert server.asked == before
    assert served.limit(512) == 24
