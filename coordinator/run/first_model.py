"""Make the model with which a run begins: a warmed-up `tiny`, SmolLM2 from its package, or a copy of a folder."""

from pathlib import Path

import msgspec

from echo2.coordinator.learner.messages import WarmUp
from echo2.coordinator.run import model_folder, task_mix
from echo2.coordinator.run.task_processes import TaskPlace, demonstrations_of, kind_of
from echo2.coordinator.settings.config import CoordinatorConfig
from echo2.protocol.task_kinds import ANSWERED_KINDS, SINGLE_KIND
from echo2.tasks import registry
from echo2.tasks.tokenizer import CHAR_SIZE, EOS


def default_warm_up() -> WarmUp:
    """Return the warm-up of `tiny`: tiny about one sampled answer in six is right afterwards, so the reward has a
    signal. Eight heads and 350 steps: with fewer, some seeds had no signal (`python -m benchmarks.learning`)."""
    shape = {
        "hidden_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "intermediate_size": 288,
    }
    return WarmUp(folder="", task="", task_version=0, steps=350, noise=0.35, batch=64, shape=shape)


def make_model(out: Path, model: str, warm_up: WarmUp, config: CoordinatorConfig) -> None:
    """Make a run's model in the folder `out`. `model`: tiny, smollm2 or the path of a folder. Raises `LocalFault`."""
    if model == model_folder.TINY_MODEL:
        model_folder.make_tiny(out, _add_demonstrations(out, warm_up, config))
        Path(_demonstrations(out)).unlink(missing_ok=True)
    elif model == model_folder.SMOLLM2:
        model_folder.make_smollm2(out)
    else:
        model_folder.import_folder(Path(model), out)


def _demonstrations(out: Path) -> str:
    """Return the path of the demonstrations with which a folder's model is warmed up."""
    return str(out / "demonstrations")


def _add_demonstrations(out: Path, warm_up: WarmUp, config: CoordinatorConfig) -> WarmUp:
    """Return the warm-up with the source of its demonstrations: a task of this build, or the environments of another or
    of several, which write them to a file. Raises `LocalFault`."""
    mix = task_mix.parse_mix(config.run.task)
    if len(mix) == 1 and any(known == mix[0].name for known, _ in registry.list_tasks()):
        task = model_folder.task_named(mix[0].name)
        return msgspec.structs.replace(warm_up, task=task.name, task_version=task.version)
    model_folder.write_tiny_tokenizer(out)
    kinds = [kind if (kind := kind_of(config.run, task.name)) in ANSWERED_KINDS else SINGLE_KIND for task in mix]
    places = [TaskPlace(task.name, None, kind, out, EOS, CHAR_SIZE) for task, kind in zip(mix, kinds, strict=True)]
    rows = demonstrations_of(places, [task.weight for task in mix], config.environment, warm_up)
    path = _demonstrations(out)
    Path(path).write_bytes(msgspec.msgpack.encode(rows))
    return msgspec.structs.replace(warm_up, demonstrations=path)
