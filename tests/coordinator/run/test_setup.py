"""A run is made completely or not at all, and loads only if complete: each damage is one line that names the fix."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.environments.task_host import TaskFacts
from echo2.coordinator.learner.messages import MemoryCounted
from echo2.coordinator.run import first_model, keys, learner_checks, model_folder, setup
from echo2.coordinator.run.signing import ROOT_LIFE
from echo2.coordinator.run.task_processes import TaskPlace, without_records
from echo2.coordinator.settings import computing
from echo2.coordinator.settings import config as configuration
from echo2.coordinator.settings.computing import Computing
from echo2.coordinator.settings.config import CoordinatorConfig
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.envelope import seal
from echo2.p2p.identity import generate_key, load_key, peer_id, public_bytes, write_key
from echo2.p2p.wire_types import encode
from echo2.protocol import root_chain
from echo2.protocol.authority import Root, TaskReference
from echo2.protocol.root_chain import Untrusted
from echo2.runtime.errors import LocalFault
from echo2.runtime.settings import SettingsFault
from echo2.weights.lora.adapter_folder import AdapterOrder
from tests.support.group_world import SPEC
from tests.support.run_folders import NOW, load, make_run, write_model


def test_a_run_that_was_made_is_read_back_with_what_was_signed(home: Path) -> None:
    run = load(home)
    assert run.runspec.tasks[0].name == run.config.run.task == run.task.name == "reverse"
    assert (run.runspec.vocabulary, run.runspec.eos) == (64, 1)
    assert [asset.name for asset in run.runspec.assets] == ["config.json", "tokenizer.json"]
    assert run.root.expires == NOW + ROOT_LIFE
    assert {role: entry.threshold for role, entry in run.root.roles.items()} == dict.fromkeys(keys.ROLES, 1)


def test_a_run_of_an_adapter_signs_base_and_settings_and_refuses_another_base(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", "model.layers.0.mlp.up_proj.weight", (2, 32))
    config = setup.settings_for(str(source), {"run": {"name": "adapted", "task": "reverse"}}, env={})
    setup.init(tmp_path / "run", str(source), config, now=NOW, adapter=AdapterOrder(4, 8.0, None, "q8_0"))
    run = load(tmp_path / "run")
    assert [asset.name for asset in run.runspec.assets][2:] == ["adapter_config.json", "base.safetensors"]
    base = run.folder.model / "base.safetensors"
    base.write_bytes(base.read_bytes()[:-1] + b"!")
    with pytest.raises(Untrusted, match=r"base\.safetensors is not the file whose hash the RunSpec signs"):
        load(tmp_path / "run")


def test_no_run_is_made_of_an_adapter_for_layers_that_the_model_lacks(tmp_path: Path, model: Path) -> None:
    config = setup.settings_for(str(model), {"run": {"name": "adapted", "task": "reverse"}}, env={})
    with pytest.raises(LocalFault, match="no linear layer"):
        setup.init(tmp_path / "run", str(model), config, now=NOW, adapter=AdapterOrder(4, 8.0))
    assert not (tmp_path / "run").exists()


def test_an_adapter_is_for_one_rank_which_init_and_a_later_start_say(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", "model.layers.0.mlp.up_proj.weight", (2, 32))
    asked: dict[str, Any] = {"run": {"name": "adapted", "task": "reverse"}, "learner": {"ranks": 2}}
    told = "the learner has 2 ranks, and the versions of this run are an adapter, which one rank trains"
    config = setup.settings_for(str(source), asked, env={})
    with pytest.raises(SettingsFault, match=told):
        setup.init(tmp_path / "run", str(source), config, now=NOW, adapter=AdapterOrder(4, 8.0))
    assert not (tmp_path / "run").exists()
    config = setup.settings_for(str(source), {"run": asked["run"]}, env={})
    setup.init(tmp_path / "run", str(source), config, now=NOW, adapter=AdapterOrder(4, 8.0))
    with pytest.raises(SettingsFault, match=told):
        setup.load_run(tmp_path / "run", env={}, now=NOW, flags={"learner": {"ranks": 2}})


def test_the_invite_pins_the_first_root_and_ends_each_address_in_the_channel_keys_peer(home: Path) -> None:
    run = load(home)
    invite = Invite.from_text(run.invite(["/ip4/192.0.2.1/tcp/4310"]))
    assert (invite.run, invite.root_hash) == (run.id, root_chain.root_hash(run.roots[0]))
    assert invite.addresses[0] == f"/ip4/192.0.2.1/tcp/4310/p2p/{peer_id(public_bytes(run.keys.channel))}"
    assert all(address.endswith(run.peer_id) for address in invite.addresses)


def test_a_run_starts_without_its_root_key(home: Path) -> None:
    (home / "keys/root.pem").unlink()
    assert load(home).root.serial == 1


def test_a_run_is_made_in_an_existing_empty_folder(tmp_path: Path, model: Path) -> None:
    (tmp_path / "new").mkdir()
    number = (tmp_path / "new").stat().st_ino
    make_run(tmp_path / "new", model)
    assert (tmp_path / "new").stat().st_ino == number
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "new"]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_run_is_never_made_over_another(home: Path, model: Path) -> None:
    before = contents(home)
    with pytest.raises(LocalFault, match="already contains a run, which was not changed"):
        make_run(home, model)
    assert contents(home) == before
    assert load(home).root.serial == 1


def test_a_run_whose_signed_limit_fills_the_models_context_does_not_start(tmp_path: Path, model: Path) -> None:
    config = model / "config.json"
    config.write_text('{"vocab_size": 64, "eos_token_id": 1, "max_position_embeddings": 21}')
    home = make_run(tmp_path / "fits", model).folder.path
    run = load(home)
    assert model_folder.room_of(run.folder.model, run.runspec.limit) == 5
    with pytest.raises(LocalFault, match=r"run\.limit is 21, the model's context 21 tokens: no room is left"):
        model_folder.check_context(run.folder.model, 21)


def test_no_run_is_made_where_nothing_can_be_written(tmp_path: Path, model: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place, sentence in {
        tmp_path / "file": "is not an empty folder",
        tmp_path / "file" / "run": "cannot (read|write)",
        tmp_path: "is not an empty folder",
    }.items():
        with pytest.raises(LocalFault, match=sentence):
            make_run(place, model)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "model"]
    assert (tmp_path / "file").read_text() == "mine"


def test_no_run_is_made_whose_batch_no_learner_here_could_hold(model: Path, tmp_path: Path) -> None:
    large = {"name": "large", "task": "add", "batch_groups": 9000, "group_size": 1024, "limit": 1 << 20}
    config = setup.settings_for(str(model), {"run": large}, env={})
    told = r"up to 9,663,676,416,000 tokens \(run.batch_groups 9000 x run.group_size 1024 x run.limit 1048576\), which"
    with pytest.raises(SettingsFault, match=told + r" take 72,000 GiB in the learner, and this machine has [\d,]+ GiB"):
        setup.init(tmp_path / "run", str(model), config, now=NOW)
    assert not (tmp_path / "run").exists()


def test_no_run_is_made_of_an_unknown_task_or_of_more_groups_than_prompts(model: Path, tmp_path: Path) -> None:
    for flags, sentence in (
        ({"task": "reverze"}, "there is no task reverze; did you mean reverse? known are add, "),
        ({"task": "reverze", "kind": "pure"}, "task reverze is not in this build, which has"),
        ({"task": "single_sum", "batch_groups": 159, "heldout": 10}, "has 158 train prompts: set at most 158"),
        ({"task": "single_sum", "batch_groups": 158, "heldout": 53}, "has 52 heldout prompts: set at most 52"),
    ):
        config = setup.settings_for(str(model), {"run": flags}, env={})
        with pytest.raises(LocalFault, match=re.escape(sentence)):
            setup.init(tmp_path / "run", str(model), config, now=NOW)
    assert not (tmp_path / "run").exists()


def mixed(folder: Path, model: Path, task: str, **flags: object) -> setup.Run:
    config = setup.settings_for(str(model), {"run": {"task": task} | flags}, env={})
    return setup.init(folder, str(model), config, now=NOW)


def test_prompts_that_never_come_again_are_not_chosen_by_their_last_groups() -> None:
    small, large = (TaskFacts(name, 1, "single", train, 1_000) for name, train in (("math", 7_000), ("gym", 1_000_000)))
    config = configuration.parse({"run": {"prompts": "variance"}}, source="it")
    assert without_records(config, [small]) == []
    assert without_records(config, [small, large]) == ["gym"], "in a mix it keeps its order"
    with pytest.raises(SettingsFault, match=r"run\.prompts goes by a prompt's last groups, but task gym has 1,000,000"):
        without_records(config, [large])
    assert without_records(CoordinatorConfig(), [large]) == []


def test_several_tasks_are_signed_with_their_weights_and_bind_the_run(tmp_path: Path, model: Path) -> None:
    home = mixed(tmp_path / "run", model, "3 add + reverse", heldout=20).folder.path
    run = load(home)
    signed = [(task.name, task.kind, task.weight) for task in run.runspec.tasks]
    assert signed == [("add", "pure", 3), ("reverse", "pure", 1)]
    assert [place.name for place in run.tasks] == ["add", "reverse"]
    replace_in_config(home, '"3 add + reverse"', '"3 add +  1 reverse"')
    assert load(home).runspec == run.runspec
    replace_in_config(home, '"3 add +  1 reverse"', '"2 add + reverse"')
    with pytest.raises(SettingsFault, match=r"run.task is '2 add \+ reverse', but this run was signed with '3 add \+"):
        load(home)


@pytest.mark.parametrize("task", ["math:small", "gym:large + math:small"])
def test_a_number_of_heldout_prompts_that_nobody_set_is_at_most_the_tasks(
    task: str, tmp_path: Path, model: Path
) -> None:
    said = list[str]()

    def inspect(place: TaskPlace, *_: object) -> tuple[TaskFacts, list[int]]:
        return TaskFacts(place.name, 1, place.kind, 500, 52 if "small" in place.name else 60), [3]

    config = setup.settings_for(str(model), {"run": {"task": task}}, env={})
    setup.init(tmp_path / "run", str(model), config, now=NOW, report=said.append, inspect=inspect)
    assert (config.run.heldout, load(tmp_path / "run").config.run.heldout) == (64, 52)
    assert said.count("run.heldout is 52: task math:small has no more held-out prompts") == 1
    config = setup.settings_for(str(model), {"run": {"task": task, "heldout": 64}}, env={})
    with pytest.raises(SettingsFault, match=r"task \w+:\w+ has (52|60) heldout prompts: set at most"):
        setup.init(tmp_path / "other", str(model), config, now=NOW, inspect=inspect)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"run": {"task": "revers"}}, "there is no task revers; did you mean reverse?"),
        ({"run": {"task": "math+"}}, "there is no task math+; did you mean math?"),
        ({"learner": {"device": "cudda"}}, "learner.device: 'cudda' is no device: use auto, cuda, "),
        ({"learner": {"device": "gpu"}}, "learner.device: 'gpu' is no device: use auto, cuda, "),
        (
            {"learner": {"device": "cuda"}},
            "learner.device is cuda, which this machine cannot use (no such card): set auto",
        ),
        ({"learner": {"device": "cuda:3"}}, "learner.device is cuda:3, which this machine cannot use"),
        ({"learner": {"device": "mps"}}, "learner.device is mps, which this machine cannot use"),
        ({"learner": {"device": "vulkan"}}, "learner.device: this engine does not compute on vulkan: use auto or cuda"),
        (
            {"scorer": {"devices": ("cuda:1",)}},
            "scorer.devices is cuda:1, which this machine cannot use (no such card)",
        ),
        ({"scorer": {"devices": ("cpu", "gpu")}}, "scorer.devices: 'gpu' is no device: use auto, cuda, "),
        ({"run": {"task": "single_sum", "heldout": 53}}, "has 52 heldout prompts: set at most 52"),
    ],
)
def test_what_can_be_refused_without_the_model_is_refused_before_it_is_loaded(
    settings: dict[str, dict[str, object]], sentence: str, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computing, "device_by_torch", lambda name: ("", "", "no such card"))
    config = setup.settings_for(str(model), {**settings, "run": {"task": "reverse"} | settings.get("run", {})}, env={})
    with pytest.raises(LocalFault, match=re.escape(sentence)):
        setup.init(tmp_path / "run", str(model), config, now=NOW, report=pytest.fail, check_model=pytest.fail)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_a_run_whose_device_is_misspelt_does_not_start(home: Path) -> None:
    with pytest.raises(SettingsFault, match=r"learner\.device: 'gpu' is no device"):
        setup.load_run(home, env={}, now=NOW, flags={"learner": {"device": "gpu"}})


@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_a_run_that_does_not_fit_on_its_card_is_refused_with_the_setting_that_does(
    device: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card is a stand-in of 80 GB, the model of Qwen3-4B's size."""
    counted = MemoryCounted(
        parameters=4_022_468_096, layers=6_145_964, again=199_692, layer=170_792, layer_parameters=100_930_816,
        words=151_936, width=2560, card=80 * 10**9,
    )  # fmt: skip
    monkeypatch.setattr(model_folder, "count_memory", lambda folder, compute: counted)
    monkeypatch.setattr(learner_checks, "computing_of", lambda learner, scorer: Computing("cuda:0", 1, ""))
    model = RunFolder(home).model

    def config(**learner: object) -> CoordinatorConfig:
        return setup.settings_for("tiny", {"run": {"limit": 8192}, "learner": {"device": device, **learner}}, env={})

    with pytest.raises(SettingsFault, match=r"needs 82\.0 GB of a card .* optimiser_state host, .* it fits"):
        learner_checks.check_card(model, config())
    for state in ("host", "8bit"):
        learner_checks.check_card(model, config(optimiser_state=state))
    monkeypatch.setattr(learner_checks, "computing_of", lambda learner, scorer: Computing("cpu", 1, ""))
    learner_checks.check_card(model, config())


