"""vLLM within this process: made for a model, fed with weights, asked for completions.

Rules
1. vLLM runs in this process, not in one of its own: when this process ends, for whatever reason, nothing of it is left.
2. It is made with random weights; a version's come from the snapshot by engines.vllm.patch_transfer. So no weights are
   written to disk, and the model's folder needs only its configuration.
3. After each change of weights the cached prompts are dropped, and the version is stamped with its content root, which
   vLLM puts on each output (`weight_versions`).
4. Requests are greedy, and the noise is a logits processor's (engines.vllm.noise_v1): the tokens follow the rule of
   engines.sampling.sampling, and the log-probabilities are those of the plain logits; at another temperature than 1
   those that engines.vllm.tempered_rows keeps.
5. Steps are scheduled ahead: while the device computes one, the host schedules the next. vLLM stamps an output with the
   version at the moment when it reads the step, so before weights change the steps under way are read, and none is
   scheduled meanwhile: an output's version is that of its step.
6. Rows are as many as the free memory and their real lengths allow (engines/vllm/row_room.py).
7. The model runner V1 would wait in each step for the tokens of the last one, in case a logits processor reads them.
   Ours does not, so this is turned off.
8. An error within a step leaves vLLM's queues in an unknown state: the process must end (`ProgramLost`).
"""

import importlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from echo2.engines.batch.checkpoint_patches import CheckpointPatch, in_parts
from echo2.engines.batch.request_batch import Completion, ProgramLost, TokenRequest
from echo2.engines.engine import Dtype, EngineError
from echo2.engines.temperature import PLAIN_TEMPERATURE
from echo2.engines.vllm import log_signs, tempered_rows
from echo2.engines.vllm.engine_arguments import configuration
from echo2.engines.vllm.noise_request import NoiseRequest
from echo2.engines.vllm.row_room import RowRoom
from echo2.weights.errors import BadSnapshot

PART_BYTES: Final = 512 << 20
"""Bytes of weights that are handed over at once."""


class ResidentEngine:
    """`engines.batch.request_batch.CompletionService`."""

    def __init__(
        self, folder: Path, device: str, dtype: Dtype, most_rows: int | None, tell: Callable[[], None] = lambda: None
    ) -> None:
        """Make vLLM for the model of a folder. `tell`: called as the start and a write of weights go on. Raises
        EngineError."""
        self._tell = tell
        try:
            self._engine = _make(folder, device, dtype, most_rows, tell)
        except EngineError:
            raise
        except Exception as error:  # vLLM's own, of any kind
            raise EngineError(f"vLLM cannot run this model on {device}: {reason(error)}") from error
        self._sampling: Any = importlib.import_module("vllm.sampling_params")
        self._open: dict[int, int] = {}
        """Requests under way -> the tokens that they began with."""
        self._read: list[tuple[int, Completion | EngineError]] = []
        """What `_read_steps` read, until it is returned."""
        cache, scheduler = self._engine.vllm_config.cache_config, self._engine.vllm_config.scheduler_config
        self._room = RowRoom(int(cache.block_size), int(cache.num_gpu_blocks or 1), int(scheduler.max_num_seqs))
        self._tempered: set[int] = set()
        """Requests at another temperature than 1."""
        model = self._engine.model_config
        self.vocabulary = int(model.get_vocab_size())
        if getattr(model, "use_mla", False):
            raise EngineError("vLLM derives further tensors from this model's weights, which no change would reach")

    @property
    def size(self) -> tuple[int, int]:
        """Number of parameters, and the bytes that they take."""
        (parameters,) = self._engine.apply_model(lambda model: list(model.parameters()))
        return sum(one.numel() for one in parameters), sum(one.nbytes for one in parameters)

    def write(self, patches: Iterable[CheckpointPatch], root: bytes, *, whole: bool = False) -> None:
        """Write weights; they are then those of `root` (rules 3 and 5). `whole`: these are all. Raises BadSnapshot
        where they do not fit, ProgramLost."""
        self._read_steps()
        call = self._engine.collective_rpc
        call("start_weight_update")
        try:
            for part in in_parts(patches, PART_BYTES):
                call("update_weights", args=({"patches": [_wire_patch(patch) for patch in part]},))
                self._tell()
            call("update_weights", args=({"whole": whole},))
            call("finish_weight_update")
        except Exception as error:
            raise BadSnapshot(f"vLLM cannot take these weights: {reason(error)}") from error
        self._engine.reset_prefix_cache()
        self._engine.set_weight_version(root.hex())

    def submit(self, id: int, request: TokenRequest) -> None:
        """See `CompletionService.submit`."""
        length, most = len(request.tokens) + request.most, int(self._engine.model_config.max_model_len)
        if length > most:
            raise EngineError(
                f"a rollout of {length} tokens is too long: the model and the memory allow {most}, so this device can "
                f"take a run with a limit of at most {max(0, most - len(request.tokens))} tokens for such a prompt"
            )
        noise = None
        if not request.greedy:
            noise = NoiseRequest(request.seed, request.first, request.temperature, id).arguments
        params = self._sampling.SamplingParams(
            temperature=0.0,
            max_tokens=request.most,
            stop_token_ids=[end for end in request.ends if end < self.vocabulary],  # vLLM refuses any other
            ignore_eos=True,
            logprobs=0,
            detokenize=False,
            extra_args=noise,
            output_kind=self._sampling.RequestOutputKind.FINAL_ONLY,
        )
        try:
            self._engine.add_request(str(id), {"type": "token", "prompt_token_ids": request.tokens}, params)
        except ValueError as error:
            raise EngineError(f"vLLM refuses this request: {reason(error)}") from error
        self._open[id] = len(request.tokens)
        if request.temperature != PLAIN_TEMPERATURE:
            self._tempered.add(id)

    def withdraw(self, ids: Sequence[int]) -> None:
        """See `CompletionService.withdraw`."""
        self._engine.abort_request([str(id) for id in ids])
        for id in ids:
            self._open.pop(id, None)
            if id in self._tempered:
                self._tempered.discard(id)
                tempered_rows.drop(id)
        self._read = [(id, outcome) for id, outcome in self._read if id not in ids]

    def advance(self) -> list[tuple[int, Completion | EngineError]]:
        """See `CompletionService.advance`. Raises ProgramLost (rule 8)."""
        read, self._read = self._read, []
        return read or self._step()

    def _step(self) -> list[tuple[int, Completion | EngineError]]:
        try:
            outputs = [output for output in self._engine.step() if output.finished]
        except Exception as error:
            raise ProgramLost(f"vLLM failed within a step: {reason(error)}") from error
        for output in outputs:
            self._room.on_end(self._open.pop(int(output.request_id), 0) + len(output.outputs[0].token_ids))
        ended = [(int(output.request_id), completion_of(output.outputs[0])) for output in outputs]
        return [(id, self._at_temperature(id, one)) for id, one in ended]

    def _read_steps(self) -> None:
        """Read the steps under way, and schedule none (rule 5)."""
        core = self._engine.engine_core.engine_core
        if not core.batch_queue:
            return
        core.scheduler.has_requests = lambda: False  # a step of vLLM's then reads, and schedules nothing
        try:
            while core.batch_queue:
                self._read += self._step()
        finally:
            del core.scheduler.has_requests

    def _at_temperature(self, id: int, answer: Completion | EngineError) -> Completion | EngineError:
        """Return the answer with the log-probabilities at its request's temperature (rule 4)."""
        if id not in self._tempered:
            return answer
        self._tempered.discard(id)
        if isinstance(answer, EngineError):
            tempered_rows.drop(id)
            return answer
        return answer._replace(logprobs=tempered_rows.take(id, len(answer.tokens)))

    def limit(self, longest: int) -> int:
        """See `CompletionService.limit` (rule 6)."""
        pool = self._engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
        return self._room.limit(longest, len(self._open), int(pool.get_num_free_blocks()))

    def close(self) -> None:
        """Free the device."""
        self._engine.engine_core.shutdown()
        importlib.import_module("vllm.distributed").cleanup_dist_env_and_memory()


