"""The requirements on a running server so that its tokens can be checked, each as a row that is met or names its fix.

Rules
1. A server is admitted only where every row is met: `echo2-node doctor --engine server` shows them all, and the engine
   names those that are not.
2. Servers are known by the paths that they answer. vLLM can be used. SGLang and llama-server are named, with the reason
   why their tokens could not be checked.
3. `COMMAND` starts a server that meets all rows.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from echo2.engines.engine import Dtype, EngineError
from echo2.engines.server.answers import ServerInfo, read
from echo2.engines.server.http_client import HttpClient, ServerFault, ServerGone, quotable_text

INFO: Final = "/server_info?config_format=json"
GENERATE: Final = "/inference/v1/generate"
PROCESSORS: Final = ("echo2.engines.vllm.noise_v1:SeededNoise", "echo2.engines.vllm.noise_v2:SeededNoiseV2")
KNOWN_VLLM_VERSION: Final = (0, 32)
COMMAND: Final = (
    "VLLM_SERVER_DEV_MODE=1 VLLM_USE_V2_MODEL_RUNNER=0 vllm serve MODEL --skip-tokenizer-init --enable-scale-out "
    "--load-format dummy --generation-config vllm --no-async-scheduling --logprobs-mode raw_logprobs "
    f"--logits-processors {PROCESSORS[0]} --worker-extension-cls echo2.engines.vllm.worker_extension.WorkerExtension "
    """--weight-transfer-config '{"backend": "echo2"}' --hf-overrides '{"head_dtype": "float32"}' --dtype float32"""
)


class Requirement(NamedTuple):
    """`actual`: what the server has. `remedy`: empty where it is met."""

    name: str
    actual: str
    wanted: str
    remedy: str = ""

    @property
    def sentence(self) -> str:
        """The missing part, for a person."""
        return f"{self.name}: {self.actual}, not {self.wanted} ({self.remedy})"


def examine(client: HttpClient, dtype: Dtype | None) -> list[Requirement]:
    """Return all rows; those behind a server that cannot be used at all are left out. `dtype`: dtype of the run; None:
    any. Sends no weights."""
    kind, version = _kind(client)
    rows = [kind]
    if not kind.remedy:
        rows.append(version)
        rows.append(_tokens(client))
        info = _info(client)
        rows += _settings(info, dtype) if isinstance(info, ServerInfo) else [info]
    return rows


def info_of(client: HttpClient) -> ServerInfo:
    """Return the settings of a server that meets the rows. Raises EngineError."""
    info = _info(client)
    if isinstance(info, Requirement):
        raise EngineError(f"the server {client.address} cannot be used: {info.sentence}")
    return info


def demand(client: HttpClient, dtype: Dtype) -> None:
    """Check that every row is met (rule 1). Raises EngineError."""
    lacking = [row.sentence for row in examine(client, dtype) if row.remedy]
    if lacking:
        raise EngineError(f"the server {client.address} cannot be used: {'; '.join(lacking)}")


def _kind(client: HttpClient) -> tuple[Requirement, Requirement]:
    """Return the rows of the program and of its version (rule 2)."""
    wanted = "a server of vLLM"
    try:
        named = client.get("/version").get("version", "")
        version = quotable_text(named) if isinstance(named, str) else ""
    except ServerGone as error:
        row = Requirement("server", str(error), wanted, "start it, or set its address: --server http://HOST:PORT")
        return row, row
    except ServerFault:
        row = Requirement("server", *_other(client, wanted))
        return row, row
    numbers = tuple(int("".join(filter(str.isdecimal, part))[:9] or 0) for part in version.split(".")[:2])
    remedy = "" if numbers >= KNOWN_VLLM_VERSION else "pip install vllm==0.32.0 in the server's environment"
    row = Requirement("version", version[:40] or "none", "0.32 or newer", remedy)
    return Requirement("server", "vLLM", wanted), row


def _other(client: HttpClient, wanted: str) -> tuple[str, str, str]:
    if _answers(client, "/props"):
        remedy = "llama-server takes no seed per token and no changed weights: use --engine llamacpp instead"
        return "llama-server", wanted, remedy
    if _answers(client, "/get_model_info"):
        return "SGLang", wanted, "echo2 has no seeded choice for SGLang, so its tokens could not be checked: use vLLM"
    return "an unknown program", wanted, f"start one by: {COMMAND}"


def _answers(client: HttpClient, path: str) -> bool:
    try:
        client.get(path)
    except EngineError:
        return False
    return True


def _tokens(client: HttpClient) -> Requirement:
    """Ask for one token."""
    body = {"token_ids": [0], "sampling_params": {"max_tokens": 1, "temperature": 0.0, "detokenize": False}}
    try:
        client.post(GENERATE, body)
    except EngineError as error:
        return Requirement("token ids", str(error), "token ids in and out", "start it with --enable-scale-out")
    return Requirement("token ids", GENERATE, "token ids in and out")


def _info(client: HttpClient) -> ServerInfo | Requirement:
    try:
        return read(client.get(INFO), ServerInfo, INFO)
    except EngineError as error:
        return Requirement("settings", str(error), "its settings", "start it with VLLM_SERVER_DEV_MODE=1")


def _settings(info: ServerInfo, dtype: Dtype | None) -> list[Requirement]:
    config = info.vllm_config
    model, transfer = config.model_config, config.weight_transfer_config
    loaded = next((name for name in model.logits_processors or () if name in PROCESSORS), "none of echo2's")
    computed = quotable_text(model.dtype.removeprefix("torch."))
    backend = transfer.backend if transfer is not None else "none"
    row = _row
    return [
        row("seeded choice", loaded, "a logits processor of echo2", lambda at: at in PROCESSORS,
            f"--logits-processors {PROCESSORS[0]}"),
        row("log-probabilities", model.logprobs_mode, "raw_logprobs", lambda at: at == "raw_logprobs",
            "--logprobs-mode raw_logprobs"),
        row("weights", backend, "echo2", lambda at: at == "echo2",
            """--weight-transfer-config '{"backend": "echo2"}' """
            "--worker-extension-cls echo2.engines.vllm.worker_extension.WorkerExtension"),
        row("scheduling", "asynchronous" if config.scheduler_config.async_scheduling else "one step at a time",
            "one step at a time", lambda at: at == "one step at a time", "--no-async-scheduling"),
        row("guesses", "none" if config.speculative_config is None else "speculative decoding", "none",
            lambda at: at == "none", "start it without --speculative-config"),
        row("output layer", "float32" if model.wide_head else computed, "float32", lambda at: at == "float32",
            """--hf-overrides '{"head_dtype": "float32"}'"""),
        row("number format", computed, dtype or computed, lambda at: at == (dtype or computed), f"--dtype {dtype}"),
    ]  # fmt: skip


def _row(name: str, actual: Any, wanted: str, met: Callable[[str], bool], remedy: str) -> Requirement:
    return Requirement(name, quotable_text(str(actual)), wanted, "" if met(str(actual)) else f"start it with {remedy}")
