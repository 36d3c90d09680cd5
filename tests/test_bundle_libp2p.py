"""bundle_libp2p.py: what it keeps, what ends a build with one sentence, and that an earlier bundle outlives that."""

import ast
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import bundle_libp2p
from bundle_libp2p import CUTS, EDITS, HERE, ROOTS, Broken, Bundler, ensure, imports, make
from tests.support.paths import ROOT

UNREACHABLE = {
    "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    "PIP_RETRIES": "0",
    "PIP_FIND_LINKS": "",
    "PIP_NO_CACHE_DIR": "1",
}
SOURCES = {
    "libp2p/__init__.py": "raise RuntimeError('never imported')\n",
    "libp2p/one.py": "from libp2p.utils import two\nimport libp2p.utils.three as three\n"
    "import multiaddr\nimport varint\n",
    "libp2p/utils/__init__.py": "from libp2p.utils.other import two\n",
    "libp2p/utils/other.py": "def two(): ...\n",
    "libp2p/utils/three.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from libp2p.left import Out\n",
    "libp2p/left.py": "",
    "noise/__init__.py": "",
    "multiaddr/__init__.py": "from .multiaddr import Multiaddr\n",
    "multiaddr/multiaddr.py": "class Multiaddr: ...\n",
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A libp2p of four modules, without an edit."""
    for name, value in {"EDITS": (), "CUTS": (), "ROOTS": ("libp2p.one",)}.items():
        monkeypatch.setattr(bundle_libp2p, name, value)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with what a build needs, and a bundle of before."""
    for name in ("bundle_libp2p.py", bundle_libp2p.LOCK):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / HERE).mkdir(parents=True)
    (tmp_path / HERE / "former.py").write_text("")
    return tmp_path


def bundled(**changed: str) -> dict[str, str]:
    versions = {"libp2p": "1.0", "multiaddr": "1.0"}
    return dict(Bundler(SOURCES | {f"libp2p/{name}.py": text for name, text in changed.items()}, versions).files())


def test_what_is_imported_is_kept_under_the_new_name_and_nothing_else(small: None) -> None:
    files = bundled()
    assert files["one.py"] == (
        "from echo2._libp2p.utils import two\nimport echo2._libp2p.utils.three as three\n"
        "from echo2._libp2p import multiaddr\nfrom echo2.p2p.libp2p import varint\n"
    )
    assert "left.py" not in files
    assert files["__init__.py"] == ""
    assert files["utils/__init__.py"] == "from echo2._libp2p.utils.other import two as two\n"
    assert files["multiaddr/__init__.py"] == "from echo2._libp2p.multiaddr.multiaddr import Multiaddr as Multiaddr\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import libp2p.utils.three\n", "imports libp2p.utils.three by a line that is not rewritten"),
        ("from libp2p.absent import x\n", "there is no module libp2p.absent"),
        ("from libp2p.utils import absent\n", "imports no absent"),
    ],
)
def test_an_import_that_cannot_be_rewritten_ends_the_build(small: None, text: str, why: str) -> None:
    with pytest.raises(Broken, match=re.escape(why)):
        bundled(one=text)


@pytest.mark.parametrize("text", ["", "old\nold\n"])
def test_an_edit_that_does_not_match_once_ends_the_build(small: None, monkeypatch, text: str) -> None:
    monkeypatch.setattr(bundle_libp2p, "EDITS", (bundle_libp2p.Edit("libp2p.one", "old\n", "new\n", "why"),))
    with pytest.raises(Broken, match=f"an edit of libp2p.one matches {text.count('old')} times instead of once: 'old'"):
        bundled(one=text)


def test_a_cut_takes_one_function_with_its_decorators(small: None, monkeypatch) -> None:
    monkeypatch.setattr(bundle_libp2p, "CUTS", (bundle_libp2p.Cut("libp2p.one", "A.gone", "why"),))
    assert bundled(one="class A:\n    kept = 1\n\n    @staticmethod\n    def gone(): ...\n    last = 2\n")[
        "one.py"
    ] == ("class A:\n    kept = 1\n\n    last = 2\n")
    with pytest.raises(Broken, match=r"libp2p.one has A.gone 0 times instead of once"):
        bundled(one="class A: ...\n")


def test_a_lock_of_other_distributions_ends_the_build(tmp_path: Path) -> None:
    wheel = tmp_path / "other-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as opened:
        opened.writestr("other.py", "")
    with pytest.raises(Broken, match="must name the distributions libp2p, multiaddr, noiseprotocol"):
        make([wheel], tmp_path / "made")


@pytest.mark.slow
def test_a_registry_that_cannot_be_reached_is_one_sentence_and_the_former_bundle_stays(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in UNREACHABLE.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run([sys.executable, "bundle_libp2p.py"], cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.fullmatch(r"libp2p, which goes into echo2's wheel, was not downloaded \(.*\): .*\n", done.stderr)
    assert [path.name for path in (checkout / "echo2").iterdir()] == ["_libp2p"]
    assert (checkout / HERE / "former.py").exists()


def test_a_bundle_of_this_lock_is_not_made_again(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(checkout / HERE)
    shutil.copytree(ROOT / HERE, checkout / HERE)
    monkeypatch.setattr(bundle_libp2p, "download", lambda lock, folder: pytest.fail("downloaded again"))
    assert ensure(checkout) == checkout / HERE
    (checkout / bundle_libp2p.LOCK).write_text("another lock\n")
    with pytest.raises(pytest.fail.Exception, match="downloaded again"):
        ensure(checkout)


def test_each_change_has_a_reason_and_each_licence_comes_along() -> None:
    assert all(change.why for change in (*EDITS, *CUTS))
    names = {path.parent.name.partition("-")[0] for path in (ROOT / HERE / "LICENSES").rglob("LICENSE*")}
    assert names == {"libp2p", "multiaddr", "noiseprotocol"}


def test_the_roots_are_enough_for_what_we_import() -> None:
    """And each of them is imported by p2p/libp2p, or by another package of the product."""
    needed = set()
    for path in (ROOT / "p2p").rglob("*.py"):
        for base, name in imports(path.read_text(), "p2p"):
            if base.startswith("echo2._libp2p"):
                module = base.removeprefix("echo2._").replace("libp2p.multiaddr", "multiaddr")
                needed |= {module, f"{module}.{name}"}
                file = ROOT / base.replace(".", "/")
                assert file.with_suffix(".py").exists() or (file / "__init__.py").exists(), f"{path} imports {base}"
    assert set(ROOTS) <= needed


@pytest.mark.slow
def test_every_module_of_the_bundle_is_python_without_an_import_of_libp2p_itself() -> None:
    for path in (ROOT / HERE).rglob("*.py"):
        package = ".".join(path.parent.relative_to(ROOT).parts)
        names = {base.partition(".")[0] for base, _ in imports(path.read_text(), package)}
        assert not names & {"libp2p", "multiaddr", "noise"}, path
        assert isinstance(ast.parse(path.read_text()), ast.Module)
