"""How a model is trained; the same fields for every model."""

from dataclasses import dataclass
from typing import Literal

from seft.models.hyperparameter import LogUniform, hyper


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """The defaults serve data that nobody tuned for; the paper's recipe is its presets."""

    # How batches are drawn: `balanced` are the paper's, with its number of steps an epoch.
    sampling: Literal["natural", "balanced"] = "natural"
    # Series a step; None: a sixteenth of the training series, at least 8 and at most 64.
    batch_size: int | None = hyper(None, legal=(1, 1_000_000), search=(32, 64, 128, 256, 512))
    optimizer: Literal["adam", "adamw", "adamax"] = "adamw"
    learning_rate: float = hyper(1e-3, legal=(1e-8, 10.0), search=LogUniform(1e-4, 1e-2))
    weight_decay: float = hyper(1e-2, legal=(0.0, 1e3))  # of AdamW alone
    clip_norm: float | None = hyper(1.0, legal=(1e-8, 1e8))
    # The learning rate over time. `plateau` halves it when the monitored metric stands still, as the
    # released code does; `one_cycle`, `cosine` and `exponential` run over all of `max_epochs`.
    schedule: Literal["constant", "plateau", "one_cycle", "cosine", "exponential"] = "constant"
    warmup_steps: int = hyper(0, legal=(0, 10_000_000))
    averaging: float | None = hyper(None, legal=(0.0, 0.99999))  # decay of a running mean of the weights
    class_weights: tuple[float, ...] | None = None  # one a class, multiplied into the loss of its labels
    max_epochs: int = hyper(300, legal=(1, 1_000_000))
    patience: int = hyper(30, legal=(1, 1_000_000))  # epochs without improvement of the task's metric
    min_delta: float = hyper(1e-4, legal=(0.0, 1.0))  # what counts as improvement
    seed: int = hyper(0, legal=(0, 2**31 - 1))

    def series_a_step(self, series: int) -> int:
        return min(max(series // 16, 8), 64) if self.batch_size is None else self.batch_size
