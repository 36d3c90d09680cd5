"""Creating a run folder (`init`), and loading a run from it (`load_run`).

1. `init` builds the whole folder in a draft beside its destination (coordinator/run/draft.py) and moves it there at the
   end, coordinator.toml last: a folder with coordinator.toml is complete. It never changes a folder that is not empty.
2. `load_run` reads and checks settings, Roots, RunSpec, model and keys before the coordinator opens or binds anything.
   It neither needs nor reads the root key. It renews a certificate near its end.
3. The signed values of the RunSpec bind every node. Settings that differ from them are refused: to change them, make
   another run.
"""

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.environments.task_host import TaskFacts, facts_of
from echo2.coordinator.learner.messages import WarmUp
from echo2.coordinator.run import (
    chat_settings,
    first_model,
    https_identity,
    keys,
    model_folder,
    root_keys,
    signing,
    task_mix,
)
from echo2.coordinator.run.admitted_classes import check_admitted, check_devices
from echo2.coordinator.run.disk_room import check_room_to_make
from echo2.coordinator.run.draft import check_free, drafting, settle
from echo2.coordinator.run.keys import RunKeys
from echo2.coordinator.run.learner_checks import check_card, check_libraries, check_memory, check_ranks
from echo2.coordinator.run.price_mode import check_price_mode, currency_of
from echo2.coordinator.run.root_files import read_document, root_files
from echo2.coordinator.run.root_keys import ONE_HERE, RootPlan
from echo2.coordinator.run.task_processes import (
    TaskPlace,
    check_family,
    check_sizes,
    fit_heldout,
    format_tokens,
    inspect_task,
    kind_of,
    without_records,
)
from echo2.coordinator.settings import config as configuration
from echo2.coordinator.settings import config_docs
from echo2.coordinator.settings.computing import check_present
from echo2.coordinator.settings.config import CoordinatorConfig, EnvironmentSection, Settings
from echo2.coordinator.settings.training_config import RunSection
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.errors import LocalNetworkFault
from echo2.p2p.identity import peer_id, public_bytes
from echo2.p2p.swarm.manifest import manifest_of
from echo2.protocol import root_chain
from echo2.protocol.authority import PLAIN_TEMPERATURE, Root, RunSpec, TaskReference
from echo2.protocol.root_chain import Untrusted
from echo2.protocol.task_kinds import ANSWERED_KINDS, PURE_KIND, SERVED_KIND
from echo2.runtime.errors import LocalFault
from echo2.runtime.files import writing
from echo2.runtime.settings import SettingsFault
from echo2.runtime.surroundings import sentence_of
from echo2.tasks.chat import ChatSettings
from echo2.weights import hub_cache, hub_fetch
from echo2.weights.errors import WeightsError
from echo2.weights.lora.adapter_config import CONFIG as ADAPTER
from echo2.weights.lora.adapter_folder import AdapterOrder, make_adapter

SHOWN_CHARACTERS: Final = 2000
"""Characters of a task's first prompt that are reported."""
PRESETS: Final[Mapping[str, Settings]] = {
    model_folder.TINY_MODEL: {"run": {"task": "reverse", "group_size": 16, "batch_groups": 16, "limit": 8}},
    model_folder.SMOLLM2: {
        "run": {"task": "single_sum", "group_size": 8, "batch_groups": 4, "limit": 16},
        "learner": {"learning_rate": 2e-5},
    },
}
"""Model -> settings that suit it. A model given as the path of a folder gets those of smollm2."""


