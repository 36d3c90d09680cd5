"""An installation is recognised by what its installer leaves, and its command installs from the same source."""

import json
import shlex
import sys
from importlib import metadata
from pathlib import Path

import pytest

from echo2.runtime import installation
from echo2.runtime.installation import (
    IN_A_CLONE,
    NEWER_ARCHIVE,
    NEWER_FILE,
    NO_SOURCE,
    Installation,
    InstallSource,
    installation_of,
    source_of,
)

COMMIT = "7ff31801a5d7ad15e75c886bdb5463d189a03afe"
GIT = InstallSource("git", "https://git.example/echo2", COMMIT, "main")


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "a folder" / "echo2-0.1.0-py3-none-any.whl"
    path.parent.mkdir()
    path.write_bytes(b"")
    return path


def direct_url(url: str, **facts: object) -> str:
    return json.dumps({"url": url, **facts})


def test_a_source_is_what_direct_url_names(wheel: Path) -> None:
    of_git = {"vcs": "git", "commit_id": COMMIT, "requested_revision": "main"}
    assert source_of(direct_url(wheel.as_uri(), archive_info={})) == InstallSource("file", str(wheel))
    assert source_of(direct_url(wheel.parent.as_uri(), dir_info={})) == InstallSource("folder", str(wheel.parent))
    assert source_of(direct_url(wheel.parent.as_uri(), dir_info={"editable": True})).kind == "checkout"
    assert source_of(direct_url("https://git.example/echo2", vcs_info=of_git)) == GIT
    assert source_of(direct_url("https://files.example/e.whl", archive_info={})).kind == "address"
    assert source_of(None).kind == "index"


@pytest.mark.parametrize("damaged", ["", "[]", "{}", "null", "not JSON", '{"url": "x", "vcs_info": {}}'])
def test_a_damaged_direct_url_names_an_unknown_source(damaged: str) -> None:
    assert source_of(damaged).kind == "none"


def test_an_installer_is_recognised_by_what_it_leaves(tmp_path: Path) -> None:
    def named(installer: str, **facts: object) -> str:
        return installation_of(tmp_path, GIT, python="/e/bin/python", installer=installer, **facts).installer  # type: ignore[arg-type]

    assert (named("pip"), named("uv"), named(""), named("pip", of_user=True)) == ("pip", "uv pip", "pip", "pip --user")
    (tmp_path / "pipx_metadata.json").write_text("{}")
    assert named("uv") == "pipx"
    (tmp_path / "uv-receipt.toml").write_text("")
    assert named("uv") == "uv tool"
    assert named("pip", image="echo2-node") == "container"


def test_uv_and_pipx_keep_the_extras_that_they_recorded(tmp_path: Path) -> None:
    recorded = {
        "main_package": {"package_or_url": "echo2[gym, torch] @ git+https://git.example/echo2"},
        "backend": "uv",
    }
    (tmp_path / "pipx_metadata.json").write_text(json.dumps(recorded))
    pipx = installation_of(tmp_path, GIT, python="/e/bin/python", installer="uv")
    whole = f"pipx install --force 'echo2[gym,poker,torch] @ git+https://git.example/echo2@{COMMIT}'"
    assert pipx.install_command("poker") == whole
    assert pipx.install_command("poker", torch="cpu") == f"UV_TORCH_BACKEND=cpu {whole}"
    (tmp_path / "uv-receipt.toml").write_text('[tool]\nrequirements = [{ name = "echo2", extras = ["gym"] }]\n')
    uv = installation_of(tmp_path, GIT, python="/e/bin/python", installer="uv")
    words = f"'echo2[gym,torch] @ git+https://git.example/echo2@{COMMIT}'"
    assert uv.install_command("torch", torch="cu130") == f"uv tool install --force --torch-backend cu130 {words}"
    assert uv.update_command().endswith("--force --upgrade 'echo2[gym] @ git+https://git.example/echo2@main'")


def test_uv_and_pipx_keep_the_build_of_pytorch_that_is_installed() -> None:
    source = InstallSource("folder", "/w")
    uv, pipx, pip = (Installation(name, source, "/p", ("train",), torch="cpu") for name in ("uv tool", "pipx", "pip"))
    assert uv.install_command("gym") == "uv tool install --force --torch-backend cpu '/w[gym,train]'"
    assert uv.update_command() == "uv tool install --force --upgrade --torch-backend cpu '/w[train]'"
    assert uv.install_command(torch="cu130").count("--torch-backend cu130") == 1
    assert pipx.update_command().startswith("PIP_EXTRA_INDEX_URL=https://")
    assert "index" not in pip.install_command("gym"), "pip adds to what is there"
    versions = ("2.13.0", "2.13.0+cpu", "2.13.0+cu130", "2.13.0+rocm6.4", "2.13.0+git7; rm")
    assert [installation.build_of(one) for one in versions] == ["", "cpu", "cu130", "rocm6.4", ""]


