"""The configuration that vLLM is made with, and the memory that it may take.

Rules
1. Whatever changes the choice of a token is fixed: log-probabilities of the plain logits, no defaults of a model's
   generation_config.json, no speculative decoding (the noise counts tokens). Scheduling is asynchronous but on CPUs,
   where vLLM has none.
2. On a GPU it takes `GPU_MEMORY_SHARE` of the memory that is free when it starts: other programs keep theirs. On a CPU
   keys and values take at most `CPU_SHARE` of the free memory, and `CPU_MOST`.
3. A sequence may be as long as the model allows and the memory holds: vLLM finds the length (`max_model_len` -1).
4. A model whose config.json names no architecture is the causal language model of its `model_type`, as transformers
   would build it.
5. vLLM chooses its model runner, V1 or V2; the logits processor follows that choice.
6. vLLM tells nobody that it is used, and listens on loopback alone.
7. The output layer's products are summed and kept in float32, as in engines.transformers.output_layer: `OVERRIDES`.
"""

import importlib
import json
import os
from pathlib import Path
from typing import Any, Final

from echo2.engines.devices.memory_reserve import less_reserve
from echo2.engines.engine import Dtype, EngineError
from echo2.runtime.host_memory import available_memory

GPU_MEMORY_SHARE: Final = 0.95
"""What is not its own, a display's among it, is not free when it starts. At 0.85 a card of 12 GB with a model of 4e9
parameters would have left 2,000 tokens."""
CPU_SHARE: Final = 0.25
CPU_MOST: Final = 1 << 30
MOST_VLLM_ROWS: Final = 256
ENVIRONMENT: Final = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
}  # fmt: skip
"""Variables that vLLM reads; those that are set stay as they are, but for the first."""
OVERRIDES: Final = {"head_dtype": "float32"}
"""Entries that vLLM adds to a model's config.json."""
PROCESSORS: Final = {
    False: "echo2.engines.vllm.noise_v1:SeededNoise",
    True: "echo2.engines.vllm.noise_v2:SeededNoiseV2",
}
"""Whether the model runner is V2 -> the logits processor."""


def prepare() -> None:
    """Set the environment. Call before vLLM is imported."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def configuration(folder: Path, device: str, dtype: Dtype, most_rows: int | None) -> Any:
    """Return vLLM's configuration for the model of a folder. Raises EngineError, and errors of vLLM's."""
    vllm: Any = importlib.import_module("vllm")
    fixed: dict[str, Any] = {
        "model": str(folder), "hf_overrides": OVERRIDES | _architecture(folder), "runner": "generate", "dtype": dtype,
        "load_format": "dummy", "skip_tokenizer_init": True,
        "trust_remote_code": False, "max_model_len": -1,
        "max_num_seqs": min(MOST_VLLM_ROWS, most_rows or MOST_VLLM_ROWS),
        "enable_prefix_caching": True, "async_scheduling": True, "logprobs_mode": "raw_logprobs",
        "generation_config": "vllm", "weight_transfer_config": {"backend": "echo2"}, "disable_log_stats": True,
    }  # fmt: skip
    config = vllm.EngineArgs(**fixed, **(_on_cpu() if device == "cpu" else _on_gpu())).create_engine_config()
    config.model_config.logits_processors = [PROCESSORS[bool(config.use_v2_model_runner)]]
    return config


def _architecture(folder: Path) -> dict[str, Any]:
    """Return what config.json must be given beside its own settings (rule 4). Raises EngineError."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        config = None
    if not isinstance(config, dict):
        raise EngineError(f"{folder} has no config.json that can be read: give the folder of a model")
    if config.get("architectures"):
        return {}
    known: Any = importlib.import_module("transformers.models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    name = known.get(config.get("model_type"))
    return {"architectures": [name]} if name else {}


def _on_cpu() -> dict[str, Any]:
    dynamo: Any = importlib.import_module("torch._dynamo")
    dynamo.config.disable = True  # vLLM's sampler would be compiled for longer than a test generates
    free = less_reserve(available_memory())
    # The least that its attention on CPUs takes: a prompt is shared by whole blocks. Its own choice is 128.
    return {"enforce_eager": True, "block_size": 32, "kv_cache_memory_bytes": min(CPU_MOST, int(CPU_SHARE * free))}


def _on_gpu() -> dict[str, Any]:
    """The device is the only one that this process sees (engines.vllm.availability)."""
    torch: Any = importlib.import_module("torch")
    free, total = torch.cuda.mem_get_info(0)
    return {"gpu_memory_utilization": round(GPU_MEMORY_SHARE * less_reserve(free) / total, 3)}
