"""The runner of the fuzzers, with a script in place of one."""

from pathlib import Path

import pytest

from tests.fuzz import fuzz


def test_what_a_fuzzer_leaves_is_removed_and_an_input_that_fails_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, found = tmp_path / "fuzz_it.py", tmp_path / "found"
    found.mkdir()
    script.write_text(
        "import os, sys, tempfile\n"
        "open(tempfile.mkdtemp() + '/corpus', 'w').write('1')\n"
        "open(sys.argv[2].partition('=')[2] + 'crash', 'w').write('2')\n"
        "print('Done 17 runs in 1 second', flush=True)\n"
        "os._exit(3)\n"
    )
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    assert fuzz(str(script), "-runs=17", found) == (17, 3)
    assert (list((tmp_path / "scratch").iterdir()), (found / "crash").read_text()) == ([], "2")
