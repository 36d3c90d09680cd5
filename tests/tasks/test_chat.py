"""Chat templates: the text that transformers renders, environments' turns, and templates that fail."""

from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from echo2.tasks import tokenizer
from echo2.tasks.chat import (
    PLAIN_TEMPLATE,
    ChatSettings,
    ChatTokenizer,
    Message,
    TemplateFault,
    renderer,
    tokens_of_prompt,
    tokens_of_reply,
)
from tests.support.chat_families import FAMILIES, Family, tokenizer_of
from tests.support.tokenizers import LETTERS

ASKED: list[Message] = [{"role": "user", "content": " What is 2 + 3? <b>&</b> "}]
SYSTEM: list[Message] = [{"role": "system", "content": "Be short."}, *ASKED]
LONG: list[Message] = [
    *ASKED,
    {"role": "assistant", "content": "<think>\n2 + 3\n</think>\n\n5"},
    {"role": "user", "content": "And 4?"},
]


def settings(family: Family, thinking: bool | None = None) -> ChatSettings:
    return ChatSettings(template=family.template, specials=family.named, enable_thinking=thinking)


def text_of(family: Family, thinking: bool | None = None) -> ChatTokenizer:
    library = tokenizer_of(family)
    ends = [library.token_to_id(name) for name in family.ends]
    return ChatTokenizer(tokenizer.FileTokenizer(library, *ends), settings(family, thinking))


@pytest.mark.parametrize("thinking", [None, True, False])
@pytest.mark.parametrize("messages", [ASKED, SYSTEM, LONG], ids=["asked", "system", "long"])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_text_is_that_of_transformers(name: str, messages: list[Message], thinking: bool | None) -> None:
    family = FAMILIES[name]
    given: dict[str, Any] = {**family.named} | ({} if thinking is None else {"enable_thinking": thinking})
    (expected,), _ = render_jinja_template(
        conversations=[messages], chat_template=family.template, add_generation_prompt=True, **given
    )
    assert renderer(settings(family, thinking))(messages) == expected


def test_a_thinking_model_is_told_not_to_think() -> None:
    qwen = FAMILIES["qwen3"]
    thinks, silent = (text_of(qwen, thinking).pose(ASKED) for thinking in (True, False))
    assert silent[: len(thinks)] == thinks
    assert text_of(qwen).decode(silent[len(thinks) :]) == "<think>\n\n</think>\n\n"


@pytest.mark.parametrize("name", FAMILIES)
def test_special_tokens_of_a_template_are_one_token_each(name: str) -> None:
    family = FAMILIES[name]
    library, tokens = tokenizer_of(family), text_of(family).pose(ASKED)
    text = renderer(settings(family))(ASKED)
    assert sum(token < len(family.specials) for token in tokens) == sum(map(text.count, family.specials))
    assert library.decode(tokens, skip_special_tokens=False) == text


@pytest.mark.parametrize("name", FAMILIES)
def test_an_environments_turn_stands_where_the_template_writes_a_users(name: str) -> None:
    """Prompt, sampled answer with its end, and the environment's turn: together what the template writes at once."""
    family = FAMILIES[name]
    text = text_of(family)
    assert text.decode(text.follow("HI")) == family.suffix
    messages: list[Message] = [*ASKED, {"role": "assistant", "content": "5"}, {"role": "user", "content": "HI"}]
    written = text.pose(messages)
    behind = text.follow("HI")
    assert written[-len(behind) :] == behind
    prompt = text.pose(ASKED)
    assert written[: len(prompt)] == prompt
    *answer, end = written[len(prompt) : -len(behind)]
    assert (text.decode(answer), end in text.ends) == ("5", True)


def test_without_a_template_the_text_alone_is_written() -> None:
    assert tokens_of_prompt(LETTERS, SYSTEM) == LETTERS.encode("Be short." + ASKED[0]["content"])
    assert tokens_of_reply(LETTERS, "higher>") == LETTERS.encode("higher>")


def test_a_model_without_a_template_gets_a_plain_one() -> None:
    render = renderer(ChatSettings(template=PLAIN_TEMPLATE))
    assert render([{"role": "user", "content": "2 + 3?"}]) == "User: 2 + 3?\n\nAssistant:"
    text = ChatTokenizer(
        tokenizer.FileTokenizer(tokenizer_of(FAMILIES["qwen3"]), 0), ChatSettings(template=PLAIN_TEMPLATE)
    )
    assert text.decode(tokens_of_reply(text, "And 4?")) == "\n\nUser: And 4?\n\nAssistant:"


def test_a_template_gets_the_same_date_each_day() -> None:
    assert renderer(ChatSettings(template="{{ strftime_now('%d %b %Y') }}: {{ messages[-1].content }}"))(
        ASKED
    ).startswith("26 Jul 2024: ")


FAULTS = {
    "no Jinja": ("{% for %}", "is no Jinja"),
    "a refusal": ("{{ raise_exception('roles must alternate') }}", "refuses these messages: roles must alternate"),
    "an error of its own": ("{{ 1 / 0 }}", "fails: ZeroDivisionError"),
    "a way out of the sandbox": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "fails: SecurityError"),
    "more than any model reads": ("{{ '%99999999d' % 1 }}", "writes 99999999 characters"),
    "a change of what it was given": ("{{ messages.append(1) }}", "fails: SecurityError"),
}


@pytest.mark.parametrize("what", FAULTS)
@pytest.mark.slow_for("more than any model reads")
def test_a_template_that_fails_is_named(what: str) -> None:
    template, sentence = FAULTS[what]
    with pytest.raises(TemplateFault, match=sentence):
        renderer(ChatSettings(template=template))(ASKED)


def test_a_template_without_the_models_answers_has_no_further_turns() -> None:
    one_turn = ChatSettings(template="{{ messages[-1].content }}")
    text = ChatTokenizer(tokenizer.FileTokenizer(tokenizer_of(FAMILIES["qwen3"]), 0), one_turn)
    with pytest.raises(TemplateFault, match="leaves out the model's answers"):
        text.follow("HI")
