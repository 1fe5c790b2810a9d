"""What a query sees, reduced to one vector a head, and carried on from where a stream stood.

A pooled state is as good as one element that stands for all that was seen: a level (log Σ exp e) and the
weighted mean of the values. Two such states, or a state and new observations, are joined exactly.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from seft.data import ragged


@dataclass(frozen=True, slots=True)
class Pooled:
    """A pooled state of some series or queries."""

    level: Tensor  # (…, H) log Σ_j exp(e_j), -inf where nothing was seen
    value: Tensor  # (…, H, D) Σ_j softmax(e)_j h_j, 0 where nothing was seen

    def repeat(self, offsets: Tensor) -> "Pooled":
        """(B, …) -> (Q, …): to each query what its series has; the gradient adds up in order."""
        return Pooled(ragged.segment_repeat(self.level, offsets), ragged.segment_repeat(self.value, offsets))


def softmax_pool(logits: Tensor, values: Tensor, intervals: ragged.Intervals, carry: Pooled) -> Pooled:
    """logits (N, H), values (N, D), carry of B series -> of Q queries: Σ_j softmax(e)_j h_j.

    Over what each query sees; the mean is the case of equal logits.
    """
    seen = Pooled(*ragged.cumulative_softmax(logits, values, intervals))
    return join(carry.repeat(intervals.query_offsets), seen)


def join(one: Pooled, other: Pooled) -> Pooled:
    """What both have seen together."""
    level = torch.logaddexp(one.level, other.level)
    nothing = level == -torch.inf
    safe = torch.where(nothing, 0, level)
    share = [torch.where(nothing, 0, (part.level - safe).exp())[..., None] for part in (one, other)]
    return Pooled(level, share[0] * one.value + share[1] * other.value)


def sum_pool(values: Tensor, intervals: ragged.Intervals, carry: Pooled) -> Pooled:
    """values (N, D) -> Σ_j h_j over what each query sees; the level stays as it is."""
    before = carry.repeat(intervals.query_offsets)
    return Pooled(before.level, before.value + ragged.cumulative_sum(values, intervals)[:, None])


def max_pool(values: Tensor, intervals: ragged.Intervals, carry: Pooled) -> Pooled:
    """values (N, D) -> max_j h_j over what each query sees; h is not negative, so 0 stands for nothing."""
    before = carry.repeat(intervals.query_offsets)
    highest = ragged.cumulative_max(values, intervals)[:, None].clamp(min=0)
    return Pooled(before.level, torch.maximum(before.value, highest))
