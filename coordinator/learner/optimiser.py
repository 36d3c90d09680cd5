"""Run AdamW over float32 master weights; the model itself has only the published values.

Rules
1. The policy is the masters rounded once to bfloat16 (coordinator/learner/ranks/split_master.py). The model computes
   with these values (in `compute_dtype`), so the learner's log-probabilities are those of the version it publishes.
2. Gradients are computed at the published values and applied to the masters, so that updates below one unit in the last
   place accumulate. They are added up in float32: by the passes themselves, where the model computes in float32.
3. A gradient that is not finite changes nothing; `update` returns its norm, and the caller checks it.
4. Frozen parameters (those without `requires_grad`) have no master; they are only brought to the type of computation.
5. A master is put together for its own update, by pieces, and for a checkpoint, one at a time. State per parameter,
   gradient included: 18 bytes where the model computes in float32, 16 in bfloat16 (18 while its passes add their
   gradients).
6. `optimiser_state` says where AdamW's moments lie, and in how many bits (coordinator/learner/moments.py).
7. Where parameters are divided among ranks (learner/ranks/sharded_model.py), each rank has the state of its own rows
   alone. The update is by element; only the gradient's norm is of all ranks.
"""

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim.adamw import adamw
from transformers import PreTrainedModel

from echo2.coordinator.learner.messages import Hyper
from echo2.coordinator.learner.model import cast_parameters, compute_type
from echo2.coordinator.learner.moments import Moments, moments_of
from echo2.coordinator.learner.ranks.local_rows import first_row, local
from echo2.coordinator.learner.ranks.ranks import ONLY_RANK, Ranks
from echo2.coordinator.learner.ranks.split_master import join_master, put
from echo2.coordinator.settings.rate_schedule import warm_up

_FUSED = {"cpu", "cuda", "mps", "xpu"}
_EPSILON = 1e-8
_NORM_EPSILON = 1e-6


class BadTensors(Exception):
    """A checkpoint's tensors do not fit the model."""


class _Weight:
    """A trained parameter with its state. `whole`: as the model has it. `parameter`: this rank's rows of it. `kind`:
    `optimiser_state`. `gradient`: float32, of the passes since the last update."""

    def __init__(self, whole: Tensor, kind: str) -> None:
        self.whole, self.parameter, self._kind = whole, local(whole), kind
        self._first_row = first_row(whole)
        self.residual = torch.zeros_like(self.parameter, dtype=torch.int16)
        self.gradient: Tensor | None = None
        whole.grad = None  # of another optimiser's passes
        self.moments: Moments | None = None
        self.updates = torch.zeros((), device=self.parameter.device)

    @property
    def master(self) -> Tensor:
        """The master, a new tensor."""
        return join_master(self.parameter, self.residual)

    @property
    def nbytes(self) -> int:
        """Bytes of the parameter and its state on its device, with a gradient in float32."""
        moments = self.moments.nbytes if self.moments is not None else 0
        return int(self.parameter.nbytes + self.residual.nbytes + moments + 4 * self.parameter.numel())

    def collect(self) -> None:
        """Add the parameter's gradient. In float32 it is the sum itself, to which the next pass adds (rule 2)."""
        if self.whole.grad is None:
            return
        grad = local(self.whole.grad)
        if grad.dtype == torch.float32:
            self.gradient = grad
            return
        self.gradient = grad.float() if self.gradient is None else self.gradient.add_(grad)
        self.whole.grad = None

    def drop_gradient(self) -> None:
        """Drop the gradient, and that of an unfinished pass."""
        self.gradient = self.whole.grad = None

    def update(self, hyper: Hyper, learning_rate: float) -> None:
        """Apply the gradient. Weight decay is for matrices only: it would shrink norms and biases for no benefit."""
        if self.gradient is None:
            return
        moments = self.moments = self.moments or moments_of(self.parameter, self._kind, self._first_row)
        decay = hyper.weight_decay if self.parameter.ndim > 1 else 0.0
        for piece in moments.pieces:
            parameter, residual, gradient = (one[piece] for one in (self.parameter, self.residual, self.gradient))
            master, (first, second) = join_master(parameter, residual), moments.read(piece)
            adamw(
                [master], [gradient], [first], [second], [], [self.updates.clone()],
                fused=master.device.type in _FUSED, amsgrad=False, beta1=hyper.betas[0], beta2=hyper.betas[1],
                lr=learning_rate, weight_decay=decay, eps=_EPSILON, maximize=False,
            )  # fmt: skip
            put(master, parameter, residual)
            moments.write(piece, first, second, self.updates)
        self.updates += 1

    def restore(self, first: Tensor, second: Tensor, updates: Tensor) -> None:
        """Take the moments of a checkpoint, and the number of their updates."""
        self.moments = moments_of(self.parameter, self._kind, self._first_row)
        self.moments.take(first, second)
        self.updates = updates.to(self.parameter.device).float()


