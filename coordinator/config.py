"""The coordinator's settings: one frozen model, read from coordinator.toml in the run folder.

1. Precedence: a flag, then an environment variable (`ECHO2_COORD_<SECTION>_<KEY>`), then coordinator.toml, then the
   default.
2. An unknown section, key or variable is an error that names the nearest known one (runtime/settings.py). A value of
   another type is an error too: nothing is converted. Variables hold TOML values, or plain words for a text.
3. Every key has a line of explanation that names its unit, if it has one. The commented coordinator.toml and the table
   in docs/operations.md are generated from these lines (coordinator.config_docs).
4. The keys signed in the RunSpec (`SIGNED`) cannot be changed here after `init`: coordinator.run.setup refuses.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from coordinator.config_section import Section
from coordinator.learner.objective_choices import choices_of, contradiction
from coordinator.market_config import MarketSection
from engines.engine import Dtype
from p2p.multiaddr import address_of
from protocol.engine_classes import parts
from runtime.settings import Loader, SettingsFault, read_toml

ENV_PREFIX = "ECHO2_COORD_"
ENV_OF_THE_COMMAND = frozenset({"ECHO2_COORD_HOME"})
"""Variables with the prefix that are not settings: the command line reads them."""
SIGNED = ("name", "model", "task", "staleness", "group_size", "limit", "compute_dtype", "engines")
"""Keys of [run] that are in the signed RunSpec."""
MOST_PROMPTS: Final = 1 << 16
"""Most training prompts of a task whose prompts are chosen by their last groups: those of a larger one hardly come
again in a run."""

Settings = Mapping[str, Mapping[str, Any]]
"""Section -> key -> value."""


def _frozen_list(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _period(value: object) -> object:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ValueError(f"should be a whole number from 1, or auto, not {value!r}")


Texts = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=400)], ...], BeforeValidator(_frozen_list)]
Share = Annotated[float, Field(ge=0, lt=1)]


class RunSection(Section):
    """The subject of the training. Most of it is signed by init and the same for every node."""

    name: Annotated[str, Field(min_length=1, max_length=80, description="Name of the run, for people. Signed.")] = (
        "my run"
    )
    model: Annotated[
        str, Field(min_length=1, max_length=200, description="Name of the base model, for people. Signed.")
    ] = "tiny"
    task: Annotated[
        str,
        Field(
            min_length=1,
            max_length=4000,
            description="The task to learn, or several, each with a weight or without: `3 add + reverse`. Signed.",
        ),
    ] = "reverse"
    kind: Annotated[
        Literal["auto", "pure", "single", "served"],
        Field(
            description="Where the code of the tasks runs: pure, in every node's build and in the coordinator; single "
            "and served, in processes of the operator's alone ([environment]): single has one sampled turn an episode, "
            "served several, whose answers nodes ask for. auto, for each task: pure where this build has it, "
            "served for verifiers, else single. Signed."
        ),
    ] = "auto"
    template: Annotated[
        Literal["plain", "chat"],
        Field(
            description="How prompts are written: plain, as the task's text alone; chat, by the model's chat template "
            "(a plain one where it has none), for tasks of the kinds single and served that pose messages. Signed."
        ),
    ] = "plain"
    thinking: Annotated[
        bool | None,
        Field(description="Passed to the chat template as enable_thinking. Unset: not passed. Signed."),
    ] = None
    steps: Annotated[
        int | None, Field(ge=1, le=10**12, description="Steps after which the run finishes. Unset: endless.")
    ] = None
    mode: Annotated[
        Literal["auto", "async", "sequential"],
        Field(
            description="sequential: run.staleness 0 and a version after each step, so nothing overlaps; async: "
            "run.staleness from 1. auto: as run.staleness says."
        ),
    ] = "auto"
    staleness: Annotated[
        int, Field(ge=0, le=1024, description="S, steps: the learner never uses a group older than this. Signed.")
    ] = 4
    group_size: Annotated[
        int, Field(ge=2, le=1024, description="Rollouts per group: samples of one prompt. Signed.")
    ] = 8
    batch_groups: Annotated[
        int, Field(ge=1, le=65536, description="Groups per step. At most the task's training prompts.")
    ] = 16
    limit: Annotated[int, Field(ge=1, le=1 << 20, description="Most sampled tokens per rollout. Signed.")] = 16
    publish_every: Annotated[
        int | Literal["auto"],
        BeforeValidator(_period),
        Field(
            description="kappa, steps from one published version to the next; auto: as few as the uplink sustains, "
            "and no more than leave the learner busy."
        ),
    ] = 1
    refill: Annotated[
        bool,
        Field(
            description="Leave groups whose rewards are all equal out of the batches: they teach nothing. Others are "
            "drawn in their place, so more groups are needed. They are paid all the same."
        ),
    ] = False
    draw: Annotated[
        Literal["oldest", "signal"],
        Field(
            description="Groups of a batch: oldest first; or those whose rewards differ most first (signal), so that "
            "more of the others grow too old. No group older than run.staleness is drawn in either case; all are paid."
        ),
    ] = "oldest"
    prompts: Annotated[
        Literal["order", "variance"],
        Field(
            description="order: each training prompt once per pass. variance: prompts whose last groups' rewards "
            "varied come more often, up to 16 times as often; for tasks of at most 65,536 training prompts."
        ),
    ] = "order"
    heldout: Annotated[int, Field(ge=1, le=65536, description="Held-out prompts per evaluation.")] = 64
    heldout_groups: Annotated[
        int,
        Field(
            ge=0, le=4096,
            description="Held-out groups per task and evaluation that nodes generate, beside the operator's own "
            "evaluation. 0: none.",
        ),
    ] = 0  # fmt: skip
    evaluate_every: Annotated[int, Field(ge=1, le=10**12, description="Versions from one evaluation to the next.")] = 5
    compute_dtype: Annotated[
        Dtype,
        Field(
            description="Type in which nodes compute: float32; float16 or bfloat16, or blocks (a quantised base as it "
            "is stored), whose classes are to be calibrated. Signed."
        ),
    ] = "float32"
    engines: Annotated[
        Texts,
        Field(min_length=1, max_length=16, description="Admitted engine classes: engine/dtype, as prefixes. Signed."),
    ] = ("transformers/float32",)

    @model_validator(mode="before")
    @classmethod
    def _is_sequential(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("mode") == "sequential":
            return {"staleness": 0, **values}
        return values

    @model_validator(mode="after")
    def _keeps_to_its_mode(self) -> Self:
        if self.mode == "sequential" and (self.staleness, self.publish_every) != (0, 1):
            raise ValueError(
                f"mode sequential means staleness 0 and publish_every 1, not {self.staleness} and "
                f"{self.publish_every}: leave them out, or choose mode async"
            )
        if self.mode == "async" and self.staleness == 0:
            raise ValueError("mode async means a staleness from 1, not 0: choose one, or mode sequential")
        return self

    @model_validator(mode="after")
    def _admits_its_own_format(self) -> Self:
        if not any([*parts(one), self.compute_dtype][1] == self.compute_dtype for one in self.engines):
            raise ValueError(
                f"engines admits no class in {self.compute_dtype}, in which nodes compute: add transformers/"
                f"{self.compute_dtype}, or set compute_dtype to one that it admits"
            )
        return self


class LearnerSection(Section):
    """The learner: the fields of coordinator.learner.messages.Hyper, and the device on which it computes."""

    device: Annotated[
        str, Field(min_length=1, max_length=40, description="torch device of learner and scorer: cpu, cuda ...")
    ] = "cpu"
    threads: Annotated[int, Field(ge=1, le=1024, description="Threads of each computing process on a CPU.")] = 1
    checkpoint_share: Annotated[
        float,
        Field(
            gt=0,
            le=1,
            description="Share of the time that full checkpoints may take; between them a journal is written, whose "
            "steps a restart makes again. 1: a checkpoint with each version.",
        ),
    ] = 0.05
    ranks: Annotated[
        int,
        Field(
            ge=1,
            le=64,
            description="Processes of this host among which the learner divides model and batch: one per GPU. With "
            "more than one, torchrun starts them.",
        ),
    ] = 1
    hosts: Annotated[
        int, Field(ge=1, le=1024, description="Hosts that have ranks of the learner; this one has rank 0.")
    ] = 1
    rendezvous: Annotated[
        str,
        Field(
            max_length=300,
            pattern=r"^$|^[^\s:]+:\d{1,5}$",
            examples=["10.0.0.1:29500"],
            description="HOST:PORT of this host at which those of other hosts meet, with more than one host.",
        ),
    ] = ""
    learning_rate: Annotated[float, Field(gt=0, le=1, description="AdamW's peak learning rate.")] = 3e-4
    warmup_steps: Annotated[
        int, Field(ge=0, le=10**12, description="Steps over which the learning rate rises from 0.")
    ] = 10
    betas: Annotated[
        tuple[Share, Share], BeforeValidator(_frozen_list), Field(description="AdamW's two decay rates, per step.")
    ] = (0.9, 0.95)
    weight_decay: Annotated[float, Field(ge=0, le=1000, description="AdamW's weight decay, per step.")] = 0.0
    gradient_clip: Annotated[float, Field(gt=0, le=1e12, description="Largest norm of the gradient.")] = 1.0
    eps_low: Annotated[
        float,
        Field(
            gt=0,
            lt=1,
            description="Clip of the ratio downwards, by clip, two_sided and gepo: at least 1 - eps_low.",
        ),
    ] = 0.2
    eps_high: Annotated[
        float, Field(gt=0, le=1e6, description="Clip of the ratio upwards, by the same: at most 1 + eps_high.")
    ] = 0.28
    truncation: Annotated[
        float,
        Field(
            ge=1,
            le=1e6,
            description="C: cap of a stale token's importance weight, with weight token_cap or kl_weighted.",
        ),
    ] = 2.0
    kl_coefficient: Annotated[
        float, Field(ge=0, le=1e6, description="Weight of the KL term against the base. 0: none.")
    ] = 0.0
    minibatches: Annotated[int, Field(ge=1, le=65536, description="Optimiser steps on one batch.")] = 1
    advantage: Annotated[
        Literal["group", "mean"],
        Field(description="How a group's rewards become advantages: group (by mean and deviation) or mean."),
    ] = "group"
    objective: Annotated[
        Literal["decoupled", "grpo", "two_sided", "cispo", "gspo", "gepo", "dppo", "uncorrected"],
        Field(
            description="The loss: decoupled, grpo, two_sided, cispo, gspo, gepo, dppo or uncorrected. Each is a "
            "preset of anchor, weight and surrogate."
        ),
    ] = "decoupled"
    anchor: Annotated[
        Literal["preset", "behaviour", "proximal", "none"],
        Field(
            description="Probability a of the ratio p/a that the surrogate bounds: behaviour (of the version that "
            "generated), proximal (at the step's start) or none (p itself). preset: by objective."
        ),
    ] = "preset"
    weight: Annotated[
        Literal["preset", "none", "token_cap", "token_mask", "sequence_mask", "m2po"],
        Field(
            description="Bound of the importance weight a/b against the behaviour: none (weight 1), token_cap (at most "
            "truncation), token_mask (0 outside 0.5 to 5), sequence_mask (0 for a rollout whose geometric mean is "
            "outside 0.9 to 1.1) or m2po (0 for the fewest tokens that bring the mean squared log-ratio to 0.04). Not "
            "with anchor behaviour. preset: by objective."
        ),
    ] = "preset"
    surrogate: Annotated[
        Literal["preset", "clip", "two_sided", "cispo", "gspo", "gepo", "dppo"],
        Field(
            description="Gain of a token by its ratio: clip, two_sided, cispo, gspo, gepo or dppo. preset: by "
            "objective."
        ),
    ] = "preset"
    aggregate: Annotated[
        Literal["tokens", "sequences", "constant"],
        Field(
            description="Mean of the losses: over tokens, over sequences (rollouts) of their means, or over rollouts "
            "of their sums over run.limit (constant; with advantage mean it is Dr. GRPO)."
        ),
    ] = "tokens"
    denominator: Annotated[
        Literal["signal", "all"],
        Field(
            description="Rollouts that count in that mean: of groups with signal, or all drawn, so that a batch with "
            "little signal has a small gradient."
        ),
    ] = "signal"
    kl_groups: Annotated[
        Literal["signal", "all"],
        Field(description="Groups that the KL term covers: those with signal, or all, at the cost of their pass."),
    ] = "signal"
    kl_weighted: Annotated[
        bool,
        Field(description="Whether the KL term of a token is weighted by p/b, at most truncation: true or false."),
    ] = False
    cut_rollouts: Annotated[
        Literal["kept", "masked", "penalised"],
        Field(
            description="Rollouts that run.limit cut: kept; masked, without loss; or penalised softly, by a reward "
            "that falls over the last fifth of run.limit."
        ),
    ] = "kept"
    cut_penalty: Annotated[
        float, Field(gt=0, le=1e6, description="Penalty at run.limit with cut_rollouts penalised, in reward.")
    ] = 1.0
    contrast: Annotated[
        float,
        Field(
            gt=0, le=1,
            description="Share of a group's rollouts that are learned from, in pairs of the highest and the lowest "
            "advantage; the others save their pass. 1: all.",
        ),
    ] = 1.0  # fmt: skip
    microbatch_tokens: Annotated[int, Field(ge=1, le=10**12, description="Most tokens in one forward pass.")] = 16384
    compute_dtype: Annotated[
        Literal["float32", "bfloat16"],
        Field(description="Type in which the learner computes: float32 or bfloat16. Its weights are always float32."),
    ] = "float32"
    seed: Annotated[int, Field(ge=0, lt=1 << 63, description="Seed of the learner's own randomness.")] = 0

    @model_validator(mode="after")
    def _corrects_once(self) -> Self:
        refused = contradiction(choices_of(self))
        if refused:
            raise ValueError(refused)
        return self

    @model_validator(mode="after")
    def _names_the_rendezvous(self) -> Self:
        if (self.hosts > 1) != bool(self.rendezvous):
            raise ValueError("hosts above 1 and rendezvous go together: name HOST:PORT, or one host")
        if self.rendezvous and not 0 < int(self.rendezvous.rpartition(":")[2]) < 1 << 16:
            raise ValueError(f"rendezvous {self.rendezvous!r} has no port from 1 to 65535")
        return self


def _check_listen(addresses: Texts, key: str = "listen") -> None:
    for address in addresses:
        if not address_of(address).is_listening:
            raise ValueError(f"{key} has {address!r}: write /ip4/0.0.0.0/tcp/4310 or the like")


class NetworkSection(Section):
    """Connections with nodes over libp2p. Addresses are multiaddresses."""

    listen: Annotated[
        Texts, Field(min_length=1, max_length=16, description="Addresses to listen on. Port 0: any free one.")
    ] = ("/ip4/0.0.0.0/tcp/4310", "/ip6/::/tcp/4310")
    advertise: Annotated[
        Texts,
        Field(max_length=16, description="Addresses that nodes dial, if not those listened on: a public name."),
    ] = ()
    work: Annotated[
        bool,
        Field(
            description="Ask the first hello of a new key for about a second of work, so that keys are not free: true "
            "or false. Nodes older than this are refused with a sentence."
        ),
    ] = True
    mdns: Annotated[
        bool, Field(description="Announce the run on private networks, by multicast DNS: true or false.")
    ] = True
    uplink: Annotated[
        float | None,
        Field(
            gt=0,
            le=1e7,
            description="Limit of payloads sent, Mbit/s; nodes that the plan assigns to the coordinator go first. "
            "Unset: no limit, and the plan assumes 100.",
        ),
    ] = None
    downlink: Annotated[
        float | None, Field(gt=0, le=1e7, description="Limit of payloads received, Mbit/s. Unset: no limit.")
    ] = None
    plan: Annotated[
        bool, Field(description="Plan which node sends new versions to which: true, or false for random peers.")
    ] = True
    relay: Annotated[
        bool, Field(description="Relay connections between peers that cannot reach each other: true or false.")
    ] = True
    relay_rate: Annotated[
        float,
        Field(gt=0, le=1e7, description="Limit of relayed data, all connections and both directions together, Mbit/s."),
    ] = 20.0
    relays: Annotated[
        Texts,
        Field(max_length=16, description="Addresses of relays to use, if nodes cannot dial the coordinator directly."),
    ] = ()
    connections: Annotated[
        int, Field(ge=1, le=32768, description="Most connections with peers over libp2p; each takes an open file.")
    ] = 1024
    subnet_connections: Annotated[
        int, Field(ge=1, le=32768, description="Most of these connections per public IPv4 /24 or IPv6 /48.")
    ] = 32
    former_listen: Annotated[
        Texts,
        Field(
            max_length=16,
            description="Addresses on which the network identity before `keys rotate network` tells nodes where the "
            "coordinator is now, for 30 days: those of `listen` before it. Empty: none.",
        ),
    ] = ()

    @model_validator(mode="after")
    def _are_addresses(self) -> Self:
        _check_listen(self.listen)
        _check_listen(self.former_listen, "former_listen")
        return self


class HttpsSection(Section):
    """The HTTPS server, for nodes whose network lets only HTTPS out. The invite pins its key."""

    listen: Annotated[
        Texts,
        Field(max_length=16, description="Addresses to listen on, /ip4/HOST/tcp/PORT. An empty list: no HTTPS."),
    ] = ("/ip4/0.0.0.0/tcp/4311", "/ip6/::/tcp/4311")
    advertise: Annotated[
        Texts,
        Field(
            max_length=8,
            description="Addresses that nodes use, such as /dns4/coord.example/tcp/443/https. Empty: the hosts of "
            "network.advertise with the port of https.listen, else the addresses of https.listen.",
        ),
    ] = ()
    connections: Annotated[
        int, Field(ge=1, le=32768, description="Most connections over HTTPS; each takes an open file.")
    ] = 1024
    address_connections: Annotated[
        int, Field(ge=1, le=32768, description="Most of these connections per IPv4 address or IPv6 /64.")
    ] = 128

    former_listen: Annotated[
        Texts, Field(max_length=16, description="The same over HTTPS, under the same HTTPS key. Empty: none.")
    ] = ()

    @model_validator(mode="after")
    def _are_addresses(self) -> Self:
        _check_listen(self.listen)
        _check_listen(self.former_listen, "former_listen")
        for address in self.advertise:
            if address_of(address).https_url is None:
                raise ValueError(f"advertise has {address!r}: write /dns4/coord.example/tcp/443/https or the like")
        return self


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


class WebSection(Section):
    """The page, the API and /metrics, over HTTP."""

    host: Annotated[
        str, Field(min_length=1, max_length=200, description="Address to bind. 0.0.0.0: every interface.")
    ] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535, description="TCP port. 0: any free one.")] = 8420
    names: Annotated[
        Texts,
        Field(
            max_length=16,
            description="Public names of the page, such as run.example.org. Requests for any other name but localhost "
            "are refused; under these, scripts of other web sites may read the page.",
        ),
    ] = ()
    connections: Annotated[
        int, Field(ge=1, le=32768, description="Most connections with the page; each takes an open file.")
    ] = 256
    address_connections: Annotated[
        int,
        Field(
            ge=1,
            le=32768,
            description="Most of these connections per public IPv4 address or IPv6 /64. Loopback and private "
            "addresses, such as a reverse proxy's, have no such limit.",
        ),
    ] = 32

    @model_validator(mode="after")
    def _are_names(self) -> Self:
        for name in self.names:
            if not re.fullmatch(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*", name):
                raise ValueError(f"names has {name!r}: write a host name alone, such as run.example.org")
        return self


class LeasesSection(Section):
    """Leases of rollout work."""

    per_node: Annotated[
        int,
        Field(
            ge=1,
            le=1024,
            description="Most open leases per node that is not measured yet: one at work, one prefetched, one left by "
            "a crash. A measured node gets as many as it has been seen to use.",
        ),
    ] = 3
    minimum_seconds: Annotated[float, Field(gt=0, description="Shortest life of a lease, seconds.")] = 30.0
    maximum_seconds: Annotated[float, Field(gt=0, le=2_592_000, description="Longest life of a lease, seconds.")] = (
        900.0
    )
    pacing: Annotated[
        Literal["fresh", "room"],
        Field(
            description="fresh: under a version, only groups are leased that the next version could not bring in time. "
            "room: as many as can be learned from in time at all, which are older when they are."
        ),
    ] = "fresh"
    by_length: Annotated[
        bool,
        Field(
            description="Give prompts with long answers, by the last groups of each, to quick and reliable nodes: true "
            "or false. For tasks of at most 65,536 training prompts."
        ),
    ] = False
    gamma: Annotated[
        float,
        Field(ge=1, le=10, description="Safety factor on the rollouts per second that the learner needs."),
    ] = 1.1
    newcomers: Annotated[
        float,
        Field(
            ge=0.01,
            le=0.5,
            description="Share of the leases that go to new keys, most while known keys ask for all, and the part that "
            "known keys leave them while they ask.",
        ),
    ] = 0.1
    hedge_share: Annotated[
        float,
        Field(
            ge=0,
            le=0.05,
            description="Hedges, most of all leases: a lease that its node is late with is given to a proven node of "
            "another subnet as well, where that one would have no work. 0: none.",
        ),
    ] = 0.0
    canaries: Annotated[
        float,
        Field(
            ge=0,
            le=0.05,
            description="Canaries, of all leases: leases whose answer is known, so that their groups are checked by "
            "comparison. The first group of a new key is one as well. 0: none at all.",
        ),
    ] = 0.005
    audits: Annotated[
        float,
        Field(
            ge=0,
            le=0.05,
            description="Audits, of all leases: leases that a proven node of another party gets as well, so that both "
            "groups are compared. Exact classes alone. 0: none.",
        ),
    ] = 0.01
    move: Annotated[
        bool,
        Field(
            description="Let nodes of exact classes report the tokens of groups that take longer than "
            "`report_seconds`, and let another node go on behind them where the first one is lost: true or false."
        ),
    ] = False
    report_seconds: Annotated[
        float, Field(ge=2, le=3600, description="From one such report of a group to the next, seconds.")
    ] = 60.0

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.minimum_seconds > self.maximum_seconds:
            raise ValueError(
                f"minimum_seconds is {self.minimum_seconds:g}, above maximum_seconds, {self.maximum_seconds:g}: "
                "lower the one, or raise the other"
            )
        return self


class GuardSection(Section):
    """Limits beyond which the run is paused, as its policy breaks. A 0 turns one off."""

    heldout_share: Annotated[
        float,
        Field(
            ge=0, le=1,
            description="Least share of the best held-out result, above the task's floor, once the best lies two "
            "standard errors above the first.",
        ),
    ] = 0.5  # fmt: skip
    exams: Annotated[int, Field(ge=0, le=1000, description="Evaluations in a row below that share.")] = 3
    entropy: Annotated[
        float,
        Field(
            ge=0, le=100, description="Least entropy of the policy, nats per token, on groups with signal (20 steps)."
        ),
    ] = 0.001
    skipped_updates: Annotated[
        int, Field(ge=0, le=10**9, description="Updates in a row that are skipped, as their gradients are not finite.")
    ] = 20
    gradient: Annotated[
        float,
        Field(
            ge=0, le=1e12, description="Most times its greatest of 64 steps that the gradient's norm may be (3 steps)."
        ),
    ] = 10.0
    auto_rollback: Annotated[
        bool,
        Field(
            description="Publish the best version again instead, with half the learning rate, at most three times: "
            "true or false."
        ),
    ] = False


class CalibrationSection(Section):
    """Calibrations of engine classes that are not exact, made by this machine's own engines."""

    every: Annotated[
        int,
        Field(
            ge=0,
            le=10**9,
            description="Versions after which an open class is calibrated again, where this machine can: training "
            "makes the policy more certain. 0: never.",
        ),
    ] = 200
    tokens: Annotated[int, Field(ge=2_000, le=1_000_000, description="Least tokens per machine of a Calibration.")] = (
        4_000
    )


