"""Prompts written by a model's chat template, in the sandboxed Jinja that transformers uses.

Rules
1. `posed` and `followed` are for tasks: with a tokenizer that has a template they write messages by it, and with any
   other they write the text alone, as a task without messages would.
2. A template is code of the model's author: it is rendered in the sandbox, by the process of an environment alone.
3. The same messages give the same tokens at any time: a template that asks for the date gets `DATE`.
4. A template that writes a user's text neither as a text nor as a list of parts, as those of several media do, is
   refused: the policy would see an empty question.
5. An environment's turn is written as the template writes a user's message behind the model's answer: everything
   between the end of that answer and the model's next token. What was sampled is never rendered again.
"""

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, Literal, NoReturn, Protocol, TypedDict, runtime_checkable

import msgspec

from echo2.tasks.task import Tokenizer
from echo2.tasks.tokenizer import FileTokenizer

PLAIN_TEMPLATE: Final = (
    "{% for message in messages %}{{ message.role | capitalize }}: {{ message.content }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""The template of a model that has none."""
DATE: Final = datetime(2024, 7, 26)
MOST_WRITTEN: Final = 1 << 22
"""Most characters of a conversation: beyond them a tokenizer's memory would be the limit."""
_ANSWER: Final = "echo2-answer-0123456789"
"""Stands for the model's answer, where the text behind one is looked for (rule 5)."""
_QUESTION: Final = "echo2-question-0123456789"
"""Stands for a user's text, where the form that a template writes is looked for (rule 4)."""


class Message(TypedDict):
    role: Literal["system", "user", "assistant"]
    content: str


class ChatSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Format of a run's prompts. `template`: Jinja. `specials`: the tokenizer's named tokens, such as bos_token.
    `enable_thinking`: passed to the template; None: not passed."""

    template: str
    specials: dict[str, str] = {}
    enable_thinking: bool | None = None


class TemplateFault(ValueError):
    """A template that cannot write these messages; the message says why."""


@runtime_checkable
class Chatting(Protocol):
    """A tokenizer with a template, which is more than `tasks.task.Tokenizer` needs."""

    def pose(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens of a conversation, up to where the model answers."""

    def follow(self, content: str) -> list[int]:
        """Return the tokens of a user's message behind the model's answer, up to where it answers again (rule 5)."""


def tokens_of_prompt(text: Tokenizer, messages: Sequence[Message]) -> list[int]:
    """Return the tokens of a prompt (rule 1). Raises `TemplateFault`."""
    if isinstance(text, Chatting):
        return text.pose(messages)
    return text.encode("".join(message["content"] for message in messages))


def tokens_of_reply(text: Tokenizer, content: str) -> list[int]:
    """Return the tokens of an environment's turn (rule 1). Raises `TemplateFault`."""
    return text.follow(content) if isinstance(text, Chatting) else text.encode(content)


class ChatTokenizer:
    """A `tasks.task.Tokenizer` with a template. `plain`: the one without, to which `settings` add it. Raises
    `TemplateFault` for a template that is no Jinja."""

    def __init__(self, text: FileTokenizer, settings: ChatSettings) -> None:
        self._text, self._render = text, renderer(settings)
        self.plain, self.settings = text, settings
        self._ends = [text.decode([end, text.eos]) for end in text.ends]  # their names

    @property
    def eos(self) -> int:
        return self._text.eos

    @property
    def ends(self) -> tuple[int, ...]:
        return self._text.ends

    @property
    def size(self) -> int:
        return self._text.size

    def encode(self, text: str) -> list[int]:
        return self._text.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        return self._text.decode(tokens)

    def pose(self, messages: Sequence[Message]) -> list[int]:
        """See `Chatting`."""
        return self._text.encode(self._render(messages))

    def follow(self, content: str) -> list[int]:
        """See `Chatting`."""
        before: list[Message] = [{"role": "user", "content": "-"}, {"role": "assistant", "content": _ANSWER}]
        _, answer, behind = self._render([*before, {"role": "user", "content": content}]).partition(_ANSWER)
        if not answer:
            raise TemplateFault("the chat template leaves out the model's answers, so no turn can follow one")
        named = next((end for end in self._ends if end and behind.startswith(end)), "")
        return self._text.encode(behind.removeprefix(named))


def renderer(settings: ChatSettings) -> Callable[[Sequence[Message]], str]:
    """Return a function from messages to text, up to where the model answers. It raises `TemplateFault`."""
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import Node
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The tag by which templates mark the model's own answers; their text stands as it is."""

        tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

        def parse(self, parser: Parser) -> list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(sentence: str) -> NoReturn:
        raise TemplateFault(f"the chat template refuses these messages: {sentence}")

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _as_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = DATE.strftime
    try:
        template = environment.from_string(settings.template)
    except jinja2.TemplateError as error:
        raise TemplateFault(f"the chat template is no Jinja: {error}") from error
    known: dict[str, Any] = {**settings.specials, "tools": None, "documents": None, "add_generation_prompt": True}
    if settings.enable_thinking is not None:
        known["enable_thinking"] = settings.enable_thinking

    def render(messages: Sequence[Message]) -> str:
        try:
            written = template.render(messages=messages, **known)
        except TemplateFault:
            raise
        except Exception as error:  # a template's expressions raise whatever Python does
            raise TemplateFault(f"the chat template fails: {type(error).__name__}: {error}") from error
        if len(written) > MOST_WRITTEN:
            raise TemplateFault(f"the chat template writes {len(written)} characters, and {MOST_WRITTEN} are the most")
        return written

    if _writes_question(render):
        return render

    def render_parts(messages: Sequence[Message]) -> str:
        parts: Any = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in messages]
        return render(parts)

    if not _writes_question(render_parts):
        raise TemplateFault("the chat template leaves out what the user says")
    return render_parts


def _writes_question(render: Callable[[Sequence[Message]], str]) -> bool:
    """Tell whether a template writes what a user says. One that refuses this conversation may write others."""
    try:
        return _QUESTION in render([{"role": "user", "content": _QUESTION}])
    except TemplateFault:
        return True


def _as_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Encode as JSON, as transformers does: Jinja's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
