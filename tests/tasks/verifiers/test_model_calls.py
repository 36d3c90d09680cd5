"""The end point that verifiers takes for an inference server."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from echo2.tasks.verifiers.other_python.model_calls import (
    EPISODE,
    SECRET_HEADER,
    ModelCalls,
    Sampled,
    fault_of_sampling,
)


class EndPoint:
    """An end point with one episode, named a. `calls`: the tokens of each call; `refused`: why one was refused."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[list[int]] = asyncio.Queue()
        self.refused = list[str]()
        self.model = ModelCalls(
            lambda name, tokens: self.calls.put_nowait(tokens), lambda name, fault: self.refused.append(fault)
        )
        self.model.ends = (1,)
        self.url = ""

    async def ask(self, body: Any, name: str = "a", headers: dict[str, str] | None = None) -> tuple[int, Any]:
        url = self.url.removesuffix("/v1") + "/inference/v1/generate"
        named = {EPISODE: name, **body} if isinstance(body, dict) else body
        brought = self.model.headers if headers is None else headers
        async with aiohttp.ClientSession() as session, session.post(url, json=named, headers=brought) as told:
            return told.status, await told.json()


@pytest_asyncio.fixture
async def end_point() -> AsyncIterator[EndPoint]:
    end_point = EndPoint()
    end_point.url = await end_point.model.start()
    end_point.model.open("a")
    yield end_point
    await end_point.model.stop()


async def test_a_call_is_answered_by_the_turn_that_was_sampled(end_point: EndPoint) -> None:
    asked = asyncio.create_task(end_point.ask({"token_ids": [4, 5], "sampling_params": {"temperature": 1.0}}))
    assert await end_point.calls.get() == [4, 5]
    end_point.model.answer("a", Sampled([7, 1]))
    status, told = await asked
    (choice,) = told["choices"]
    assert (status, choice["token_ids"], choice["finish_reason"]) == (200, [7, 1], "stop")
    assert choice["logprobs"]["content"] == [
        {"token": "token_id:7", "logprob": 0.0},
        {"token": "token_id:1", "logprob": 0.0},
    ]


async def test_the_model_is_listed(end_point: EndPoint) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{end_point.url}/models") as told:
        assert [model["id"] for model in (await told.json())["data"]] == ["policy"]


async def test_a_second_call_at_a_time_is_refused(end_point: EndPoint) -> None:
    first = asyncio.create_task(end_point.ask({"token_ids": [4]}))
    await end_point.calls.get()
    status, _ = await end_point.ask({"token_ids": [5]})
    assert status == 400
    assert "twice at a time" in end_point.refused[0]
    end_point.model.close("a")
    assert (await first)[0] == 400


@pytest.mark.parametrize("body", [{}, {"token_ids": []}, {"token_ids": ["4"]}, {"token_ids": [True]}])
async def test_a_call_without_token_ids_is_refused(end_point: EndPoint, body: Any) -> None:
    status, _ = await end_point.ask(body)
    assert status == 400
    assert "no token ids" in end_point.refused[0]


@pytest.mark.parametrize("headers", [{}, {SECRET_HEADER: ""}, {SECRET_HEADER: "a"}, {SECRET_HEADER: "\u00e9"}])
async def test_a_call_without_the_secret_is_refused_and_its_episode_goes_on(
    end_point: EndPoint, headers: dict[str, str]
) -> None:
    status, told = await end_point.ask({"token_ids": [4]}, headers=headers)
    assert (status, told["error"]["message"]) == (400, "this end point is not for you")
    assert end_point.calls.empty()
    assert not end_point.refused
    others = ModelCalls(lambda name, tokens: None, lambda name, fault: None)
    assert (await end_point.ask({"token_ids": [4]}, headers=others.headers))[0] == 400


@pytest.mark.parametrize("body", [{EPISODE: "b"}, {EPISODE: None}, {EPISODE: ["a"]}, ["a"]])
async def test_a_call_of_no_open_episode_is_refused(end_point: EndPoint, body: Any) -> None:
    assert (await end_point.ask(body))[0] == 400
    assert end_point.calls.empty()


@pytest.mark.parametrize(
    ("parameters", "reason"),
    {
        "nothing": ({}, ""),
        "the run's own": ({"temperature": 1.0, "top_p": 1, "top_k": -1, "stop": None, "stop_token_ids": [1]}, ""),
        "a temperature": ({"temperature": 0.7}, "temperature 1 and top-p 1 alone"),
        "a nucleus": ({"top_p": 0.9}, "temperature 1 and top-p 1 alone"),
        "stop strings": ({"stop": ["\n"]}, "the sampling parameter stop"),
        "a limit of its own": ({"max_tokens": 20}, "the sampling parameter max_tokens"),
        "a repetition penalty": ({"repetition_penalty": 1.1}, "asks for repetition_penalty"),
        "other ends of a turn": ({"stop_token_ids": [1, 9]}, r"at the tokens \[9\]"),
    }.values(),
)
def test_other_sampling_than_the_runs_is_refused_with_a_sentence(parameters: dict[str, Any], reason: str) -> None:
    fault = fault_of_sampling(parameters, [1])
    assert re.search(reason, fault) if reason else not fault
