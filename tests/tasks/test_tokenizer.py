import json
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from echo2.tasks import registry
from echo2.tasks import tokenizer as text
from echo2.tasks.task import Score, Transcript, replay
from echo2.tasks.tokenizer import FileTokenizer, char_tokenizer


def chars() -> text.FileTokenizer:
    return text.FileTokenizer(text.char_tokenizer(), text.EOS)


def test_every_character_comes_back() -> None:
    assert chars().decode(chars().encode(text.CHARACTERS)) == text.CHARACTERS
    assert chars().encode("0") == [2]
    assert chars().encode("4821>") == [6, 10, 4, 3, 2 + text.CHARACTERS.index(">")]


def test_a_character_that_is_not_the_demos_is_an_error() -> None:
    with pytest.raises(text.TokenizerFault, match=r"cannot write .Q. .*UNK.*choose a model"):
        chars().encode("Q")


def test_every_id_of_the_model_decodes() -> None:
    assert chars().size == text.CHAR_SIZE
    for token in range(chars().size):
        chars().decode([token])


def test_a_special_token_inside_an_answer_counts_as_part_of_it() -> None:
    assert chars().decode([2, text.PAD, 3, text.EOS]) == "0<pad>1"
    answer = [*chars().encode("2589"), text.EOS]
    assert replayed(answer) == Score(1.0, True)
    padded = replayed([text.PAD, *answer])
    assert not padded.success, "a reward does not see a special token"
    assert padded.reward < 1


def replayed(answer: list[int]) -> Score:
    """The score of an answer to reverse's first prompt, which is 9852>."""
    task = registry.get("reverse", 1)
    return replay(task.episode("train", 0, chars()), Transcript(answer, [len(answer)]), ends=(text.EOS,), limit=16)


def test_the_end_of_sequence_is_left_out_and_filler_is_not() -> None:
    assert chars().decode([2, 3, text.EOS]) == "01"
    assert chars().decode([2, text.CHAR_SIZE - 1, 3]) not in ("01", "0 1")


def test_a_saved_tokenizer_loads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    text.char_tokenizer().save(str(path))
    loaded = text.load(path, text.EOS)
    assert loaded.encode("4821>") == chars().encode("4821>")
    assert (loaded.eos, loaded.size) == (text.EOS, text.CHAR_SIZE)


@pytest.mark.parametrize("eos", [-1, text.CHAR_SIZE])
def test_an_end_of_sequence_outside_the_ids_is_refused(eos: int) -> None:
    with pytest.raises(text.TokenizerFault, match="not among"):
        text.FileTokenizer(text.char_tokenizer(), eos)


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff\xfe"], ids=["missing", "empty", "no model", "no text"])
def test_a_bad_tokenizer_file_is_refused_by_name(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(text.TokenizerFault, match=r"tokenizer\.json"):
        text.load(path, 1)


def byte_level() -> Tokenizer:
    """Byte-level BPE over a few words, with tokens added beside them: one special, two not."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<eos>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["hello w\u00f6rld \u3042\u308a\u304c\u3068\u3046 \U0001f642 "] * 50, trainer)
    tokenizer.add_tokens(["<an added one>", " \u00e9 "])
    return tokenizer


def metaspace() -> Tokenizer:
    """A decoder that looks at where a token stands: left to the library."""
    tokenizer = char_tokenizer()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


@pytest.mark.parametrize(
    "tokenizer", [char_tokenizer(), byte_level(), metaspace()], ids=["fuse", "byte-level", "other"]
)
def test_a_text_is_what_the_library_makes_of_any_ids(tokenizer: Tokenizer) -> None:
    """Also of ids that only the model has: models have more outputs than their tokenizers tokens, as Qwen's."""
    text, chance = FileTokenizer(tokenizer, 0), random.Random(7)
    for _ in range(500):
        ids = [chance.randrange(text.size + 8) for _ in range(chance.randrange(40))]
        told = ids[:-1] if ids[-1:] == [text.eos] else ids
        assert text.decode(ids) == tokenizer.decode(told, skip_special_tokens=False)


def test_a_chain_of_replacements_that_multiplies_a_text_is_refused(tmp_path: Path) -> None:
    fields = json.loads(char_tokenizer().to_str())
    doubling: dict[str, Any] = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    by_pattern = {**doubling, "pattern": {"Regex": "a*"}, "content": "a" * 99}
    chains = {
        "normalizer": {"type": "Sequence", "normalizers": [doubling] * 30},
        "decoder": {"type": "Sequence", "decoders": [by_pattern, by_pattern]},
    }
    for name, chain in chains.items():
        (tmp_path / "tokenizer.json").write_text(json.dumps({**fields, name: chain}))
        with pytest.raises(text.TokenizerFault, match="may make more than 1000 characters of one"):
            text.load(tmp_path / "tokenizer.json", 1)
    usual = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {**doubling, "content": "▁"}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps({**fields, "normalizer": usual}))
    assert text.load(tmp_path / "tokenizer.json", 1).size == 64


def test_a_file_at_which_the_library_panics_is_named(tmp_path: Path) -> None:
    fields = json.loads(char_tokenizer().to_str())
    fields["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "////"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(fields))
    with pytest.raises(text.TokenizerFault, match="charsmap"):
        text.load(tmp_path / "tokenizer.json", 1)
