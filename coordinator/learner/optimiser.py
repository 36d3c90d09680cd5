"""Run AdamW over float32 master weights; the model itself has only the published values.

Rules
1. The policy is the masters rounded once to bfloat16, to nearest, in `publishable` and nowhere else. The model computes
   with these values (in `compute_dtype`), so the learner's log-probabilities are those of the version it publishes.
2. Gradients are computed at the published values and applied to the masters, so that updates below one unit in the last
   place accumulate.
3. A gradient that is not finite changes nothing; `update` returns its norm, and the caller checks it.
4. Frozen parameters (those without `requires_grad`) have no master; they are only brought to the type of computation.
"""

import math
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from coordinator.learner.messages import Hyper

_MOMENTS = ("exp_avg", "exp_avg_sq")


class BadTensors(Exception):
    """A checkpoint's tensors do not fit the model."""


class Optimiser:
    """Masters, moments and learning rate of one model."""

    def __init__(self, model: PreTrainedModel, hyper: Hyper) -> None:
        self._hyper = hyper
        self._parameters = {name: one for name, one in model.named_parameters() if one.requires_grad}
        self.masters = {
            name: parameter.detach().float().clone().requires_grad_() for name, parameter in self._parameters.items()
        }
        compute = torch.bfloat16 if hyper.compute_dtype == "bfloat16" else torch.float32
        for parameter in model.parameters():
            parameter.data = parameter.data.to(compute)
        # Weight decay applies to matrices only: it would shrink norms and biases for no benefit.
        groups: list[dict[str, Any]] = [
            {"params": [master for master in self.masters.values() if master.ndim > 1]},
            {"params": [master for master in self.masters.values() if master.ndim <= 1], "weight_decay": 0.0},
        ]
        self._adam = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=hyper.learning_rate,
            betas=hyper.betas,
            weight_decay=hyper.weight_decay,
        )
        self._round_into_model()

    def collect(self) -> None:
        """Add the model's gradients to the masters', in float32, and clear them."""
        for name, parameter in self._parameters.items():
            if parameter.grad is None:
                continue
            master, grad = self.masters[name], parameter.grad.float()
            master.grad = grad if master.grad is None else master.grad.add_(grad)
            parameter.grad = None

    def update(self, learning_rate: float) -> float:
        """Clip, step and round; return the gradient's norm before clipping. If it is not finite, nothing changes."""
        norm = float(torch.nn.utils.clip_grad_norm_(self.masters.values(), self._hyper.gradient_clip))
        if math.isfinite(norm):
            for group in self._adam.param_groups:
                group["lr"] = learning_rate
            self._adam.step()
            self._round_into_model()
        self._adam.zero_grad()
        return norm

    def learning_rate(self, steps: int) -> float:
        """Return the rate of the step after `steps` steps of this optimiser: linear warm-up, then constant."""
        warm = min(1.0, (steps + 1) / self._hyper.warmup_steps) if self._hyper.warmup_steps else 1.0
        return self._hyper.learning_rate * warm

    @torch.no_grad()
    def _round_into_model(self) -> None:
        for name, parameter in self._parameters.items():
            parameter.copy_(publishable(self.masters[name]))

    def tensors(self) -> dict[str, Tensor]:
        """Return the state by name: "master.*", "exp_avg.*", "exp_avg_sq.*", "updates.*" (Adam's step count)."""
        tensors = {f"master.{name}": master.detach() for name, master in self.masters.items()}
        for name, master in self.masters.items():
            state = self._adam.state.get(master, {})
            tensors |= {f"{moment}.{name}": state[moment] for moment in _MOMENTS if moment in state}
            if "step" in state:
                tensors[f"updates.{name}"] = state["step"]
        return tensors

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state that `tensors` returned. Raises BadTensors before any change."""
        for name, master in self.masters.items():
            saved = tensors.get(f"master.{name}")
            if saved is None or saved.shape != master.shape:
                raise BadTensors(f"the checkpoint has no {name} of shape {tuple(master.shape)}: it is another model's")
        for name, master in self.masters.items():
            master.copy_(tensors[f"master.{name}"])
            if f"updates.{name}" in tensors:
                state = {moment: tensors[f"{moment}.{name}"].to(master.device) for moment in _MOMENTS}
                self._adam.state[master] = {"step": tensors[f"updates.{name}"], **state}
        self._round_into_model()


def publishable(master: Tensor) -> Tensor:
    """Round float32 to bfloat16, to nearest, ties to even: the only cast of the policy."""
    return master.to(torch.bfloat16)
