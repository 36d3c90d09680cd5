"""The coordinator's settings: one frozen model, read from coordinator.toml in the run folder.

1. Precedence: a flag, then an environment variable (`ECHO2_COORD_<SECTION>_<KEY>`), then coordinator.toml, then the
   default.
2. An unknown section, key or variable is an error that names the nearest known one (runtime/settings.py). A value of
   another type is an error too: nothing is converted. Variables hold TOML values, or plain words for a text.
3. Every key has a line of explanation that names its unit, if it has one. The commented coordinator.toml and the table
   in docs/reference/settings.md are made from these lines (config_docs.py, tests/docs/settings_table.py).
4. The keys signed in the RunSpec (`SIGNED_KEYS`) cannot be changed here after `init`: coordinator.run.setup refuses.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from echo2.coordinator.settings.config_section import LIVE, Section, frozen_list
from echo2.coordinator.settings.market_config import MarketSection
from echo2.coordinator.settings.named_home import no_run_in
from echo2.coordinator.settings.network_config import HttpsSection, NetworkSection, WebSection
from echo2.coordinator.settings.payout_config import PayoutSection
from echo2.coordinator.settings.scorer_config import ScorerSection
from echo2.coordinator.settings.training_config import LearnerSection, RunSection
from echo2.runtime.settings import Loader, SettingsFault, read_toml

ENV_PREFIX = "ECHO2_COORD_"
ENV_OF_THE_COMMAND = frozenset({"ECHO2_COORD_HOME"})
"""Variables with the prefix that are not settings: the command line reads them."""
SIGNED_KEYS = (
    "name", "description", "page", "contact",
    "model", "task", "staleness", "group_size", "limit", "temperature", "compute_dtype", "engines",
)  # fmt: skip
"""Keys of [run] that are in the signed RunSpec."""

Settings = Mapping[str, Mapping[str, Any]]
"""Section -> key -> value."""


class EnvironmentSection(Section):
    """The processes in which a task of the kind single or served runs, and their limits. They have an empty environment
    and a folder of their own."""

    workers: Annotated[
        int,
        Field(ge=1, le=256, description="Number of processes. From 2 on, episodes of new keys keep to some of them."),
    ] = 1
    seconds: Annotated[
        float, Field(gt=0, le=3600, description="Most time of one prompt, score or answer; then the process is killed.")
    ] = 10.0
    opening: Annotated[float, Field(gt=0, le=86_400, description="Most seconds for opening the task.")] = 300.0
    memory_mb: Annotated[int, Field(ge=64, le=10**8, description="Most address space of a process, MiB.")] = 4096
    network: Annotated[bool, Field(description="Whether the task may open sockets (Linux; elsewhere it may).")] = False
    subprocesses: Annotated[
        bool, Field(description="Whether the task may start processes (Linux; elsewhere it may).")
    ] = False
    files: Annotated[
        tuple[Annotated[str, Field(pattern="^/", max_length=400)], ...],
        BeforeValidator(frozen_list),
        Field(description="Absolute paths that the task may read, beside its package's and that in its name (Linux)."),
    ] = ()


class LeasesSection(Section):
    """Leases of rollout work."""

    per_node: Annotated[
        int,
        LIVE,
        Field(
            ge=1,
            le=1024,
            description="Most open leases per node that is not measured yet: one at work, one prefetched, one left by "
            "a crash. A measured node gets as many as it has been seen to use.",
        ),
    ] = 3
    minimum_seconds: Annotated[
        float, LIVE, Field(gt=0, le=2_592_000, description="Shortest life of a lease, seconds.")
    ] = 30.0
    maximum_seconds: Annotated[
        float | None,
        LIVE,
        Field(
            gt=0,
            le=2_592_000,
            description="Longest life of a lease, seconds. Unset: 0.03 for each token of a group whose rollouts all "
            "reach run.limit, at least 900.",
        ),
    ] = None
    gamma: Annotated[
        float,
        LIVE,
        Field(ge=1, le=10, description="Safety factor on the rollouts per second that the learner needs."),
    ] = 1.1
    newcomers: Annotated[
        float,
        LIVE,
        Field(
            ge=0.01,
            le=0.5,
            description="Share of the leases that go to new keys, most while known keys ask for all, and the part that "
            "known keys leave them while they ask.",
        ),
    ] = 0.1
    canaries: Annotated[
        float,
        LIVE,
        Field(
            ge=0,
            le=0.05,
            description="Canaries, of all leases: leases whose answer is known, so that their groups are checked by "
            "comparison. The first group of a new key is one as well. 0: none at all.",
        ),
    ] = 0.005
    audits: Annotated[
        float,
        LIVE,
        Field(
            ge=0,
            le=0.05,
            description="Audits, of all leases: leases that a proven node of another party gets as well, so that both "
            "groups are compared. Exact classes alone. 0: none.",
        ),
    ] = 0.01

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.maximum_seconds is not None and self.minimum_seconds > self.maximum_seconds:
            raise ValueError(
                f"minimum_seconds is {self.minimum_seconds:g}, above maximum_seconds, {self.maximum_seconds:g}: "
                "lower the one, or raise the other"
            )
        return self


GuardKind = Literal[
    "gradient", "drift", "entropy-high", "entropy-low", "same-answer", "cut", "too-hard", "too-easy", "no-signal",
    "hacking", "held-out", "floor",
]  # fmt: skip
"""A way in which a run dies (coordinator/training/run_guard.py)."""


class GuardSection(Section):
    """When the run is paused, as its policy dies."""

    exams: Annotated[
        int,
        LIVE,
        Field(
            ge=1, le=1000,
            description="Evaluations in a row with less than half of the best held-out result, above the task's floor.",
        ),
    ] = 3  # fmt: skip
    warn_only: Annotated[
        tuple[GuardKind, ...],
        BeforeValidator(frozen_list),
        LIVE,
        Field(description="Ways to die of which the guard only warns, as `too-easy`: it does not pause the run."),
    ] = ()
    auto_rollback: Annotated[
        bool,
        LIVE,
        Field(
            description="Publish the best version again instead, with half the learning rate, at most three times: "
            "true or false."
        ),
    ] = False


class CalibrationSection(Section):
    """Calibrations of number formats, made by this machine's own engines."""

    every: Annotated[
        int,
        LIVE,
        Field(
            ge=0,
            le=10**9,
            description="Versions after which a Calibration is made again, where this machine can: training "
            "makes the policy more certain. 0: never.",
        ),
    ] = 200
    tokens: Annotated[
        int,
        LIVE,
        Field(
            ge=2_000,
            le=1_000_000,
            description="Least tokens per machine of a Calibration, all machines from 64 prompts.",
        ),
    ] = 4_000