@dataclass
class Run:
    """A run's folder, settings, keys and documents, verified. `roots`: sealed, oldest first; `chain`: the same,
    decoded. `take` changes its keys, Roots and the RunSpec's signatures; training/live_settings.py changes its
    settings."""

    folder: RunFolder
    config: CoordinatorConfig
    keys: RunKeys
    roots: tuple[bytes, ...]
    chain: tuple[Root, ...]
    runspec_sealed: bytes
    runspec: RunSpec
    https_pin: bytes | None = None
    """SHA-256 of the HTTPS key (SPKI); None: no HTTPS."""
    flags: Settings = field(default_factory=dict)
    """Settings of the command line, which override the file for as long as this process lives."""

    @property
    def root(self) -> Root:
        return self.chain[-1]

    @property
    def id(self) -> bytes:
        """The run id, 32 bytes."""
        return self.root.run

    @property
    def tasks(self) -> tuple[TaskPlace, ...]:
        """The run's tasks, and where each is hosted."""
        return task_places(self.folder, self.runspec, self.config.run)

    @property
    def task(self) -> TaskPlace:
        """The run's task, and where it is hosted; of several the first."""
        return self.tasks[0]

    @property
    def peer_id(self) -> str:
        """The coordinator's peer id: that of the identity with which it started."""
        return peer_id(public_bytes(self.keys.network))

    def take(self, newer: "Run") -> None:
        """Replace keys, Roots and sealed RunSpec by those of `newer`, the same run read again. The network identity
        stays until the next start."""
        self.keys = replace(newer.keys, network=self.keys.network)
        self.roots = newer.roots
        self.chain = newer.chain
        self.runspec_sealed = newer.runspec_sealed

    def invite(self, listening: Sequence[str] = ()) -> str:
        """Return the invite's text. `listening`: the actual listening addresses; empty: take those of the settings."""
        return invite(self.config, self.roots, self.root.run, self.peer_id, self.https_pin, listening)


def invite(
    config: CoordinatorConfig,
    roots: Sequence[bytes],
    run: bytes,
    peer: str,
    https_pin: bytes | None,
    listening: Sequence[str] = (),
) -> str:
    """Return the invite's text; no private key is needed. `run`: its id. `peer`: the coordinator's peer id. Raises
    `SettingsFault` if the addresses are too many or too long."""
    addresses = https_identity.reachable_addresses(config, peer, listening)
    root_hash = root_chain.root_hash(roots[0])
    try:
        return Invite(run=run, root_hash=root_hash, addresses=addresses, https_key=https_pin).to_text()
    except ValueError as error:
        raise SettingsFault(f"network.advertise: {error}") from error


def settings_for(
    model: str, flags: Settings, env: Mapping[str, str] = os.environ, *, name: str | None = None
) -> CoordinatorConfig:
    """Return the settings of a new run: flags override variables, which override the model's preset. `name`: the run's
    where neither says one. Raises `SettingsFault`, `LocalFault`."""
    preset = PRESETS.get(model, PRESETS[model_folder.SMOLLM2])
    merged: dict[str, dict[str, Any]] = {section: dict(values) for section, values in preset.items()}
    of_hub = hub_fetch.parse(model)
    if of_hub is not None:
        merged["run"]["model"] = of_hub.model
    else:
        merged["run"]["model"] = model if model in PRESETS else hub_cache.name_of(Path(model))
    if name:
        merged["run"]["name"] = name
    return configuration.parse(merged, source="init", env=env, flags=flags)


def init(
    folder: Path,
    model: str,
    config: CoordinatorConfig,
    *,
    now: int,
    warm_up: WarmUp | None = None,
    adapter: AdapterOrder | None = None,
    secret: str | None = None,
    report: Callable[[str], None] = lambda text_line: None,
    inspect: Callable[[TaskPlace, EnvironmentSection, int], tuple[TaskFacts, list[int]]] = inspect_task,
    root_plan: RootPlan = ONE_HERE,
    check_model: Callable[[Path], Sequence[str]] = lambda model: (),
    check_task: Callable[[str], None] = check_family,
) -> Run:
    """Make the run folder and return the run. `model`: tiny, smollm2, the path of a model folder, or hf:ORG/NAME of
    the hub. `warm_up`: settings for making `tiny`; its folder and task are filled in here. `adapter`: makes the
    versions an adapter over a frozen base; None: whole models. `now`: milliseconds. `secret`: passphrase of the keys.
    `report`: gets a line per part.
    `inspect`: opens the task, as `inspect_task` does. `root_plan`: the root keys; the default: one, in the run folder.
    `check_model`: loads the model of a folder, as `model_folder.check_model` does, and returns remarks; by default the
    caller knows that it can be trained. `check_task`: checks the name of a task that `inspect` opens. Raises
    `LocalFault`, `SettingsFault`; no run has been made then.
    """
    target, opened = RunFolder(folder), None
    model, config = _check_before(target, model, config, adapter, report, check_task)
    if model not in PRESETS:
        opened = _open_tasks(Path(model), config, inspect, report)
        report(f"loading {model}, to see whether it can be trained")
        for remark in check_model(Path(model)):
            report(remark)
    with drafting(folder) as draft:
        try:
            _make_model(draft.model, model, config, warm_up, adapter, report)
            config, tasks, chat = opened or _open_tasks(draft.model, config, inspect, report)
            report("making keys, Root and RunSpec")
            _make_documents(draft, config, tasks, now, secret, chat_settings.hash_of(chat), root_plan)
            _write(draft.config, config_docs.toml(config).encode())
            settle(draft, target)
        except WeightsError as error:
            raise LocalFault(str(error)) from error
        except OSError as error:
            raise LocalFault(sentence_of(error, f"cannot make {folder}: {error.strerror}")) from error
    return load_run(folder, env={}, now=now, secret=secret)


