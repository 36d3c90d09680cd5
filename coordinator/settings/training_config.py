"""The settings of the run itself and of its learner."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from echo2.coordinator.settings.config_section import LIVE, Section, Share, Texts, frozen_list
from echo2.coordinator.settings.objective_choices import choices_of, contradiction
from echo2.coordinator.settings.rate_schedule import refusal
from echo2.engines.engine import Dtype
from echo2.protocol.authority import LEAST_TEMPERATURE, MOST_TEMPERATURE, MOST_WORDS, PLAIN_TEMPERATURE
from echo2.protocol.engine_classes import parts

MOST_PROMPTS: Final = 1 << 16
"""Most training prompts of a task whose prompts are chosen by their last groups: those of a larger one hardly come
again in a run."""


StepNumber = Annotated[int, Field(ge=1, le=10**12)]


def _period(value: object) -> object:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ValueError(f"should be a whole number from 1, or auto, not {value!r}")


def _thousandths(value: float) -> float:
    thousandths = round(value * PLAIN_TEMPERATURE)
    if abs(value * PLAIN_TEMPERATURE - thousandths) < 1e-6:
        return thousandths / PLAIN_TEMPERATURE
    raise ValueError(f"should be a multiple of 0.001, such as {value:.3f}, not {value!r}")


def _printable(value: str) -> str:
    if value.isprintable():
        return value
    raise ValueError(f"has a character that cannot be printed, such as a line break or a mark of direction: {value!r}")


class RunSection(Section):
    """The subject of the training. Most of it is signed by init and the same for every node."""

    name: Annotated[
        str,
        Field(min_length=1, max_length=80, description="Name of the run, for people. Signed."),
        AfterValidator(_printable),
    ] = "my run"
    description: Annotated[
        str,
        Field(max_length=MOST_WORDS, description="Purpose of the run, in a sentence or two. Signed."),
        AfterValidator(_printable),
    ] = ""
    page: Annotated[
        str,
        Field(
            max_length=MOST_WORDS,
            pattern=r"^$|^https?://[!-~]+$",
            examples=["https://run.example.org"],
            description="Public address of the run's page, which nodes show their owners. Signed.",
        ),
    ] = ""
    contact: Annotated[
        str,
        Field(max_length=MOST_WORDS, description="How to reach you: a name, an address, a link. Signed."),
        AfterValidator(_printable),
    ] = ""
    model: Annotated[
        str,
        Field(min_length=1, max_length=200, description="Name of the base model, for people. Signed."),
        AfterValidator(_printable),
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
        int | None, LIVE, Field(ge=1, le=10**12, description="Steps after which the run finishes. Unset: endless.")
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
        int, LIVE, Field(ge=1, le=65536, description="Groups per step. At most the task's training prompts.")
    ] = 16
    limit: Annotated[int, Field(ge=1, le=1 << 20, description="Most sampled tokens per rollout. Signed.")] = 16
    temperature: Annotated[
        float,
        Field(
            ge=LEAST_TEMPERATURE / PLAIN_TEMPERATURE,
            le=MOST_TEMPERATURE / PLAIN_TEMPERATURE,
            description="Temperature of sampling, of its check and of the learner's log-probabilities, in steps of "
            "0.001. Signed.",
        ),
        AfterValidator(_thousandths),
    ] = 1.0
    publish_every: Annotated[
        int | Literal["auto"],
        BeforeValidator(_period),
        LIVE,
        Field(
            description="kappa, steps from one published version to the next; auto: as few as the uplink sustains, "
            "and no more than leave the learner busy."
        ),
    ] = 1
    refill: Annotated[
        bool,
        LIVE,
        Field(
            description="Leave groups whose rewards are all equal out of the batches: they teach nothing. Others are "
            "drawn in their place, so more groups are needed. They are paid all the same."
        ),
    ] = False
    draw: Annotated[
        Literal["oldest", "signal"],
        LIVE,
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
    heldout: Annotated[int, LIVE, Field(ge=1, le=65536, description="Held-out prompts per evaluation.")] = 64
    evaluate_every: Annotated[
        int, LIVE, Field(ge=1, le=10**12, description="Versions from one evaluation to the next.")
    ] = 5
    stop_after: Annotated[
        int | None,
        LIVE,
        Field(
            ge=1,
            le=10**9,
            description="Evaluations in a row without a better held-out result after which the run ends, as by "
            "`finish`. Unset: it does not.",
        ),
    ] = None
    compute_dtype: Annotated[
        Dtype,
        Field(
            description="Type in which nodes compute: float32; float16 or bfloat16, or blocks (a quantised base as it "
            "is stored), which are to be calibrated. Signed."
        ),
    ] = "float32"
    engines: Annotated[
        Texts,
        Field(min_length=1, max_length=16, description="Admitted engine classes: engine/dtype, as prefixes. Signed."),
    ] = ("transformers/float32", "llamacpp/float32/cpu")

    @property
    def temperature_thousandths(self) -> int:
        """The temperature as it is signed."""
        return round(self.temperature * PLAIN_TEMPERATURE)

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
        str,
        Field(
            min_length=1, max_length=40,
            description="torch device of the learner, and of the scorer where scorer.devices is auto: cpu, cuda ...; "
            "auto: the GPU with the most free memory that PyTorch can use, else the CPU.",
        ),
    ] = "auto"  # fmt: skip
    threads: Annotated[
        Annotated[int, Field(ge=1, le=1024)] | Literal["auto"],
        Field(
            description="Threads of learner, of each of its ranks, and of each scorer on a CPU. auto: OMP_NUM_THREADS, "
            "else the cores that they may use, divided among ranks and scorers on the CPU."
        ),
    ] = "auto"
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
    learning_rate: Annotated[float, LIVE, Field(gt=0, le=1, description="AdamW's peak learning rate.")] = 3e-4
    warmup_steps: Annotated[
        int, LIVE, Field(ge=0, le=10**12, description="Steps over which the learning rate rises from 0.")
    ] = 10
    schedule: Annotated[
        Literal["constant", "linear", "cosine", "steps"],
        LIVE,
        Field(
            description="Course of the learning rate after the warm-up: constant; linear or cosine, which fall to "
            "schedule_end of it at schedule_steps; or steps, by schedule_points."
        ),
    ] = "constant"
    schedule_steps: Annotated[
        StepNumber | None,
        LIVE,
        Field(description="Step of the run, through all eras, at which linear and cosine have fallen. Others: unset."),
    ] = None
    schedule_end: Annotated[
        float, LIVE, Field(ge=0, le=1, description="Share of the learning rate that linear and cosine end at.")
    ] = 0.1
    schedule_points: Annotated[
        tuple[Annotated[tuple[StepNumber, Annotated[float, Field(ge=0, le=1000)]], BeforeValidator(frozen_list)], ...],
        BeforeValidator(frozen_list),
        LIVE,
        Field(
            max_length=100,
            description="Steps of the run, each with the share of the learning rate from there on, as [[1000, 0.5], "
            "[2000, 0.1]]; for the schedule steps.",
        ),
    ] = ()
    betas: Annotated[
        tuple[Share, Share], BeforeValidator(frozen_list), LIVE, Field(description="AdamW's two decay rates, per step.")
    ] = (0.9, 0.95)
    weight_decay: Annotated[float, LIVE, Field(ge=0, le=1000, description="AdamW's weight decay, per step.")] = 0.0
    gradient_clip: Annotated[float, LIVE, Field(gt=0, le=1e12, description="Largest norm of the gradient.")] = 1.0
    eps_low: Annotated[
        float,
        LIVE,
        Field(
            gt=0,
            lt=1,
            description="Clip of the ratio downwards, by clip, two_sided and gepo: at least 1 - eps_low.",
        ),
    ] = 0.2
    eps_high: Annotated[
        float, LIVE, Field(gt=0, le=1e6, description="Clip of the ratio upwards, by the same: at most 1 + eps_high.")
    ] = 0.28
    truncation: Annotated[
        float,
        LIVE,
        Field(
            ge=1,
            le=1e6,
            description="C: cap of a stale token's importance weight, with weight token_cap or kl_weighted.",
        ),
    ] = 2.0
    kl_coefficient: Annotated[
        float, Field(ge=0, le=1e6, description="Weight of the KL term against the base. 0: none.")
    ] = 0.0
    minibatches: Annotated[int, LIVE, Field(ge=1, le=65536, description="Optimiser steps on one batch.")] = 1
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
            "that falls by 1 over the last fifth of run.limit."
        ),
    ] = "kept"
    microbatch_tokens: Annotated[int, Field(ge=1, le=10**12, description="Most tokens in one forward pass.")] = 16384
    compute_dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        Field(
            description="Type in which the learner computes: float32, bfloat16, or auto (bfloat16 on a GPU, float32 on "
            "a CPU). Sums and its weights are always float32."
        ),
    ] = "auto"
    recompute: Annotated[
        Literal["auto", "always", "never"],
        Field(
            description="Whether a backward pass computes each layer again instead of keeping it, for a twentieth of "
            "the memory and a third more time: always, never or auto (on a GPU). The gradients are the same."
        ),
    ] = "auto"
    optimiser_state: Annotated[
        Literal["float32", "host", "8bit"],
        Field(
            description="Where AdamW's moments lie: float32 (on the learner's device), host (in the host's memory: "
            "8 bytes less per parameter on the device, the same bits, slower updates) or 8bit (on the device, rounded: "
            "6 bytes less)."
        ),
    ] = "float32"
    seed: Annotated[int, Field(ge=0, lt=1 << 63, description="Seed of the learner's own randomness.")] = 0

    @model_validator(mode="after")
    def _has_one_schedule(self) -> Self:
        refused = refusal(self)
        if refused:
            raise ValueError(refused)
        return self

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