class StoreSection(Section):
    """Disk space of published versions, and of rollouts."""

    budget_bytes: Annotated[
        int, LIVE, Field(ge=10**6, le=10**17, description="Most bytes of snapshots and payloads on disk.")
    ] = 20 * 10**9
    payload_bytes: Annotated[
        int,
        LIVE,
        Field(
            ge=10**3,
            le=10**17,
            description="Most bytes of payloads among them, never more than the weights take. The oldest are "
            "dropped first; those that lead to versions in use stay, and one between two versions that can still be "
            "read is rebuilt when a node requests it.",
        ),
    ] = 10 * 10**9
    rollout_bytes: Annotated[
        int,
        LIVE,
        Field(
            ge=0,
            le=10**17,
            description="Most bytes of groups in run.sqlite: tokens and log-probabilities. Beyond it the oldest go "
            "before their 24 hours end, except what the learner, an audit or an appeal may still need.",
        ),
    ] = 2 * 10**9


class LedgerSection(Section):
    """The ledger of accepted work."""

    head_seconds: Annotated[
        int,
        LIVE,
        Field(
            ge=1,
            le=86_400,
            description="Seconds between two signed heads of the ledger, which show nodes that it only grows. No "
            "head is signed while nothing is added.",
        ),
    ] = 900


