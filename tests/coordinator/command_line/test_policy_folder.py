"""`echo2-coord policy export`: folders that transformers loads, that anybody verifies, whole or not there."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM, MixtralConfig, MixtralForCausalLM
from typer.testing import CliRunner

from echo2.coordinator import cli
from echo2.coordinator.command_line import command_options
from echo2.coordinator.database.database import Database
from echo2.coordinator.learner.model import load as load_model
from echo2.coordinator.run import model_folder, setup
from echo2.coordinator.run.foreign_models import describe
from echo2.weights.hf_import import floats_of
from echo2.weights.lora.adapter_folder import AdapterOrder
from echo2.weights.snapshot import Snapshot
from echo2.weights.store import Store
from echo2.weights.torch_io import save_model
from tests.support import adapted, bpe_tokenizers, exported_models, family_models, llama_cpp
from tests.support.published_versions import changed, publish
from tests.support.run_folders import NOW, load, make_run, write_model

WRITTEN = ("model.safetensors", "echo2-version.json", "README.md")
Families = dict[str, Callable[[Path], None]]


@pytest.fixture(autouse=True)
def _at_the_time_of_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_options, "now", lambda: NOW)


def said(*words: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, ["policy", *map(str, words)])
    return result.exit_code, result.stdout, result.stderr


def _family(name: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        model = family_models.make(folder, name).model
        model.to(torch.bfloat16).save_pretrained(folder)
        (folder / "0.snapshot").unlink()

    return write


def _mixtral(folder: Path) -> None:
    """Write a mixture of experts, whose tensors have other names in memory than in the file."""
    family_models.make(folder, "qwen3")
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=3, max_position_embeddings=128, rope_theta=77_000.0,
    )  # fmt: skip
    MixtralForCausalLM(config).save_pretrained(folder)
    (folder / "0.snapshot").unlink()


FAMILIES: Families = {name: _family(name) for name in ("qwen3", "llama3", "gemma3")} | {"mixtral": _mixtral}


@pytest.fixture
def trained(home: Path, request: pytest.FixtureRequest) -> Path:
    """Return a run of a family's model with one version, whose weights are not the base's."""
    run = load(home)
    for file in (home / "model").iterdir():
        file.unlink()
    source = home / "source"
    FAMILIES[request.param](source)
    model_folder.import_folder(source, home / "model")
    base = save_model(load_model(home / "model", "cpu"), home / "base.snapshot")
    publish(run, 3, changed(base, home / "3.snapshot"))
    return home


def test_a_link_in_place_of_the_draft_is_refused_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    kept = tmp_path / "keys" / "root.key"
    kept.parent.mkdir()
    kept.write_bytes(b"secret")
    (tmp_path / ".exported.echo2-draft").symlink_to(kept.parent)
    run = make_run(tmp_path / "run", write_model(tmp_path / "model"))
    Store(run.folder.store).close()
    code, _, error = said("export", tmp_path / "exported", "--home", run.folder.path)
    assert (code, kept.read_bytes()) == (78, b"secret")
    assert "is a link, or another user's folder: remove it" in error


@pytest.mark.slow
@pytest.mark.parametrize("trained", FAMILIES, indirect=True)
def test_an_exported_version_loads_wherever_its_base_loads_and_is_the_signed_one(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "exported"
    left_by_a_kill = tmp_path / ".exported.echo2-draft" / "version.safetensors"
    left_by_a_kill.parent.mkdir()
    left_by_a_kill.write_bytes(b"half of it")
    code, told, error = said("export", out, "--home", trained)
    assert (code, error) == (0, "")
    assert told.startswith(f"version 3 is in {out} (model), loaded again, with content root ")
    assert not left_by_a_kill.parent.exists()
    assert {path.name for path in out.iterdir()} <= {*model_folder.ASSETS, *model_folder.OPTIONAL_FILES, *WRITTEN}
    base = Snapshot(trained / "model" / "model.safetensors")
    written = Snapshot(out / "model.safetensors")
    assert [entry.name for entry in written.tensors] == [entry.name for entry in base.tensors]
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (trained / "model" / name).exists():
            assert (out / name).read_bytes() == (trained / "model" / name).read_bytes()
    was, now = (json.loads((folder / "config.json").read_text()) for folder in (trained / "model", out))
    assert {key for key in was if was[key] != now[key]} <= {"dtype", "torch_dtype"}
    _, loading = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    code, told, error = said("verify", out)
    assert (code, error) == (0, "")
    assert f"{out} has the weights of version 3 of run " in told
    assert "# a run, version 3" in (out / "README.md").read_text()
    assert said("export", out, "--home", trained)[0] == 78
    damaged = bytearray((out / "model.safetensors").read_bytes())
    damaged[-1] ^= 1
    (out / "model.safetensors").write_bytes(damaged)
    code, _, error = said("verify", out)
    assert code == 81
    assert "are not those of version 3: do not use them" in error


@pytest.mark.slow
@pytest.mark.parametrize("trained", ["qwen3"], indirect=True)
def test_a_file_that_names_another_version_is_not_believed(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "exported"
    assert said("export", out, "--home", trained)[0] == 0
    file = out / "echo2-version.json"
    told = msgspec.json.decode(file.read_bytes())
    file.write_bytes(msgspec.json.encode({**told, "version": 4}))
    code, _, error = said("verify", out)
    assert code == 81
    assert "names another version than the one that is signed in it" in error


@pytest.mark.slow
def test_a_run_of_adapters_gives_a_peft_adapter_that_names_its_base_or_a_whole_model(tmp_path: Path) -> None:
    exported_models.make(tmp_path / "base", "qwen3, tied")
    run = make_run(tmp_path / "run", tmp_path / "base", adapter=AdapterOrder(2, 4.0))
    snapshot = adapted.write(tmp_path / "5.snapshot", Snapshot(run.folder.model / "model.safetensors").tensors, 1, 0.1)
    publish(run, 5, snapshot)
    code, told, error = said("export", tmp_path / "adapter", "--home", run.folder.path)
    assert (code, error) == (0, "")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["base_model_name_or_path"]) == (2, setup.read_documents(run.folder)[3].model)
    assert Snapshot(tmp_path / "adapter" / "adapter_model.safetensors").root == snapshot.root
    assert said("verify", tmp_path / "adapter")[0] == 0
    code, _, error = said("export", tmp_path / "whole", "--gguf", "--home", run.folder.path)
    assert "the versions of this run are adapters: a GGUF file is of a whole model, so add --merged" in error
    code, told, error = said("export", tmp_path / "whole", "--merged", "--home", run.folder.path)
    assert (code, error, "policy verify" in told) == (0, "", False)
    whole, base = (load_model(folder, "cpu").state_dict() for folder in (tmp_path / "whole", tmp_path / "base"))
    name = "model.layers.0.self_attn.q_proj"
    outer, inner = (
        torch.from_numpy(floats_of(snapshot.bits(f"base_model.model.{name}.{part}.weight"), "BF16").reshape(shape))
        for part, shape in (("lora_B", (128, 2)), ("lora_A", (2, 128)))
    )
    merged = base[f"{name}.weight"].float() + config["lora_alpha"] / 2 * outer @ inner
    assert torch.equal(whole[f"{name}.weight"].bfloat16(), merged.bfloat16())


@pytest.mark.slow
@llama_cpp.needed
def test_a_version_comes_as_a_gguf_file_too_named_by_its_number(tmp_path: Path) -> None:
    exported_models.make(tmp_path / "base", "qwen3, tied")
    run, out = make_run(tmp_path / "run", tmp_path / "base"), tmp_path / "exported"
    base = save_model(load_model(run.folder.model, "cpu"), tmp_path / "base.snapshot")
    publish(run, 12, changed(base, tmp_path / "12.snapshot"))
    code, told, error = said("export", out, "--gguf", "--home", run.folder.path)
    assert (code, error) == (0, "")
    assert f"{out / 'a-run-v12.gguf'} is for llama.cpp, which loaded it and knows its tokens and ends" in told
    assert "| `a-run-v12.gguf` | the same weights for llama.cpp, not quantised |" in (out / "README.md").read_text()
    assert said("verify", out)[0] == 0
    (run.folder.model / "tokenizer.json").write_text(bpe_tokenizers.trained("gpt-2").replace('"BPE"', '"WordLevel"'))
    code, _, error = said("export", tmp_path / "other", "--gguf", "--home", run.folder.path)
    assert code == 78
    assert "no GGUF file of this model: " in error
    assert not list(tmp_path.glob("*other*"))


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("4", "there is no version 4: the newest one is 0"),
        ("newest", "'newest' is no version: name a number, latest or best"),
        ("best", "no version has a held-out result yet: name a number, or latest"),
    ],
)
def test_a_version_that_is_not_there_is_refused_and_leaves_nothing(
    home: Path, tmp_path: Path, version: str, says: str
) -> None:
    publish(load(home), 0, Snapshot(home / "model" / "model.safetensors"))
    Database.open(home / "run.sqlite").close()
    code, _, error = said("export", tmp_path / "out", "--version", version, "--home", home)
    assert code != 0
    assert says in error
    assert not list(tmp_path.glob("*out*"))


def test_a_folder_that_is_no_export_is_named(tmp_path: Path) -> None:
    code, _, error = said("verify", tmp_path)
    assert code != 0
    assert "has no echo2-version.json: `echo2-coord policy export` writes one" in error


def test_a_path_that_is_no_model_is_named_for_what_it_is(tmp_path: Path, home: Path) -> None:
    (tmp_path / "cache" / "snapshots" / "abc").mkdir(parents=True)
    (tmp_path / "home" / "hub" / "models--org--name" / "snapshots" / "abc").mkdir(parents=True)
    (tmp_path / "model.gguf").touch()
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").touch()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "pytorch_model.bin").touch()
    for path, sentence in {
        Path("Qwen/Qwen3-4B"): "a model of the hub is named hf:Qwen/Qwen3-4B, or hf:Qwen/Qwen3-4B@REVISION",
        tmp_path / "none": "no model folder at",
        tmp_path / "model.gguf": "is a GGUF file, which is a converted model",
        tmp_path / "cache": f"is a hub's cache of a model: name {tmp_path / 'cache' / 'snapshots' / 'abc'}",
        tmp_path / "home" / "hub" / "models--org--name": "is a hub's cache of a model: name ",
        tmp_path / "home/hub": "models--org--name/snapshots/abc, which has its files",
        tmp_path / "home": f"is a hub's cache of models: name {tmp_path}/home/hub/models--org--name/snapshots/abc",
        tmp_path / "adapter": "is an adapter: merge it into its base first",
        tmp_path / "old": "has pickled weights, which are never read",
        home: f"is the folder of a run: name {home}@VERSION",
        tmp_path: "has a GGUF file",
    }.items():
        assert sentence in describe(path, ())