def test_what_loading_shows_is_refused_or_reported_before_anything_is_signed(tmp_path: Path, model: Path) -> None:
    config = setup.settings_for(str(model), {"run": {"task": "reverse"}}, env={})

    def refuse(folder: Path) -> list[str]:
        assert folder == model
        raise LocalFault("lm_head.weight is missing")

    said = list[str]()
    with pytest.raises(LocalFault, match="lm_head"):
        setup.init(tmp_path / "run", str(model), config, now=NOW, report=said.append, check_model=refuse)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
    assert any("first prompt" in one for one in said)
    setup.init(tmp_path / "run", str(model), config, now=NOW, report=said.append, check_model=lambda _: ["it is big"])
    assert said.index("it is big") < said.index("making keys, Root and RunSpec")


@pytest.mark.slow
def test_no_run_is_made_of_a_mix_with_a_task_that_cannot_be_learned(tmp_path: Path, model: Path) -> None:
    for task, flags, sentence in (
        ("add + reverze", {}, "there is no task reverze; did you mean reverse? known are add, "),
        ("add + 0 reverse", {}, "run.task gives reverse the weight 0: write a whole number from 1 to 1000"),
        ("add + nan reverse", {}, "run.task gives reverse the weight nan: "),
        ("add + reverse + add", {}, "run.task names add 2 times: "),
        ("add + gym:chain_sum", {"kind": "pure"}, "task gym:chain_sum is not in this build, which has"),
        (
            "add + gym:chain_sum",
            {"kind": "pure"},
            'or correct the name; run.kind = "pure" is for tasks of this build alone',
        ),
        ("add + guess", {"kind": "single"}, 'its episodes have up to 2 sampled turns: set run.kind = "served"'),
        ("3 single_sum + reverse", {"batch_groups": 211}, "single_sum has 158 train prompts: set at most 210"),
        ("single_sum + reverse", {"heldout": 53}, "task single_sum has 52 heldout prompts: set at most 52"),
        ("reverse + add", {"template": "chat"}, 'run.template = "chat" is for tasks whose code runs at the operator'),
    ):
        with pytest.raises(LocalFault, match=re.escape(sentence)):
            mixed(tmp_path / "run", model, task, **{"heldout": 10} | flags)
    assert not (tmp_path / "run").exists()


