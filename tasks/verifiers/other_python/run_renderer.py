"""Write conversations as a run does, as a renderer of verifiers: the same tokens as tasks/chat.py gives.

Rules
1. With a chat template a conversation is written by it. Without one it is its messages' text alone.
2. Messages behind a sampled answer are written as the template writes them there: everything between the end of that
   answer and the model's next token. What was sampled is never rendered again.
3. A template that asks for the date gets the same one at any time.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from renderers import BaseRendererConfig, DefaultRenderer, DefaultRendererConfig, ParsedResponse, RenderedTokens

_ANSWER = "echo2-answer-0123456789"
_DATE = datetime(2024, 7, 26)


class RunRendererConfig(BaseRendererConfig):
    """`ends`: the tokens that end a turn. `templated`: whether there is a chat template. `thinking`: passed to it."""

    name: str = "custom"
    ends: tuple[int, ...]
    templated: bool
    thinking: bool | None = None

    _internal_fields = frozenset({"ends", "templated", "thinking"})


class RunRenderer(DefaultRenderer):
    """The renderer. `tokenizer`: tokenizer of transformers."""

    config_class = RunRendererConfig

    def __init__(self, tokenizer: Any, config: RunRendererConfig) -> None:
        super().__init__(tokenizer, DefaultRendererConfig())
        self._run = config
        self._thinks = config.templated and tokenizer.convert_tokens_to_ids("<think>") not in (
            None,
            tokenizer.unk_token_id,
        )
        self._end_names = [tokenizer.convert_ids_to_tokens(end) for end in config.ends]

    def render(self, messages: list[Any], *, tools: Any = None, add_generation_prompt: bool = False) -> RenderedTokens:
        """Return the tokens of a conversation. All of them are attributed to its last message."""
        tokens = self._encode(self._write(messages, add_generation_prompt))
        return _attribute_tokens(tokens, 0, messages)

    def render_ids(self, messages: list[Any], *, tools: Any = None, add_generation_prompt: bool = False) -> list[int]:
        """Return the tokens of a conversation."""
        return self._encode(self._write(messages, add_generation_prompt))

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: list[Any],
        *,
        tools: Any = None,
    ) -> RenderedTokens | None:
        """Return the tokens so far and those of the messages behind them (rule 2)."""
        before = [*previous_prompt_ids, *previous_completion_ids]
        if not self._run.templated:
            behind = self._write(new_messages, True)
        else:
            answered = [{"role": "user", "content": "-"}, {"role": "assistant", "content": _ANSWER}, *new_messages]
            _, answer, behind = self._write(answered, True).partition(_ANSWER)
            if not answer:
                return None
            named = next((name for name in self._end_names if name and behind.startswith(name)), "")
            behind = behind.removeprefix(named)
        return _attribute_tokens([*before, *self._encode(behind)], len(before), new_messages)

    def parse_response(self, token_ids: list[int], *, tools: Any = None, prompt_ids: Any = None) -> ParsedResponse:
        """Return a turn's text. Only a model with a token for that has reasoning in it."""
        if self._thinks:
            return super().parse_response(token_ids, tools=tools, prompt_ids=prompt_ids)
        said = token_ids[:-1] if token_ids and token_ids[-1] in self._run.ends else token_ids
        return ParsedResponse(content=self._tokenizer.decode(said, skip_special_tokens=False))

    def get_stop_token_ids(self) -> list[int]:
        """Return the tokens that end a turn."""
        return list(self._run.ends)

    def _write(self, messages: Sequence[Any], asks: bool) -> str:
        if not self._run.templated:
            return "".join(map(_content, messages))
        options = {} if self._run.thinking is None else {"enable_thinking": self._run.thinking}
        written: str = self._tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=asks, strftime_now=_DATE.strftime, **options
        )
        return written

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))


def _content(message: Any) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _attribute_tokens(tokens: list[int], known: int, messages: Sequence[Any]) -> RenderedTokens:
    """Attribute the tokens from number `known` on to the last message."""
    indices = [-1] * known + [len(messages) - 1] * (len(tokens) - known)
    roles = [message.get("role") or "" for message in messages]
    return RenderedTokens(token_ids=tokens, message_indices=indices, message_roles=roles)
