"""The model card of an exported version: where it comes from, how good it was, how to verify and to load it."""

import json
from typing import TYPE_CHECKING

from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.metrics.history import Curve
from echo2.coordinator.run import task_mix
from echo2.coordinator.run.model_folder import SOURCE
from echo2.protocol.authority import RunSpec

if TYPE_CHECKING:
    from echo2.coordinator.command_line.policy_folder import VersionFile

MOST_ROWS = 40
"""Held-out results in the table."""


def card_of(home: RunFolder, spec: RunSpec, told: "VersionFile", gguf: str) -> str:
    """Return the card, as Markdown. `gguf`: name of the GGUF file, or empty. Raises OSError where the run's history
    cannot be read."""
    title = f"{spec.name}, version {told.version}"
    return "\n".join(
        [
            f"# {title}",
            "",
            f"Trained by reinforcement learning with echo2 from `{spec.model}` on `{task_mix.text_of(spec.tasks)}`.",
            "",
            "| | |",
            "|---|---|",
            f"| run | `{told.run}` |",
            f"| version | {told.version} |",
            f"| content root | `{told.root}` |",
            f"| weights | {_FORMS[told.form]} |",
            *_base(home),
            *([f"| `{gguf}` | the same weights for llama.cpp, not quantised |"] if gguf else []),
            "",
            *_results(home, told.version),
            "## Load it",
            "",
            _LOAD["adapter" if told.form == "adapter" else "model"].format(model=spec.model),
            *([f"llama.cpp: `llama-server --model {gguf}`."] if gguf else []),
            "",
            "## Verify it",
            "",
            _VERIFY[told.form],
            "",
        ]
    )


_FORMS = {
    "model": "whole model, under the names of its base",
    "adapter": "PEFT adapter of its base",
    "merged": "whole model: an adapter merged into its base, rounded to bfloat16",
}
_LOAD = {
    "model": "transformers: `AutoModelForCausalLM.from_pretrained(FOLDER)`. vLLM: `vllm serve FOLDER`.",
    "adapter": "peft: `PeftModel.from_pretrained(base, FOLDER)`, where `base` is `{model}` as transformers loads it.",
}
_SIGNED = (
    "`echo2-coord policy verify FOLDER` loads these weights, computes their content root, and compares it with the "
    "version that the run's policy key signed. Compare the run's id with the one that its operator publishes."
)
_VERIFY = {
    "model": _SIGNED,
    "adapter": _SIGNED,
    "merged": "Merging rounds, so these weights are no signed version. The adapter of the same version is one.",
}


def _base(home: RunFolder) -> list[str]:
    """Return the row that names the commit of the base, where it came from a hub."""
    try:
        source = json.loads((home.model / SOURCE).read_bytes())
        return [f"| base | `{source['model']}` at commit `{source['commit']}` |"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return []


def _results(home: RunFolder, version: int) -> list[str]:
    rows = [row for number, row in sorted(Curve.read(home.history).evaluations.items()) if number <= version]
    if not rows:
        return []
    step = max(1, -(-len(rows) // MOST_ROWS))
    shown = [row for number, row in enumerate(rows) if (len(rows) - 1 - number) % step == 0]
    return [
        "## Held-out results",
        "",
        "| version | prompts | solved, sampled | solved, greedy |",
        "|---|---|---|---|",
        *(f"| {row.version} | {row.prompts} | {row.sampled:.3f} | {row.greedy:.3f} |" for row in shown),
        "",
    ]