def test_no_run_is_made_of_a_mix_with_a_prompt_longer_than_the_models_context(tmp_path: Path, model: Path) -> None:
    (model / "config.json").write_text('{"vocab_size": 64, "eos_token_id": 1, "max_position_embeddings": 21}')
    with pytest.raises(LocalFault, match=r"a prompt of task add has \d+ tokens: together more than the 21 of"):
        mixed(tmp_path / "run", model, "reverse + add", heldout=10)
    assert not (tmp_path / "run").exists()


def test_a_run_named_as_a_model_is_told_where_its_model_is(tmp_path: Path, home: Path) -> None:
    config = setup.settings_for(str(home), {"run": {"name": "again", "task": "reverse"}}, env={})
    with pytest.raises(LocalFault, match=re.escape(f"{home} is the folder of a run: name {home}@VERSION")):
        setup.init(tmp_path / "again", str(home), config, now=NOW)


def test_no_tiny_model_is_made_of_prompts_longer_than_its_context(tmp_path: Path) -> None:
    config = setup.settings_for("tiny", {"run": {"name": "long", "task": "reverse + add"}}, env={})
    short = msgspec.structs.replace(first_model.default_warm_up(), shape={"max_position_embeddings": 8})
    with pytest.raises(LocalFault, match=r"--model tiny has a context of 8 tokens, and a prompt of task \w+ has \d+"):
        setup.init(tmp_path / "run", "tiny", config, now=NOW, warm_up=short)
    assert not (tmp_path / "run").exists()


