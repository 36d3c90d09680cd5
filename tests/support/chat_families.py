"""Model folders as families publish them: chat template, named tokens and end tokens, with a small tokenizer.

The templates are those of the families' public documentation, without the parts for tools and images. The tokenizers
have one token per printable character, and the family's special tokens."""

import json
import struct
from pathlib import Path
from typing import NamedTuple

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

QWEN3 = """{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') }}
            {{- '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA3 = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\n'}}
{%- endif -%}"""
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou "
    "are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + "
    "message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class Family(NamedTuple):
    """`template`: Jinja. `named`: the tokens that tokenizer_config.json names. `ends`: names of the end tokens, those
    of config.json first. `configured`: how many of them stand there; the rest is in generation_config.json. `others`:
    further special tokens. `suffix`: the text from a user's answer to the model's next token."""

    template: str
    named: dict[str, str]
    ends: tuple[str, ...]
    configured: int
    others: tuple[str, ...]
    suffix: str
    in_file: bool = False

    @property
    def specials(self) -> list[str]:
        return list(dict.fromkeys([*self.named.values(), *self.ends, *self.others]))


FAMILIES = {
    "qwen3": Family(
        QWEN3, {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}, ("<|im_end|>", "<|endoftext|>"), 1,
        ("<|im_start|>", "<think>", "</think>"), "\n<|im_start|>user\nHI<|im_end|>\n<|im_start|>assistant\n",
    ),
    "llama3": Family(
        LLAMA3, {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}, ("<|end_of_text|>", "<|eot_id|>"), 1,
        ("<|start_header_id|>", "<|end_header_id|>"),
        "<|start_header_id|>user<|end_header_id|>\n\nHI<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "gemma3": Family(
        GEMMA3, {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}, ("<eos>", "<end_of_turn>"), 2,
        ("<start_of_turn>",), "\n<start_of_turn>user\nHI<end_of_turn>\n<start_of_turn>model\n", in_file=True,
    ),
    "smollm2": Family(
        SMOLLM2, {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}, ("<|im_end|>",), 1, (),
        "\n<|im_start|>user\nHI<|im_end|>\n<|im_start|>assistant\n",
    ),
}  # fmt: skip


def tokenizer_of(family: Family) -> Tokenizer:
    """Return a tokenizer with one token per printable character, behind the family's special tokens."""
    names = [*family.specials, *map(chr, range(32, 127)), "\n"]
    tokenizer = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(family.specials)
    return tokenizer


def end_ids(family: Family) -> list[int]:
    """Return the ids of the family's end tokens, in the order of `Family.ends`."""
    tokenizer = tokenizer_of(family)
    return [tokenizer.token_to_id(name) for name in family.ends]


def write_folder(folder: Path, family: Family, *, template: bool = True) -> Path:
    """Write a model folder as it comes from the hub, with one small tensor. `template`: False leaves it out."""
    folder.mkdir(parents=True)
    tokenizer = tokenizer_of(family)
    ids = end_ids(family)
    written = ids[: family.configured]
    config = {"vocab_size": tokenizer.get_vocab_size(), "eos_token_id": written if len(written) > 1 else written[0]}
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3", **config}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids, "temperature": 0.6}))
    named: dict[str, object] = {name: {"content": text, "lstrip": False} for name, text in family.named.items()}
    if template and not family.in_file:
        named["chat_template"] = family.template
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    if template and family.in_file:
        (folder / "chat_template.jinja").write_text(family.template)
    tokenizer.save(str(folder / "tokenizer.json"))
    data = struct.pack("<2f", 1.0, -2.0)
    header = json.dumps({"weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    return folder
