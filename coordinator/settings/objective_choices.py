"""Name the four choices that make an objective, their presets, and the combinations that are refused. No tensors.

    loss of a token = - weight * surrogate(p/anchor, A)          weight = anchor/b, bounded; mean by `aggregate`

Rules
1. anchor/b times p/anchor is p/b: weight and surrogate together correct once for the version that generated the token.
2. So a weight needs an anchor other than the behaviour, against which anchor/b would be 1: otherwise the ratio p/b is
   in the surrogate already, and a weight would count the staleness twice.
3. `objective` names a preset of anchor, weight and surrogate; each may be replaced by a setting of its own.
"""

from typing import Final, NamedTuple, Protocol

PRESET: Final = "preset"
"""The value of a choice that is left to `objective`."""


class Choices(NamedTuple):
    """An objective. `anchor`, `weight`, `surrogate`, `aggregate`: names in loss.py, loss_weights.py, surrogates.py and
    aggregates.py."""

    anchor: str
    weight: str
    surrogate: str
    aggregate: str = "tokens"


PRESETS: dict[str, Choices] = {
    "decoupled": Choices("proximal", "token_cap", "clip"),
    "grpo": Choices("behaviour", "none", "clip"),
    "two_sided": Choices("behaviour", "none", "two_sided"),
    "cispo": Choices("behaviour", "none", "cispo"),
    "gspo": Choices("behaviour", "none", "gspo"),
    "gepo": Choices("behaviour", "none", "gepo"),
    "dppo": Choices("behaviour", "none", "dppo"),
    "uncorrected": Choices("none", "none", "clip"),
}
"""decoupled      decoupled PPO (arXiv 2110.00641) as AReaL uses it for staleness (arXiv 2505.24298), its weight capped
grpo           GRPO clipped against the behaviour (arXiv 2402.03300): stale tokens outside the clip have no gradient
two_sided      INTELLECT-2 (arXiv 2505.07291)
cispo          MiniMax-M1 (arXiv 2506.13585)
gspo           GSPO-token (arXiv 2507.18071), its tokens, not rollouts, equal in the mean
gepo           GEPO (arXiv 2508.17850): the ratio of a rollout to its group's expectation, as for `gspo`
dppo           DPPO's mask by binary total variation (arXiv 2602.04879), prime-rl's default
uncorrected    the policy gradient as if the rollouts were on policy (REINFORCE, Williams 1992): a baseline that
               measures the value of importance weights (benchmarks/learning.py), not meant for stale rollouts"""

OF_BATCHES: Final = frozenset({"sequence_mask", "m2po"})
"""Weights of a token that depend on other tokens of its mini-batch."""
OF_ROLLOUTS: Final = frozenset({"gspo", "gepo"})
"""Surrogates of a token that depend on other tokens of its rollout."""


class Settings(Protocol):
    """The settings that make an objective: messages.Hyper and training_config.LearnerSection have them."""

    @property
    def objective(self) -> str: ...
    @property
    def anchor(self) -> str: ...
    @property
    def weight(self) -> str: ...
    @property
    def surrogate(self) -> str: ...
    @property
    def aggregate(self) -> str: ...


def choices_of(settings: Settings) -> Choices:
    """Return the choices of these settings (rule 3). Raises ValueError, which lists the known presets."""
    if settings.objective not in PRESETS:
        raise ValueError(f"objective {settings.objective!r} is unknown: choose one of {', '.join(sorted(PRESETS))}")
    preset = PRESETS[settings.objective]
    return Choices(
        preset.anchor if settings.anchor == PRESET else settings.anchor,
        preset.weight if settings.weight == PRESET else settings.weight,
        preset.surrogate if settings.surrogate == PRESET else settings.surrogate,
        settings.aggregate,
    )


def describe_loss(settings: Settings) -> str:
    """Return the loss in words: preset and choices."""
    chosen = choices_of(settings)
    return (
        f"{settings.objective} (anchor {chosen.anchor}, weight {chosen.weight}, surrogate {chosen.surrogate}, mean by "
        f"{chosen.aggregate})"
    )


def contradiction(choices: Choices) -> str | None:
    """Return a sentence on choices that do not go together (rule 2), None if they do."""
    if choices.anchor == "behaviour" and choices.weight != "none":
        return (
            f"weight {choices.weight} with anchor behaviour counts the staleness of a token twice, as its ratio p/b "
            "corrects for it already: set anchor to proximal or none, or weight to none"
        )
    return None