def _check_before(
    target: RunFolder,
    model: str,
    config: CoordinatorConfig,
    adapter: AdapterOrder | None,
    report: Callable[[str], None],
    check_task: Callable[[str], None],
) -> tuple[str, CoordinatorConfig]:
    """Check all that `init` can check before it opens a task, and fetch a model of the hub. Return the model, tiny,
    smollm2 or the path of a folder, and the settings as `_check_asked` leaves them. Raises `LocalFault`,
    `SettingsFault`."""
    check_libraries()
    check_free(target)
    if model not in PRESETS and hub_fetch.parse(model) is None:
        model_folder.check_importable(Path(model))
    config = _check_asked(config, report, check_task)
    if adapter is not None:
        check_ranks(config.learner)
    model = model_folder.fetch_named(model, report)
    if model not in PRESETS:
        model_folder.check_importable(Path(model))
    check_room_to_make(target.path, model, config.scorer.own_number, trains_all=adapter is None)
    return model, config


def _make_model(
    place: Path,
    model: str,
    config: CoordinatorConfig,
    warm_up: WarmUp | None,
    adapter: AdapterOrder | None,
    report: Callable[[str], None],
) -> None:
    """Make the model's folder at `place`, as `init` is asked."""
    takes = ", which takes about 40 s of a processor" if model == model_folder.TINY_MODEL else ""
    report(f"making model {config.run.model}{takes}")
    first_model.make_model(place, model, warm_up or first_model.default_warm_up(), config)
    if adapter is None:
        check_card(place, config)
    else:
        report(f"making adapter of rank {adapter.rank} over a frozen base in {adapter.base}")
        make_adapter(place, adapter, config.learner.seed)


def _check_asked(
    config: CoordinatorConfig, report: Callable[[str], None], check_task: Callable[[str], None]
) -> CoordinatorConfig:
    """Check all that needs neither model nor environment; return the settings with `run.heldout` as the tasks of this
    build allow. Raises `SettingsFault`, `LocalFault`."""
    currency_of(config)
    mix = task_mix.parse_mix(config.run.task)
    share = task_mix.shares_of(mix)
    for task in mix:
        kind = kind_of(config.run, task.name)
        chat_settings.check(config.run, kind)
        if kind == PURE_KIND:
            facts = facts_of(model_folder.task_named(task.name))
            config = fit_heldout(config, facts, report)
            check_sizes(config, facts, share[task.name])
        else:
            check_task(task.name)
    check_admitted(config.run)
    check_devices(config.learner, config.scorer)
    check_present(config.learner, config.scorer)
    if config.scorer.ray:
        from echo2.coordinator.ray_scorers.cluster_check import check_cluster  # a run without Ray loads none of it

        check_cluster(config.scorer)
    check_memory(config.run)
    return config


def _open_tasks(
    model: Path,
    config: CoordinatorConfig,
    inspect: Callable[[TaskPlace, EnvironmentSection, int], tuple[TaskFacts, list[int]]],
    report: Callable[[str], None],
) -> tuple[CoordinatorConfig, list[TaskFacts], ChatSettings | None]:
    """Open each task with the tokenizer of a model's folder, check its sizes, and report it. Return the settings with
    `run.heldout` as the tasks allow, the tasks, and how prompts are written."""
    places, tasks = _task_places(model, config.run), list[TaskFacts]()
    share = task_mix.shares_of(task_mix.parse_mix(config.run.task))
    for place in places:
        facts, prompt = inspect(place, config.environment, config.run.limit)
        config = fit_heldout(config, facts, report)
        check_sizes(config, facts, share[facts.name])
        _report_task(place, facts, prompt, report)
        tasks.append(facts)
    for remark in chat_settings.remarks_of(model, places[0].chat):
        report(remark)
    for name in without_records(config, tasks):
        report(f"task {name} has too many prompts to come again: they keep their order")
    return config, tasks, places[0].chat