def test_pip_installs_into_the_interpreters_own_environment(wheel: Path) -> None:
    source = InstallSource("file", str(wheel))
    pip = Installation("pip", source, "/an env/bin/python")
    words = shlex.split(pip.install_command("torch", torch="cpu"))
    index = ["--extra-index-url", "https://download.pytorch.org/whl/cpu"]
    assert words == ["/an env/bin/python", "-m", "pip", "install", *index, f"{wheel}[torch]"]
    assert pip.update_command() == f"'/an env/bin/python' -m pip install --upgrade {NEWER_FILE}"
    assert " install --user '" in Installation("pip --user", source, "python").install_command("gym")
    assert Installation("uv pip", source, "/p").install_command().startswith("uv pip install --python /p '")


def test_a_checkout_is_updated_by_git_and_by_what_set_it_up(tmp_path: Path) -> None:
    source = InstallSource("checkout", "/home/me/echo2")
    (tmp_path / ".installed").touch()
    made = installation_of(tmp_path, source, python="/home/me/echo2/.venv/bin/python", installer="pip")
    assert made.update_command() == "git -C /home/me/echo2 pull --ff-only && make -C /home/me/echo2 setup"
    assert made.install_command("gym").endswith(" -m pip install -e '/home/me/echo2[gym]'")
    by_pip = Installation("pip", source, "python")
    assert by_pip.update_command().endswith("&& python -m pip install --upgrade -e /home/me/echo2")


def test_a_clone_that_was_installed_by_copy_is_updated_by_git_first(tmp_path: Path) -> None:
    own = Installation("uv tool", InstallSource("folder", str(tmp_path)), "/p")
    again = f"uv tool install --force --upgrade {tmp_path}"
    assert own.update_command() == again
    (tmp_path / ".git").mkdir()
    assert own.update_command() == f"git -C {tmp_path} pull --ff-only && {again}"


def test_after_a_source_archive_the_update_names_an_archive() -> None:
    own = Installation("pip", InstallSource("file", "/w/echo2-0.1.0.tar.gz"), "/p")
    assert own.update_command() == f"/p -m pip install --upgrade {NEWER_ARCHIVE}"


def test_a_file_that_is_gone_is_named_without_its_folder(wheel: Path) -> None:
    wheel.unlink()
    source = source_of(direct_url(wheel.as_uri(), archive_info={}))
    assert Installation("pip", source, "python").install_command().endswith(" echo2-0.1.0-py3-none-any.whl")
    assert source.describe() == f"the file {wheel}, which is not there any more"


def test_a_container_is_built_anew() -> None:
    image = Installation("container", GIT, "python", image="echo2-node")
    build = "podman build --format docker --pull --build-arg EXTRAS=torch --target echo2-node --tag echo2-node"
    build += " FOLDER_OF_THE_CONTAINERFILE"
    assert (image.install_command("torch"), image.describe()[:16]) == (build, "image echo2-node")


@pytest.mark.parametrize("installer", ["uv tool", "uv pip", "pipx", "pip", "pip --user"])
@pytest.mark.parametrize("kind", ["index", "none"])
def test_no_command_fetches_the_bare_name_from_an_index(
    installer: installation.Installer, kind: installation.Kind
) -> None:
    found = Installation(installer, InstallSource(kind), "python")
    for command in (found.install_command(), found.install_command("gym"), found.update_command()):
        assert shlex.split(command)[-1] in (NO_SOURCE, f"{NO_SOURCE}[gym]")


def test_the_distribution_on_the_path_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wheel: Path) -> None:
    facts = tmp_path / "echo2-9.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: echo2\nVersion: 9\n")
    (facts / "direct_url.json").write_text(direct_url(wheel.as_uri(), archive_info={}))
    (facts / "INSTALLER").write_text("uv\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    found = installation.read_installation({})
    assert (found.installer, found.source.place) == ("uv pip", str(wheel))
    assert installation.read_installation({installation.CONTAINER: "i"}).installer == "container"


def test_a_folder_that_no_installer_knows_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    monkeypatch.setattr(sys, "executable", "/a python/bin/python")
    monkeypatch.setattr(installation, "__file__", "/a folder/runtime/installation.py")
    command = "'/a python/bin/python' -m pip install -e '/a folder'"
    with pytest.raises(installation.RunsUninstalled, match=f"runs from /a folder and is not installed: `{command}`"):
        installation.read_installation({})


@pytest.mark.parametrize("place", ["https://ann:secret@git.example/echo2", "https://files.example/e.whl?signature=1"])
def test_a_source_with_a_secret_in_its_address_is_not_made_public(place: str) -> None:
    for source in (InstallSource("git", place, COMMIT), InstallSource("address", place)):
        assert source.public_command() == IN_A_CLONE