def reason(error: BaseException) -> str:
    """Return the first sentence of an error of vLLM's, without its advice to read a log."""
    text = next(filter(None, (part.strip() for part in str(error).splitlines())), "")
    return text or type(error).__name__


def _make(folder: Path, device: str, dtype: Dtype, most_rows: int | None, tell: Callable[[], None]) -> Any:
    config = configuration(folder, device, dtype, most_rows)
    transfer = importlib.import_module("echo2.engines.vllm.patch_transfer")
    transfer.register()
    if device == "cpu":
        transfer.keep_plain_weights()
    with log_signs.from_log("vllm", tell):
        engine = importlib.import_module("vllm.v1.engine.llm_engine").LLMEngine.from_vllm_config(config)
    if not config.use_v2_model_runner:
        engine.collective_rpc(_read_no_tokens)
    return engine


def _read_no_tokens(worker: Any) -> None:
    """Tell the model runner V1 of a worker that no logits processor reads tokens (rule 7)."""
    worker.model_runner.input_batch.logitsprocs_need_output_token_ids = False


def _wire_patch(patch: CheckpointPatch) -> dict[str, Any]:
    return {
        "name": patch.name,
        "dtype": patch.tensor.dtype,
        "shape": list(patch.tensor.shape),
        "values": np.ascontiguousarray(patch.bits).tobytes(),
        "index": None if patch.positions is None else patch.positions.astype("<i8").tobytes(),
    }


def completion_of(output: Any) -> Completion | EngineError:
    """Read a finished output of vLLM's."""
    if output.finish_reason not in ("stop", "length"):
        return EngineError(f"vLLM ended a request early ({output.finish_reason})")
    tokens = list(output.token_ids)
    logprobs = [entry[token].logprob for token, entry in zip(tokens, output.logprobs, strict=True)]
    versions = {span.version for span in output.weight_versions or ()}
    return Completion(tokens, logprobs, _root(versions))


def _root(versions: set[str]) -> bytes:
    """Return the content root of an output's weights; empty where it has none, or several."""
    try:
        (version,) = versions
        return bytes.fromhex(version)
    except ValueError:
        return b""