def _report_task(place: TaskPlace, facts: TaskFacts, prompt: list[int], report: Callable[[str], None]) -> None:
    """Report how many prompts a task has, what it says of its data, and the first prompt as the policy will see it."""
    report(f"task {facts.name}: {facts.train} prompts in train, {facts.heldout} in heldout")
    for remark in facts.remarks:
        report(f"  {remark}")
    said = model_folder.tokenizer(place.model, place.ends).decode(prompt)
    report(f"  its first prompt is {said[:SHOWN_CHARACTERS]!r}{' ...' * (len(said) > SHOWN_CHARACTERS)}")
    report(f"  = {format_tokens(prompt)}")


def load_run(
    folder: Path,
    *,
    now: int,
    env: Mapping[str, str] = os.environ,
    flags: Settings | None = None,
    secret: str | None = None,
) -> Run:
    """Load and verify a run (rule 2). `now`: milliseconds. Raises `SettingsFault`, `Untrusted` and `LocalFault`; each
    message is one line and names the fix."""
    place = RunFolder(folder)
    if place.restoring.exists() and not place.database.exists():
        raise LocalFault(f"a `restore` into {place.path} was cut off before run.sqlite was in place: restore it again")
    config = configuration.load(place.config, env=env, flags=flags)
    roots, chain, sealed, spec = read_documents(place)
    signing.check_life(chain[-1], now)
    check_signed(config.run, spec)
    check_devices(config.learner, config.scorer)
    check_price_mode(config, spec)
    check_task(config, spec)
    _check_prompts(place, config.run, spec)
    check_model(place, spec)
    model_folder.check_context(place.model, spec.limit)
    check_memory(config.run)
    if (place.model / ADAPTER).exists():
        check_ranks(config.learner)
    run_keys = keys.load(place, chain, secret)
    if config.https.listen:
        https_identity.prepare(place, peer_id(keys.identity(chain)), now, secret)
    return Run(place, config, run_keys, roots, chain, sealed, spec, https_identity.pin(place, config), flags or {})


def read_again(run: Run, secret: str | None) -> Run:
    """Return the run with keys and documents read again from its folder. Raises `Untrusted`, `LocalFault`."""
    roots, chain, sealed, spec = read_documents(run.folder)
    if spec != run.runspec:
        raise Untrusted(f"{run.folder.runspec} is another RunSpec than the one that this coordinator runs: put it back")
    return replace(run, keys=keys.load(run.folder, chain, secret), roots=roots, chain=chain, runspec_sealed=sealed)


def read_documents(place: RunFolder) -> tuple[tuple[bytes, ...], tuple[Root, ...], bytes, RunSpec]:
    """Read and verify (sealed Roots, the same decoded, sealed RunSpec, RunSpec). The caller checks whether the newest
    Root has expired. Raises `Untrusted`, `LocalFault`."""
    if place.sealed_keys.exists():
        raise LocalFault(
            f"{place.path} is restored from a backup and has no keys yet: once the other coordinator of this run has "
            f"stopped for good, say so by `echo2-coord restored --home {place.path}`"
        )
    roots = tuple(read_document(path) for path in root_files(place))
    try:
        chain = tuple(root_chain.check_chain(roots))
    except Untrusted as error:
        raise Untrusted(f"{error}: put the files in {place.roots} back from your backup") from error
    sealed = read_document(place.runspec)
    return roots, chain, sealed, root_chain.check_runspec(sealed, chain[-1])


def check_signed(settings: RunSection, spec: RunSpec) -> None:
    """Check the settings against the signed RunSpec (rule 3). Raises `SettingsFault` for the first that differs."""
    signed = {key: getattr(spec, key) for key in configuration.SIGNED_KEYS if key not in ("task", "engines")}
    signed |= {"task": task_mix.text_of(spec.tasks), "engines": tuple(spec.engines)}
    signed["temperature"] = spec.temperature / PLAIN_TEMPERATURE
    for key in configuration.SIGNED_KEYS:
        wanted = getattr(settings, key) if key != "task" else task_mix.text_of(task_mix.parse_mix(settings.task))
        if wanted != signed[key]:
            raise SettingsFault(
                f"run.{key} is {wanted!r}, but this run was signed with {signed[key]!r}, which binds nodes: "
                "set it back, or make another run with `echo2-coord init`"
            )