class StoreSection(Section):
    """Disk space of published versions."""

    budget_bytes: Annotated[
        int, Field(ge=10**6, le=10**17, description="Most bytes of snapshots and payloads on disk.")
    ] = 20 * 10**9
    payload_bytes: Annotated[
        int,
        Field(
            ge=10**3,
            le=10**17,
            description="Most bytes of payloads among them. The oldest are dropped first; a payload between two stored "
            "snapshots is rebuilt when a node requests it.",
        ),
    ] = 10 * 10**9


class LedgerSection(Section):
    """The ledger of accepted work."""

    head_seconds: Annotated[
        int,
        Field(
            ge=1,
            le=86_400,
            description="Seconds between two signed heads of the ledger, which show nodes that it only grows. While it "
            "does not grow none is signed.",
        ),
    ] = 900


class PayoutSection(Section):
    """Paying money out, by `echo2-coord payout`. Points need none of this: they are credited at the verdict."""

    rail: Annotated[
        Literal["points", "csv", "command", "bank", "https"],
        Field(
            description="The way by which money leaves: points (none does), csv and bank (files that you hand on; bank "
            "is ISO 20022 pain.001), command (a program of yours), https (a payout provider)."
        ),
    ] = "points"
    currency: Annotated[
        Literal["USD", "EUR", "GBP", "CHF"],
        Field(description="The currency of payments. The ledger's unit of money is 10^-9 of it."),
    ] = "USD"
    minimum: Annotated[
        int,
        Field(ge=1, le=10**9, description="Least payment, in hundredths of the currency; less waits in the ledger."),
    ] = 500
    day_limit: Annotated[
        int, Field(ge=1, le=10**12, description="Most that is sent within 24 hours, in hundredths of the currency.")
    ] = 100_000
    node_limit: Annotated[
        int, Field(ge=1, le=10**12, description="The same per node; a larger balance is paid in parts.")
    ] = 10_000
    url: Annotated[str, Field(max_length=500, description="Base address of the rail https, as in https://host/v1.")] = (
        ""
    )
    credentials: Annotated[
        str, Field(max_length=1000, description="The rail https: path of a file of mode 0600 with its bearer token.")
    ] = ""
    command: Annotated[str, Field(max_length=1000, description="The rail command: absolute path of the program.")] = ""
    debtor_name: Annotated[str, Field(max_length=70, description="The rail bank: holder of the paying account.")] = ""
    debtor_iban: Annotated[str, Field(max_length=34, description="The rail bank: IBAN of the paying account.")] = ""
    debtor_bic: Annotated[str, Field(max_length=11, description="The rail bank: BIC of its bank, where needed.")] = ""
    resend_hours: Annotated[
        int,
        Field(
            ge=0, le=720,
            description="The rails https and command: hours for which an idempotency key is recognised. A payment that "
            "is older is a question to you, and is not sent again. 0: none is sent again.",
        ),
    ] = 20  # fmt: skip
    question_days: Annotated[
        int, Field(ge=1, le=90, description="Days after which a payment without a final answer is a question to you.")
    ] = 7
    watch_days: Annotated[
        int,
        Field(ge=1, le=400, description="Days for which `payout reconcile` asks again about payments that were final."),
    ] = 60


