"""The tokenizer of any text."""

from tasks.code_points import CodePoints


def test_any_text_comes_back() -> None:
    text = CodePoints()
    assert text.decode([*text.encode("ab é\U0001d7d9\n"), text.eos]) == "ab é\U0001d7d9\n"


def test_what_no_text_can_hold_is_replaced() -> None:
    text = CodePoints()
    assert text.eos not in text.encode("a\0b")
    assert text.decode([0xD800, 97]).encode() == "\ufffda".encode()
