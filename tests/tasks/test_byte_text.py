"""The tokenizer of any text."""

from pathlib import Path

from echo2.tasks.byte_text import ByteText
from echo2.tasks.hostile_answers import HOSTILE
from echo2.tasks.tokenizer import load


def test_any_text_comes_back() -> None:
    text = ByteText()
    assert text.decode([*text.encode("ab é\U0001d7d9\0\n"), text.eos]) == "ab é\U0001d7d9\0\n"


def test_what_no_text_can_hold_is_replaced() -> None:
    assert ByteText().decode(ByteText().encode("\ud800a")) == "?a"
    assert ByteText().decode([1 + 0xFF, 1 + ord("a")]) == "\ufffda"


def test_its_tokenizer_file_gives_the_same_tokens(tmp_path: Path) -> None:
    text = ByteText()
    text.save(tmp_path / "tokenizer.json")
    library = load(tmp_path / "tokenizer.json", text.eos)
    assert text.name_of(text.eos) == "<|end of turn|>"
    for said in HOSTILE.values():
        assert library.encode(said[:5_000]) == text.encode(said[:5_000])
