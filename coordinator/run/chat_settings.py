"""The chat template of a run: read from its model folder, and stated in the RunSpec by hash.

Rules
1. `chat_template.jinja` goes before `chat_template` of tokenizer_config.json; of several named ones there, `default`
   counts. A model that has none gets `tasks.chat.PLAIN`.
2. The RunSpec has the BLAKE3 of the settings as JSON with sorted keys and no spaces (`TaskReference.settings_hash`). A
   folder with other settings is refused: the same run would pose other prompts.
3. A template is never rendered here (tasks/chat.py, rule 2).
"""

import json
from pathlib import Path
from typing import Any

import blake3
import msgspec

from echo2.coordinator.settings.training_config import RunSection
from echo2.protocol.task_kinds import PURE_KIND
from echo2.runtime.errors import LocalFault
from echo2.runtime.settings import SettingsFault
from echo2.tasks.chat import PLAIN_TEMPLATE, ChatSettings

_SPECIALS = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
_MOST_CONFIG_BYTES = 8 << 20  # bytes of tokenizer_config.json; some list thousands of tokens


def check(section: RunSection, kind: str) -> None:
    """Check that a task of this kind can be posed as the settings say. Raises `SettingsFault`."""
    if section.template == "plain" and section.thinking is not None:
        raise SettingsFault('run.thinking is for the chat template: set run.template = "chat", or leave it unset')
    if section.template == "chat" and kind == PURE_KIND:
        raise SettingsFault(
            'run.template = "chat" is for tasks whose code runs at the operator, as nodes render no template: '
            'set run.kind = "single" or "served"'
        )


def settings_of(folder: Path, section: RunSection, kind: str) -> ChatSettings | None:
    """Return how a run's prompts are written; None: plainly, without messages. Raises `SettingsFault`, `LocalFault`."""
    check(section, kind)
    if section.template == "plain":
        return None
    config = _tokenizer_config(folder)
    template = _template(folder, config)
    specials = {name: value for name in _SPECIALS if (value := _token(config.get(name))) is not None}
    return ChatSettings(
        template=PLAIN_TEMPLATE if template is None else template, specials=specials, enable_thinking=section.thinking
    )


def remarks_of(folder: Path, settings: ChatSettings | None) -> list[str]:
    """Return sentences on what the model's folder has for prompts and these settings leave unused. Raises
    `LocalFault`."""
    config = _tokenizer_config(folder)
    if settings is not None:
        plain = settings.template == PLAIN_TEMPLATE
        return ["the model has no chat template: its prompts have a plain one"] if plain else []
    remarks = list[str]()
    if _template(folder, config) is not None:
        remarks.append("the model has a chat template, and prompts go without: run.template = chat uses it")
    if config.get("add_bos_token") and (begin := _token(config.get("bos_token"))) is not None:
        remarks.append(f"the model's tokenizer begins a text with {begin}, and prompts begin without")
    return remarks


def template_of(folder: Path) -> str | None:
    """Return the chat template of a model folder; None: it has none (rule 1). Raises `LocalFault`."""
    return _template(folder, _tokenizer_config(folder))


def hash_of(settings: ChatSettings | None) -> bytes | None:
    """Return the hash for the RunSpec (rule 2); None: there are no settings."""
    if settings is None:
        return None
    text = json.dumps(msgspec.to_builtins(settings), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return blake3.blake3(text.encode()).digest()


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return {}
    try:
        with path.open("rb") as file:
            config = json.loads(file.read(_MOST_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise LocalFault(f"cannot read {path} ({error}): download it again") from error
    if not isinstance(config, dict):
        raise LocalFault(f"{path} is not a JSON object: download it again")
    return config


def _template(folder: Path, config: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise LocalFault(f"cannot read {path} ({error}): download it again") from error
    named = config.get("chat_template")
    if isinstance(named, list):
        rows = [row for row in named if isinstance(row, dict) and row.get("name") == "default"]
        named = rows[0].get("template") if rows else None
        if named is None:
            raise LocalFault(f"{folder / 'tokenizer_config.json'} has several chat templates, and none named default")
    return named if isinstance(named, str) and named else None


def _token(value: object) -> str | None:
    """Return the text of a named token, which may be an object with its text in `content`."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None