class CoordinatorConfig(Section):
    """All settings of a coordinator."""

    run: RunSection = RunSection()
    learner: LearnerSection = LearnerSection()
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


_MOVED: Final = {"learner.publish_every": "run.publish_every"}
_LOADER: Final = Loader(CoordinatorConfig, ENV_PREFIX, lambda name: name in ENV_OF_THE_COMMAND, _MOVED)


def sections() -> Iterable[tuple[str, type[BaseModel]]]:
    """Return the name and the model of each section, in order."""
    return _LOADER.sections.items()


def load(path: Path, *, env: Mapping[str, str] = os.environ, flags: Settings | None = None) -> CoordinatorConfig:
    """Return the settings from coordinator.toml at `path`, variables and flags, with the precedence of rule 1. Raises
    `SettingsFault`."""
    return parse(read(path), source=path.name, env=env, flags=flags)


def read(path: Path) -> dict[str, Any]:
    """Return the TOML file as it stands. Raises `SettingsFault`."""
    try:
        return read_toml(path)
    except FileNotFoundError as error:
        raise SettingsFault(f"no run in {path.parent}: make one with `echo2-coord init {path.parent}`") from error


def parse(
    file: Mapping[str, Any], *, source: str, env: Mapping[str, str] | None = None, flags: Settings | None = None
) -> CoordinatorConfig:
    """Return the settings from a decoded file, variables and flags. `source`: the file's name, for messages. Raises
    `SettingsFault`."""
    return _LOADER.load(file, source=source, env=env or {}, flags=flags or {})[0]


def from_env(env: Mapping[str, str]) -> Settings:
    """Return the settings among the environment variables. Raises `SettingsFault`."""
    return _LOADER.from_env(env)


def from_assignments(words: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the settings of `section.key=value` words, values as in variables. Raises `SettingsFault`."""
    sections_found: dict[str, dict[str, Any]] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not (equals and "." in key):
            raise SettingsFault(f"{word!r} is not a setting: write section.key=value, as in web.port=8421")
        for section, values in _LOADER.from_text(key, text).items():
            sections_found.setdefault(section, {}).update(values)
    return sections_found