class StateTensors(Mapping[str, Tensor]):
    """The state by name: "master.*", "exp_avg.*", "exp_avg_sq.*", "updates.*" (Adam's step count). Each is put together
    when it is asked for. `others`: further tensors."""

    def __init__(self, weights: Mapping[str, _Weight], others: Mapping[str, Tensor]) -> None:
        self._of: dict[str, Callable[[], Tensor]] = {
            name: lambda tensor=tensor: tensor  # type: ignore[misc]
            for name, tensor in others.items()
        }
        for name, weight in weights.items():
            self._of[f"master.{name}"] = lambda weight=weight: weight.master  # type: ignore[misc]
            if weight.moments is not None:
                self._of[f"exp_avg.{name}"] = weight.moments.first
                self._of[f"exp_avg_sq.{name}"] = weight.moments.second
                self._of[f"updates.{name}"] = lambda updates=weight.updates: updates  # type: ignore[misc]

    def __getitem__(self, name: str) -> Tensor:
        return self._of[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)


class Optimiser:
    """Masters, moments and learning rate of one model, as far as this rank has them. `hyper`: settings of the next
    update."""

    def __init__(self, model: PreTrainedModel, hyper: Hyper, ranks: Ranks = ONLY_RANK) -> None:
        self.hyper, self._ranks = hyper, ranks
        self._weights: dict[str, _Weight] = {}
        masters = {name: local(one).float() for name, one in model.named_parameters() if one.requires_grad}
        cast_parameters(model, compute_type(hyper.compute_dtype, model.device))
        for name, parameter in model.named_parameters():
            if name in masters:
                self._weights[name] = weight = _Weight(parameter, hyper.optimiser_state)
                put(masters.pop(name), weight.parameter, weight.residual)

    @property
    def trained(self) -> list[str]:
        """The names of the trained parameters."""
        return list(self._weights)

    def master(self, name: str) -> Tensor:
        """Return a copy of a parameter's master."""
        return self._weights[name].master

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients added up since the last update, by name."""
        return {name: weight.gradient for name, weight in self._weights.items() if weight.gradient is not None}

    def collect(self) -> None:
        """Add the model's gradients to those of earlier passes, in float32."""
        for weight in self._weights.values():
            weight.collect()

    def drop_gradients(self) -> None:
        """Drop the gradients since the last update, and those of an unfinished pass."""
        for weight in self._weights.values():
            weight.drop_gradient()

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients' sums, which a pass adds to the state where it computes in 16 bits (rule 5)."""
        return sum(4 * weight.parameter.numel() for weight in self._weights.values() if weight.parameter.itemsize < 4)

    def leave_model(self) -> None:
        """Keep this rank's rows and their state alone, for another optimiser's `restore`: the model can be freed."""
        for weight in self._weights.values():
            weight.whole, weight.gradient = weight.parameter, None

    def update(self, learning_rate: float) -> float:
        """Clip, step and round; return the gradient's norm before clipping. If it is not finite, nothing changes."""
        norm = self._norm()
        if math.isfinite(norm):
            factor = min(1.0, self.hyper.gradient_clip / (norm + _NORM_EPSILON))
            for weight in self._weights.values():
                if weight.gradient is not None:
                    weight.gradient.mul_(factor)
                weight.update(self.hyper, learning_rate)
        self.drop_gradients()
        return norm

    def _norm(self) -> float:
        """Return the norm of all ranks' gradients together: the same on each rank."""
        own = get_total_norm(list(self.gradients().values()))
        return float(own if self._ranks.count == 1 else self._ranks.total(own.double().square()).sqrt())

    @property
    def nbytes(self) -> int:
        """Bytes of this rank's parameters and their state, with a gradient in float32 for each (rule 5)."""
        return sum(weight.nbytes for weight in self._weights.values())

    def learning_rate(self, steps: int) -> float:
        """Return the rate of the step after `steps` steps of this optimiser (rule 2 of settings/rate_schedule.py)."""
        return self.hyper.learning_rate * warm_up(self.hyper, steps)

    def tensors(self, others: Mapping[str, Tensor] | None = None) -> StateTensors:
        """Return the state, with other tensors of a checkpoint."""
        return StateTensors(self._weights, others or {})

    def take_published(self) -> None:
        """Let the masters be the model's present values; the moments stay."""
        for weight in self._weights.values():
            weight.residual.zero_()

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state that `tensors` returned. Raises BadTensors before any change."""
        for name, weight in self._weights.items():
            saved = tensors.get(f"master.{name}")
            if saved is None or saved.shape != weight.parameter.shape:
                shape = tuple(weight.parameter.shape)
                raise BadTensors(f"the checkpoint has no {name} of shape {shape}: it is another model's")
        for name, weight in self._weights.items():
            device = weight.parameter.device
            put(tensors[f"master.{name}"].to(device), weight.parameter, weight.residual)
            if f"updates.{name}" in tensors:
                weight.restore(*(tensors[f"{kind}.{name}"] for kind in ("exp_avg", "exp_avg_sq", "updates")))
