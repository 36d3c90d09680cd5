"""The texts of refusal codes."""

from echo2.coordinator.web import refusal_texts
from echo2.protocol.refusals import REASONS


def test_every_refusal_code_has_a_text_without_placeholders() -> None:
    for code in refusal_texts.WORDS:
        assert code in REASONS
    for code in REASONS:
        if code != "ok":
            assert refusal_texts.words(code)
            assert "{" not in refusal_texts.words(code)