def replace_in_config(home: Path, old: str, new: str) -> None:
    text = (home / "coordinator.toml").read_text()
    assert old in text
    (home / "coordinator.toml").write_text(text.replace(old, new))


def put_other_key(home: Path) -> None:
    (home / "keys/ledger.pem").unlink()
    write_key(home / "keys/ledger.pem", generate_key())


def root_of(home: Path) -> Root:
    return load(home).root


def put_second_root(home: Path, serial: int, run: bytes | None = None, foreign: bool = False) -> None:
    root = msgspec.structs.replace(root_of(home), serial=serial)
    key = generate_key() if foreign else load_key(home / "keys/root.pem")
    (home / "root/2.root").write_bytes(seal("root", run or root.run, encode(root), key))


def put_foreign_runspec(home: Path) -> None:
    run = load(home)
    (home / "run.spec").write_bytes(seal("runspec", run.id, encode(run.runspec), generate_key()))


@pytest.mark.parametrize(
    ("kind", "signed", "fits"),
    [("served", "opened", True), ("auto", "opened", True), ("served", "served", True), ("single", "opened", False)],
)
def test_a_run_of_a_served_task_that_opens_its_episodes_starts_again_with_its_own_settings(
    kind: str, signed: str, fits: bool
) -> None:
    config = setup.settings_for("tiny", {"run": {"task": "deal", "kind": kind}}, env={})
    spec = msgspec.structs.replace(SPEC, tasks=[TaskReference(name="deal", version=1, kind=signed)])
    if fits:
        setup.check_task(config, spec)
    else:
        with pytest.raises(SettingsFault, match=r"run\.kind is 'single', but this run was signed with 'served'"):
            setup.check_task(config, spec)


