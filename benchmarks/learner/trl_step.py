"""TRL's step without its Trainer: its own loss, its fused head on the scored positions alone, and a fused AdamW.

As TRL 1.16 runs on a GPU, where a kernel gives its head the scored positions; on a CPU its head computes padding too,
which would cost it half as much again.
"""

from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor
from transformers import PreTrainedModel
from trl.trainer import utils
from trl.trainer.grpo_trainer import GRPOTrainer

from benchmarks.learner.workload import RATE, RolloutGroup

VERSION: Final = "1.16.0"
_OUTPUTS: Final = ("log_probs", "entropy")
_NO_LABEL: Final = -100


class _ScoredHead(torch.nn.Module):
    """A model that computes TRL's fused head on the labelled positions alone."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.inner = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor, **others: Any) -> Any:
        hidden = self.inner.base_model(input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
        hidden, labels = hidden[:, :-1], labels[:, 1:]
        scored = labels != _NO_LABEL
        fused: Any = utils._ChunkedLogProbFunction
        values = fused.apply(
            hidden[scored], self.inner.lm_head.weight, None, labels[scored], 1.0, utils._CHUNKED_LOGPROB_CHUNK_SIZE,
            None, 1.0, _OUTPUTS,
        )  # fmt: skip
        whole = [None if one is None else one.new_zeros(scored.shape).masked_scatter(scored, one) for one in values]
        return utils.FusedCausalLMOutput(log_probs=whole[0], entropy=whole[1])


def step_of(model: PreTrainedModel, groups: list[RolloutGroup]) -> Callable[[], float]:
    """Return a function that makes one step and returns its loss."""
    model.train()
    trainer, inputs = _trainer(model), _inputs(groups)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    scored = _ScoredHead(model)

    def step() -> float:
        loss = trainer._compute_loss(scored, dict(inputs))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        return float(loss.detach())

    return step


def _trainer(model: PreTrainedModel) -> Any:
    trainer: Any = GRPOTrainer.__new__(GRPOTrainer)
    accelerator = SimpleNamespace(
        num_processes=1, is_main_process=False, reduce=_same, gather=_same, gather_for_metrics=_same,
        sync_gradients=True, autocast=nullcontext,
    )  # fmt: skip
    vars(trainer).update(
        model=model, temperature=1.0, model_kwarg_keys={"logits_to_keep"}, _entropy_bonus_enabled=False,
        aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None,
        importance_sampling_level="token", beta=0.0, loss_type="dapo", epsilon_low=0.2, epsilon_high=0.28,
        args=SimpleNamespace(delta=None, report_to=[], steps_per_generation=1), use_vllm=False,
        vllm_importance_sampling_correction=False, accelerator=accelerator, current_gradient_accumulation_steps=1,
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)}, use_liger_kernel=False,
    )  # fmt: skip
    return trainer


def _same(value: Tensor, reduction: str | None = None) -> Tensor:
    return value


def _inputs(groups: list[RolloutGroup]) -> dict[str, Tensor]:
    completions = [one for group in groups for one in group.completions]
    longest = max(map(len, completions))
    return {
        "prompt_ids": torch.tensor([group.prompt for group in groups for _ in group.completions]),
        "prompt_mask": torch.ones((len(completions), len(groups[0].prompt)), dtype=torch.int64),
        "completion_ids": torch.tensor([[*one, *[0] * (longest - len(one))] for one in completions]),
        "completion_mask": torch.tensor([[1] * len(one) + [0] * (longest - len(one)) for one in completions]),
        "advantages": torch.tensor([value for group in groups for value in _advantages(group.rewards)]),
        "num_items_in_batch": torch.tensor(sum(map(len, completions))),
    }


def _advantages(rewards: list[float]) -> list[float]:
    mean = sum(rewards) / len(rewards)
    deviation = (sum((one - mean) ** 2 for one in rewards) / (len(rewards) - 1)) ** 0.5
    return [(one - mean) / (deviation + 1e-4) for one in rewards]