def check_task(config: CoordinatorConfig, spec: RunSpec) -> None:
    """Check the settings of the tasks. The sizes of one that is not pure are checked where it is opened. Raises
    `SettingsFault`, `LocalFault`."""
    share = task_mix.shares_of(spec.tasks)
    for task in spec.tasks:
        asked = SERVED_KIND if task.kind in ANSWERED_KINDS else task.kind
        if config.run.kind not in ("auto", asked):
            raise SettingsFault(
                f"run.kind is {config.run.kind!r}, but this run was signed with {asked!r}, which binds nodes: "
                "set it back, or make another run with `echo2-coord init`"
            )
        if task.kind == PURE_KIND:
            check_sizes(config, facts_of(model_folder.task_named(task.name, task.version)), share[task.name])


def _check_prompts(place: RunFolder, section: RunSection, spec: RunSpec) -> None:
    """Check that prompts are written as the RunSpec says. Raises `SettingsFault`, `LocalFault`."""
    for task in spec.tasks:
        if chat_settings.hash_of(chat_settings.settings_of(place.model, section, task.kind)) != task.settings_hash:
            raise SettingsFault(
                "run.template, run.thinking or the model folder's chat template is another one than this run was "
                "signed with: set it back, or make another run with `echo2-coord init`"
            )


def task_places(place: RunFolder, spec: RunSpec, section: RunSection) -> tuple[TaskPlace, ...]:
    """Return the tasks of a run, and where each is hosted. Raises `LocalFault`."""
    return tuple(_task_place(place.model, spec, section, task) for task in spec.tasks)


def _task_place(model: Path, spec: RunSpec, section: RunSection, task: TaskReference) -> TaskPlace:
    chat = chat_settings.settings_of(model, section, task.kind)
    return TaskPlace(task.name, task.version, task.kind, model, spec.eos, spec.vocabulary, spec.other_ends, chat)


def check_all_sizes(run: Run, tasks: Sequence[TaskFacts]) -> None:
    """Check the sizes of the run's tasks, as they are now open. Raises `SettingsFault`."""
    share = task_mix.shares_of(run.runspec.tasks)
    for task in tasks:
        check_sizes(run.config, task, share[task.name])
    without_records(run.config, tasks)


def check_model(place: RunFolder, spec: RunSpec) -> None:
    """Check the model's assets against the RunSpec, and the header of its weights. Raises `LocalFault`."""
    from echo2.weights.snapshot import read_header

    for asset in spec.assets:
        try:
            manifest = manifest_of(place.model / asset.name)
        except LocalNetworkFault as error:
            raise LocalFault(f"{error}; put it back from your backup") from error
        if manifest.hash != asset.manifest.hash:
            raise Untrusted(
                f"{place.model / asset.name} is not the file whose hash the RunSpec signs: put the original back"
            )
    weights = place.model / model_folder.WEIGHTS
    try:
        with weights.open("rb") as file:
            read_header(file)
    except OSError as error:
        raise LocalFault(f"cannot read {weights}: {error.strerror}; put it back from your backup") from error
    except WeightsError as error:
        raise LocalFault(f"{weights} is damaged ({error}): put it back from your backup") from error


def _task_places(model: Path, section: RunSection) -> list[TaskPlace]:
    known, places = model_folder.facts(model), list[TaskPlace]()
    for task in task_mix.parse_mix(section.task):
        kind = kind_of(section, task.name)
        chat = chat_settings.settings_of(model, section, kind)
        places.append(TaskPlace(task.name, None, kind, model, known.eos, known.vocabulary, known.other_ends, chat))
    return places


def _make_documents(
    draft: RunFolder,
    config: CoordinatorConfig,
    tasks: Sequence[TaskFacts],
    now: int,
    secret: str | None,
    settings_hash: bytes | None,
    plan: RootPlan,
) -> None:
    model_facts = model_folder.facts(draft.model)
    run = secrets.token_bytes(32)
    online, private = keys.make(draft, secret), root_keys.make_planned(plan, draft, secret)
    https_identity.prepare(draft, peer_id(public_bytes(online["channel"])), now, secret)
    draft.roots.mkdir()
    _write(draft.roots / "1.root", signing.sign_root(run, online, private, plan.threshold, now))
    spec = signing.sign_runspec(run, config.run, tasks, model_facts, private, settings_hash, currency_of(config))
    _write(draft.runspec, spec)


def _write(path: Path, data: bytes) -> None:
    with writing(path) as file:
        file.write(data)
