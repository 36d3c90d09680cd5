"""The answers of a server of vLLM 0.32, as far as they are read: others than these are its fault, in one sentence."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from echo2.engines.sampling.sampling_check import ToldToken
from echo2.engines.server.http_client import ServerFault


class Likely(msgspec.Struct):
    token_id: int
    logprob: float


class LoggedToken(msgspec.Struct):
    token_id: int
    logprob: float
    top_logprobs: list[Likely] = []

    def as_told_token(self) -> ToldToken:
        """Return it as engines.sampling.sampling_check takes it."""
        return ToldToken(self.token_id, self.logprob, {one.token_id: one.logprob for one in self.top_logprobs})


class LoggedTokens(msgspec.Struct):
    content: list[LoggedToken]


class Span(msgspec.Struct):
    version: str


class Choice(msgspec.Struct):
    """`weight_versions`: the versions that computed parts of it."""

    token_ids: list[int]
    logprobs: LoggedTokens | None = None
    finish_reason: str | None = None
    weight_versions: list[Span] | None = None

    @property
    def root(self) -> bytes:
        """Content root of the weights that computed all of it; empty where there is none, or are several."""
        try:
            (version,) = {span.version for span in self.weight_versions or ()}
            return bytes.fromhex(version)
        except ValueError:
            return b""


class Generated(msgspec.Struct):
    choices: list[Choice]


class ModelSettings(msgspec.Struct):
    dtype: str
    logprobs_mode: str = ""
    max_model_len: int = 0
    logits_processors: list[str] | None = None
    hf_overrides: Any = None

    @property
    def wide_head(self) -> bool:
        """Tell whether the output layer's products are kept in float32 (engines.transformers.output_layer, rule 2)."""
        overrides = self.hf_overrides if isinstance(self.hf_overrides, dict) else {}
        return self.dtype.endswith("float32") or overrides.get("head_dtype") == "float32"


class SchedulerSettings(msgspec.Struct):
    max_num_seqs: int = 0
    async_scheduling: bool | None = None


class TransferSettings(msgspec.Struct):
    backend: str = ""


class DeviceSettings(msgspec.Struct):
    device_type: str = ""


class ServerSettings(msgspec.Struct):
    model_config: ModelSettings
    scheduler_config: SchedulerSettings
    device_config: DeviceSettings = msgspec.field(default_factory=DeviceSettings)
    weight_transfer_config: TransferSettings | None = None
    speculative_config: Any = None


class ServerInfo(msgspec.Struct):
    vllm_config: ServerSettings


A = TypeVar("A")


def read(answer: Mapping[str, Any], kind: type[A], path: str) -> A:
    """Read an answer to a request of `path`. Raises ServerFault."""
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise ServerFault(f"the server's answer to {path} cannot be read: {error}") from error


def choice_of(answer: Mapping[str, Any], path: str) -> Choice:
    """Read the one choice of an answer. Raises ServerFault."""
    choices = read(answer, Generated, path).choices
    if len(choices) != 1:
        raise ServerFault(f"the server's answer to {path} has {len(choices)} choices, where 1 was requested")
    return choices[0]