class CoordinatorConfig(Section):
    """All settings of a coordinator."""

    run: RunSection = RunSection()
    learner: LearnerSection = LearnerSection()
    scorer: ScorerSection = ScorerSection()
    network: NetworkSection = NetworkSection()
    https: HttpsSection = HttpsSection()
    environment: EnvironmentSection = EnvironmentSection()
    web: WebSection = WebSection()
    leases: LeasesSection = LeasesSection()
    guard: GuardSection = GuardSection()
    calibration: CalibrationSection = CalibrationSection()
    ledger: LedgerSection = LedgerSection()
    store: StoreSection = StoreSection()
    payout: PayoutSection = PayoutSection()
    market: MarketSection = MarketSection()

    @model_validator(mode="after")
    def _reaches_the_next_version(self) -> Self:
        # With more than S + 1 steps between versions no group is fresh enough for the last steps: the run would stop.
        period = self.run.publish_every
        if period != "auto" and period > self.run.staleness + 1:
            raise ValueError(
                f"run.publish_every is {period}; with run.staleness {self.run.staleness} it can be at most "
                f"{self.run.staleness + 1}"
            )
        return self

    @model_validator(mode="after")
    def _serves_scorers(self) -> Self:
        if self.scorer.ray and not self.https.listen:
            raise ValueError("scorer.ray needs https.listen: scorers on other hosts fetch versions over HTTPS")
        return self


REMOVED: Final = {
    "learner.contrast": "half of each group taught less (docs/results/selection.md)",
    "learner.cut_penalty": "the penalty is 1",
    "guard.heldout_share": "the share is a half; guard.warn_only can name held-out",
    "payout.question_days": "it is 7 days",
    "payout.watch_days": "it is 60 days",
}
"""Keys of earlier commits -> reason why they are gone."""
_LOADER: Final = Loader(CoordinatorConfig, ENV_PREFIX, lambda name: name in ENV_OF_THE_COMMAND, REMOVED)


def sections() -> Iterable[tuple[str, type[BaseModel]]]:
    """Return the name and the model of each section, in order."""
    return _LOADER.sections.items()


def load(path: Path, *, env: Mapping[str, str] = os.environ, flags: Settings | None = None) -> CoordinatorConfig:
    """Return the settings from coordinator.toml at `path`, variables and flags, with the precedence of rule 1. Raises
    `SettingsFault`."""
    return parse(read(path), source=path.name, env=env, flags=flags)


def load_with_origins(
    path: Path, *, env: Mapping[str, str] = os.environ, flags: Settings | None = None
) -> tuple[CoordinatorConfig, dict[str, str]]:
    """Return the same, and where the value of each key comes from: the file's name, a variable, or the default."""
    return _LOADER.load(read(path), source=path.name, env=env, flags=flags or {})


def read(path: Path) -> dict[str, Any]:
    """Return the TOML file as it stands. Raises `SettingsFault`."""
    try:
        return read_toml(path)
    except FileNotFoundError as error:
        raise SettingsFault(no_run_in(path.parent)) from error


def parse(
    file: Mapping[str, Any], *, source: str, env: Mapping[str, str] | None = None, flags: Settings | None = None
) -> CoordinatorConfig:
    """Return the settings from a decoded file, variables and flags. `source`: the file's name, for messages. Raises
    `SettingsFault`."""
    return _LOADER.load(file, source=source, env=env or {}, flags=flags or {})[0]


def from_assignments(words: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the settings of `section.key=value` words, values as in variables. Raises `SettingsFault`."""
    sections_found: dict[str, dict[str, Any]] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise SettingsFault(f"{word!r} has no value: write section.key=value, as in web.port=8421")
        if "." not in key:
            raise SettingsFault(_LOADER.unknown([key]))
        for section, values in _LOADER.from_text(key, text).items():
            sections_found.setdefault(section, {}).update(values)
    return sections_found