DAMAGE: dict[str, tuple[Callable[[Path], object], type[LocalFault], str]] = {
    "no settings": (
        lambda h: (h / "coordinator.toml").unlink(),
        SettingsFault,
        "no run in .*: name its folder with --home, or make one with `echo2-coord init",
    ),
    "another S than signed": (
        lambda h: replace_in_config(h, "staleness = 4", "staleness = 5"),
        SettingsFault,
        "run.staleness is 5, but this run was signed with 4, .* make another run",
    ),
    "another temperature than signed": (
        lambda h: replace_in_config(h, "staleness = 4", "temperature = 0.8\nstaleness = 4"),
        SettingsFault,
        "run.temperature is 0.8, but this run was signed with 1.0",
    ),
    "another task than signed": (
        lambda h: replace_in_config(h, 'task = "reverse"', 'task = "add"'),
        SettingsFault,
        "run.task is 'add', but this run was signed with 'reverse'",
    ),
    "other engines than signed": (
        lambda h: replace_in_config(h, "transformers/float32", "llamacpp"),
        SettingsFault,
        "run.engines is",
    ),
    "more groups than prompts": (
        lambda h: replace_in_config(h, "batch_groups = 4", "batch_groups = 9001"),
        SettingsFault,
        "run.batch_groups is 9001, but task reverse has 9000 train prompts",
    ),
    "a key open to others": (
        lambda h: (h / "keys/policy.pem").chmod(0o644),
        LocalFault,
        "open to others: run chmod 600",
    ),
    "a missing key": (lambda h: (h / "keys/channel.pem").unlink(), LocalFault, "put it back from your backup"),
    "another run's key": (put_other_key, LocalFault, "is not this run's ledger key"),
    "a damaged key": (lambda h: (h / "keys/policy.pem").write_text("x"), LocalFault, "it is no PEM key"),
    "no Root": (lambda h: (h / "root/1.root").unlink(), LocalFault, "no Root in"),
    "a torn Root": (lambda h: (h / "root/1.root").write_bytes(b"\x94"), Untrusted, "Root 1 is damaged"),
    "a second Root signed by another key": (
        lambda h: put_second_root(h, 2, foreign=True),
        Untrusted,
        "Root 2 is damaged or not signed.*put the files in .*root back from your backup",
    ),
    "a gap among its Roots": (
        lambda h: (h / "root/3.root").write_bytes(b"\x94"),
        LocalFault,
        "2.root is missing, and Root 3 is there: put it back",
    ),
    "a second Root out of order": (
        lambda h: put_second_root(h, 3),
        Untrusted,
        "Root 2 .*a Root with serial 3 cannot follow serial 1",
    ),
    "a second Root of another run": (
        lambda h: put_second_root(h, 2, run=bytes(32)),
        Untrusted,
        "Root 2 is damaged or not signed",
    ),
    "no file of the model": (
        lambda h: (h / "model/config.json").unlink(),
        LocalFault,
        "cannot read .*config.json: No such file or directory; put it back from your backup",
    ),
    "half of the model's weights": (
        lambda h: os.truncate(h / "model/model.safetensors", 1000),
        LocalFault,
        r"model.safetensors is damaged \(.*\): put it back from your backup",
    ),
    "no RunSpec": (lambda h: (h / "run.spec").unlink(), LocalFault, "run.spec.* put it back"),
    "a RunSpec signed by another key": (
        put_foreign_runspec,
        Untrusted,
        "the RunSpec is not signed by this run's root key",
    ),
    "no model": (lambda h: (h / "model/model.safetensors").unlink(), LocalFault, "cannot read .*model.safetensors"),
    "a torn model": (lambda h: (h / "model/model.safetensors").write_bytes(b"\xff" * 99), LocalFault, "header claims"),
    "another tokenizer": (
        lambda h: (h / "model/tokenizer.json").write_text("{}"),
        Untrusted,
        "tokenizer.json is not the file whose hash the RunSpec signs",
    ),
    "no tokenizer": (lambda h: (h / "model/tokenizer.json").unlink(), LocalFault, "cannot read .*tokenizer.json"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_run_folder_does_not_load_with(what: str, home: Path) -> None:
    damage, kind, sentence = DAMAGE[what]
    damage(home)
    before = contents(home)
    with pytest.raises(LocalFault, match=sentence) as fault:
        load(home)
    assert isinstance(fault.value, kind)
    assert isinstance(fault.value, Untrusted) is issubclass(kind, Untrusted)
    assert "\n" not in str(fault.value)
    assert contents(home) == before


def test_a_folder_without_a_run_lacks_a_run_and_no_root(tmp_path: Path) -> None:
    with pytest.raises(LocalFault, match=f"no run in {tmp_path}: name its folder with --home"):
        setup.read_documents(RunFolder(tmp_path))


def test_a_second_root_signed_by_the_first_is_loaded(home: Path) -> None:
    put_second_root(home, 2)
    run = load(home)
    assert (run.root.serial, len(run.roots)) == (2, 2)


def test_a_run_whose_root_has_expired_does_not_load(home: Path) -> None:
    with pytest.raises(Untrusted, match="Root 1 has expired"):
        setup.load_run(home, env={}, now=NOW + ROOT_LIFE)


def test_a_folder_with_keys_and_no_settings_is_refused(home: Path, model: Path) -> None:
    (home / "coordinator.toml").unlink()
    config = setup.settings_for(str(model), {"run": {"name": "a run", "task": "reverse"}}, env={})
    with pytest.raises(LocalFault, match=r"contains keys and no coordinator\.toml: an init was killed"):
        setup.init(home, str(model), config, now=NOW)


def test_a_model_in_a_hubs_cache_is_named_as_the_hub_names_it(tmp_path: Path) -> None:
    revision = tmp_path / "models--Org--Small-1B" / "snapshots" / "0123abcd"
    revision.mkdir(parents=True)
    named = {
        str(folder): setup.settings_for(str(folder), {}, {}).run.model for folder in (revision, tmp_path / "own-model")
    }
    assert list(named.values()) == ["Org/Small-1B", "own-model"]
