"""Test the names of things that a server lacks, and the command that a person must type."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from echo2.engines.engine import EngineError
from echo2.engines.server import requirements
from echo2.engines.server.http_client import HttpClient, ServerFault
from tests.support.table_server import TableServer


@pytest.fixture
def server() -> Iterator[TableServer]:
    with TableServer(16).running() as server:
        yield server


@pytest.fixture
def client(server: TableServer) -> Iterator[HttpClient]:
    client = HttpClient(server.address, patience=20)
    yield client
    client.close()


def test_a_server_that_meets_all_is_admitted_and_nothing_is_sent_to_it(client: HttpClient, server: TableServer) -> None:
    rows = requirements.examine(client, "float32")
    assert [row.name for row in rows] == [
        "server", "version", "token ids", "seeded choice", "log-probabilities", "weights", "scheduling", "guesses",
        "output layer", "number format",
    ]  # fmt: skip
    assert not any(row.remedy for row in rows)
    requirements.demand(client, "float32")
    assert requirements.info_of(client).vllm_config.scheduler_config.max_num_seqs == 24
    assert server.version == "default"


def model_config(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda settings: settings["model_config"].update(changes)


LACKS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "no logits processor": (
        model_config(logits_processors=["other:Processor"]),
        "seeded choice: none of echo2's, not a logits processor of echo2 "
        ".*--logits-processors echo2.engines.vllm.noise_v1",
    ),
    "no logits processors at all": (model_config(logits_processors=None), "seeded choice: none of echo2's"),
    "log-probabilities after processors": (
        model_config(logprobs_mode="processed_logprobs"), "processed_logprobs, not raw_logprobs",
    ),
    "another number format": (
        model_config(dtype="torch.bfloat16", hf_overrides={"head_dtype": "float32"}),
        "number format: bfloat16, not float32 .*--dtype",
    ),
    "no transfer of weights": (
        lambda settings: settings.update(weight_transfer_config=None), "weights: none, not echo2 .*WorkerExtension",
    ),
    "another transfer of weights": (
        lambda settings: settings.update(weight_transfer_config={"backend": "nccl"}), "weights: nccl, not echo2",
    ),
    "asynchronous scheduling": (
        lambda settings: settings["scheduler_config"].update(async_scheduling=True), "--no-async-scheduling",
    ),
    "speculative decoding": (
        lambda settings: settings.update(speculative_config={"method": "ngram"}), "guesses: speculative decoding",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "sentence"), LACKS.values(), ids=LACKS.keys())
def test_what_a_server_lacks_is_named_with_the_option_that_helps(
    change: Callable[[dict[str, Any]], None], sentence: str, client: HttpClient, server: TableServer
) -> None:
    change(server.settings)
    with pytest.raises(EngineError, match=f"the server {server.address} cannot be used: .*{sentence}"):
        requirements.demand(client, "float32")
    assert sum(bool(row.remedy) for row in requirements.examine(client, "float32")) == 1


@pytest.mark.parametrize("overrides", [None, {}, {"head_dtype": "bfloat16"}, [], "none"])
def test_a_server_that_rounds_its_logits_is_told_how_it_would_not(
    overrides: Any, client: HttpClient, server: TableServer
) -> None:
    model_config(dtype="torch.bfloat16", hf_overrides=overrides)(server.settings)
    with pytest.raises(EngineError, match=r'output layer: bfloat16, not float32 .*"head_dtype": "float32"'):
        requirements.demand(client, "bfloat16")
    model_config(hf_overrides={"head_dtype": "float32"})(server.settings)
    requirements.demand(client, "bfloat16")


OTHERS = {
    "llama-server": "llama-server, not a server of vLLM .*use --engine llamacpp instead",
    "SGLang": "SGLang, not a server of vLLM .*no seeded choice for SGLang",
    "another program": "an unknown program, not a server of vLLM .*start one by: VLLM_SERVER_DEV_MODE=1",
    "an old version": r"version: 0\.31\.0, not 0\.32 or newer .*pip install vllm==0\.32\.0",
    "no settings": "settings: .* with 404.*start it with VLLM_SERVER_DEV_MODE=1",
    "errors": "token ids: .*illegal memory access.*--enable-scale-out",
}


@pytest.mark.parametrize(("fault", "sentence"), OTHERS.items(), ids=OTHERS.keys())
def test_another_program_or_a_closed_path_is_named(
    fault: str, sentence: str, client: HttpClient, server: TableServer
) -> None:
    server.fault = fault
    with pytest.raises(EngineError, match=sentence):
        requirements.demand(client, "float32")


def test_a_server_that_is_not_there_is_one_row(server: TableServer) -> None:
    client = HttpClient("http://127.0.0.1:9", patience=2)
    (row, *_) = requirements.examine(client, None)
    assert "cannot be reached" in row.actual
    assert row.remedy == "start it, or set its address: --server http://HOST:PORT"
    client.close()


def test_settings_that_cannot_be_read_are_named(client: HttpClient, server: TableServer) -> None:
    server.settings = {"model_config": 7}
    with pytest.raises(EngineError, match=r"settings: the server's answer to /server_info.* cannot be read"):
        requirements.info_of(client)


def test_doctor_admits_any_number_format(client: HttpClient, server: TableServer) -> None:
    server.settings["model_config"] |= {"dtype": "torch.float16", "hf_overrides": {"head_dtype": "float32"}}
    assert not any(row.remedy for row in requirements.examine(client, None))


class VersionServer(HttpClient):
    """A server of which only the version is known."""

    def __init__(self, version: str) -> None:
        self.address, self._version = "http://127.0.0.1", version

    def get(self, path: str) -> dict[str, Any]:
        """See `HttpClient.get`."""
        if path != "/version":
            raise ServerFault(f"no {path}")
        return {"version": self._version}

    def post(self, path: str, body: Any = None) -> dict[str, Any]:
        """See `HttpClient.post`."""
        raise ServerFault(f"no {path}")


@pytest.mark.parametrize("version", ["0.³", "", "x" * 1_000_000], ids=["a power", "empty", "long"])
def test_a_version_that_is_no_number_is_named_in_a_short_row(version: str) -> None:
    row = requirements.examine(VersionServer(version), None)[1]
    assert (row.name, row.remedy) == ("version", "pip install vllm==0.32.0 in the server's environment")
    assert len(row.actual) <= 40


def test_a_version_of_many_digits_is_read() -> None:
    row = requirements.examine(VersionServer("0." + "9" * 5000), None)[1]
    assert (row.remedy, len(row.actual)) == ("", 40)


def test_rows_quote_the_beginning_of_what_the_server_says(client: HttpClient, server: TableServer) -> None:
    """A lone surrogate could not even be printed: `doctor` ended with an internal fault."""
    text = "\x1b[2J\ud800" + "x" * 10_000
    server.settings["model_config"] |= {"logprobs_mode": text, "dtype": text, "logits_processors": [text]}
    server.settings["weight_transfer_config"] = {"backend": text}
    rows = requirements.examine(client, None)
    assert [row.name for row in rows if len(row.actual) == 300] == [
        "log-probabilities", "weights", "output layer", "number format",
    ]  # fmt: skip
    for row in rows:
        assert all(part.isprintable() for part in row)
