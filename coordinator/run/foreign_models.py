"""Describe a path that was named as a model and is none, and name what to type in its place."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from echo2.coordinator.database.run_folder import RunFolder
from echo2.weights.lora.adapter_config import CONFIG as ADAPTER_CONFIG

_HUB_NAME: Final = re.compile(r"[\w.-]+/[\w.-]+")
_WANTED: Final = "a folder with config.json, tokenizer.json and a safetensors model"


def describe(path: Path, presets: Sequence[str]) -> str:
    """Return a sentence for the operator. `presets`: names that the command takes beside paths and models of the
    hub."""
    if not path.exists():
        if _HUB_NAME.fullmatch(str(path)):
            return (
                f"there is no folder {path}: a model of the hub is named hf:{path}, or hf:{path}@REVISION for one "
                "of its commits, branches or tags"
            )
        return f"no model folder at {path}: name {', '.join((*presets, 'hf:ORG/NAME', 'RUN@VERSION'))}, or {_WANTED}"
    if path.is_file():
        if path.suffix == ".gguf":
            return f"{path} is a GGUF file, which is a converted model: name {_WANTED}, from which it was converted"
        return f"{path} is a file: name {_WANTED}"
    if RunFolder(path).runspec.is_file():
        return f"{path} is the folder of a run: name {path}@VERSION, one of its versions, or {path}@best"
    for place in ("snapshots", "models--*/snapshots", "hub/models--*/snapshots"):
        snapshots = sorted(one for one in path.glob(f"{place}/*") if one.is_dir())
        if snapshots:
            several = "" if place == "snapshots" else f", or another of the {len(snapshots)} there"
            cached = "a hub's cache of a model" if place == "snapshots" else "a hub's cache of models"
            return f"{path} is {cached}: name {snapshots[-1]}, which has its files{several}"
    if (path / ADAPTER_CONFIG).is_file():
        return (
            f"{path} is an adapter: merge it into its base first (peft's merge_and_unload), and name the merged model. "
            "A run trains an adapter of its own with --lora-rank"
        )
    if any(path.glob("*.gguf")):
        return f"{path} has a GGUF file, which is a converted model: name {_WANTED}, from which it was converted"
    if any(path.glob("*.bin")) or any(path.glob("*.pt*")):
        return f"{path} has pickled weights, which are never read: save the model again with save_pretrained"
    missing = [name for name in ("config.json", "model.safetensors") if not (path / name).is_file()]
    return f"{path} has no {missing[0]}: name {_WANTED}"
