"""`echo2-coord directory`: a list from a file, its number above the one before."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from echo2.coordinator import cli
from echo2.coordinator.nodes.directory_file import write_directory
from echo2.p2p.discovery.invite import Invite
from echo2.protocol.run_directory import BadDirectory, read

INVITE = Invite(run=b"r" * 32, root_hash=b"h" * 32, addresses=["/ip4/127.0.0.1/tcp/1"]).to_text()


def test_each_list_has_a_higher_number_and_the_same_author(tmp_path: Path) -> None:
    source, out, key = tmp_path / "runs.toml", tmp_path / "runs.json", tmp_path / "directory.key"
    source.write_text(f'[[runs]]\ninvite = "{INVITE}"\nname = "sums"\n')
    told = [write_directory(source, out, key, 30, 1_000 * number)[-1] for number in (1, 2)]
    assert told[0] == told[1]
    known = read(out.read_bytes(), bytes.fromhex(told[0].rpartition("#")[2]))
    assert (known.sequence, known.runs[0].name, known.expires) == (2, "sums", 2_000 + 30 * 86_400_000)


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "missing required field `runs`"), ("[[runs]]\nname = 'x'\n", "missing required field `invite`"),
     ("[[runs]]\ninvit = 'x'\n", "unknown field `invit`"), ("[[runs]]\ninvite = 'x'\n", "cannot be read")],
)  # fmt: skip
def test_a_file_that_is_wrong_is_one_sentence_and_nothing_is_written(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "runs.toml").write_text(text)
    with pytest.raises(BadDirectory, match=said):
        write_directory(tmp_path / "runs.toml", tmp_path / "out.json", tmp_path / "key", 30, 1_000)
    assert not (tmp_path / "out.json").exists()


def test_a_file_that_is_no_list_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "runs.toml").write_text(f'[[runs]]\ninvite = "{INVITE}"\n')
    (tmp_path / "out").write_text("my thesis")
    words = ["directory", str(tmp_path / "runs.toml"), str(tmp_path / "out"), "--key", str(tmp_path / "key")]
    done = CliRunner().invoke(cli.app, words)
    assert done.exit_code != 0
    assert "is not replaced" in done.stderr
    assert (tmp_path / "out").read_text() == "my thesis"
