"""Arithmetic on ragged rows: segments, scans, what each query sees, dense steps, prefixes, draws.

Everything is the same bits in every run, and what a query gets does not depend on what later rows, later
queries or other series hold: rows are reduced in their order, one after the other and without atomics,
masks select and never multiply, and a product is rounded before it is added.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from math import inf, prod
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from seft.data.batch import Batch, segment_of_row

_CACHED = 1 << 18  # elements of a temporary that stays in a core's cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """The rows that each query sees and the query before it did not.

    P = Q + B intervals in the order of the rows: those of a series' queries, then a rest nobody sees.
    """

    offsets: Tensor  # (P+1,) int64: interval p owns rows offsets[p]:offsets[p+1]
    query: Tensor  # (Q,) int64: which interval is the query's
    query_visible: Tensor  # (Q,) int64: how many rows the query sees
    query_offsets: Tensor  # (B+1,) int64


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """A batch as dense steps: one step for all observations of one (moment, time); T steps, M modalities."""

    time: Tensor  # (T,) float32, hours since the start
    value: Tensor  # (T, M) float32, 0 where not seen
    mask: Tensor  # (T, M) bool, whether seen
    elapsed: Tensor  # (T, M) float32, hours since seen in an earlier step, or else since the first step
    moment: Tensor  # (T,) int32, ascending within a series
    offsets: Tensor  # (B+1,) int64: series b owns steps offsets[b]:offsets[b+1]
    query_visible: Tensor  # (Q,) int64: the query sees the first so many steps of its series


# Segments: rows sorted by segment, `offsets` (B+1,). They are what one query sees that sees them all.


def segment_sum(x: Tensor, offsets: Tensor) -> Tensor:
    """(N, …) -> (B, …): the sum of each segment, 0 where it is empty."""
    return cumulative_sum(x, _whole(offsets))


def segment_mean(x: Tensor, offsets: Tensor) -> Tensor:
    """(N, …) -> (B, …): the mean of each segment, 0 where it is empty."""
    return cumulative_mean(x, _whole(offsets))


def segment_max(x: Tensor, offsets: Tensor) -> Tensor:
    """(N, …) -> (B, …): the maximum of each segment, -inf where it is empty; ties share the gradient."""
    return cumulative_max(x, _whole(offsets))


def segment_logsumexp(x: Tensor, offsets: Tensor) -> Tensor:
    """(N, …) -> (B, …): log Σ_j exp(x_j) over each segment, -inf where it is empty."""
    return cumulative_logsumexp(x, _whole(offsets))


def segment_repeat(x: Tensor, offsets: Tensor) -> Tensor:
    """(B, …) -> (N, …): to each row what its segment has; the gradient is `segment_sum`."""
    y: Tensor = _Repeat.apply(x, _whole(offsets), int(offsets[-1]))  # type: ignore[no-untyped-call]
    return y


def segment_softmax(logits: Tensor, offsets: Tensor) -> Tensor:
    """(N, …) -> (N, …): w_j = exp(e_j) / Σ_k exp(e_k) over j's segment; 0 where every logit is -inf."""
    weight, _, _ = _exponentials(logits, _whole(offsets))
    total = segment_sum(weight, offsets)
    return (weight / segment_repeat(torch.where(total == 0, 1, total), offsets)).to(logits.dtype)


# Scans over the queries of a series, by doubling on the position within it.


def scan_max(x: Tensor, offsets: Tensor) -> Tensor:
    """(Q, …) -> (Q, …): y_q = max(x_q, y_{q-1}) within a segment, without a gradient."""
    y = x.detach().clone()
    position = _align(_position(offsets), y)
    for step in _doubling(offsets):
        longer = torch.maximum(y[step:], y[:-step])
        y[step:] = torch.where(position[step:] >= step, longer, y[step:])
    return y


def scan_linear(x: Tensor, decay: Tensor, offsets: Tensor) -> Tensor:
    """(Q, …), decay (Q, …) in [0, 1] -> (Q, …): y_q = x_q + decay_q y_{q-1} within a segment.

    The dimensions of decay are the first of x's; its first entry in a segment is ignored and a 0 forgets
    even what is infinite. Decay counts as a constant: the gradient is for x, B_q = g_q + decay_{q+1} B_{q+1}.
    """
    y: Tensor = _ScanLinear.apply(x, decay, offsets)  # type: ignore[no-untyped-call]
    return y


class _ScanLinear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, decay: Tensor, offsets: Tensor) -> Tensor:
        ctx.save_for_backward(decay, offsets)
        return _scan(x, decay, offsets)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return _scan_back(g, *ctx.saved_tensors), None, None


def _scan(x: Tensor, decay: Tensor, offsets: Tensor) -> Tensor:
    y = _wide(x).clone(memory_format=torch.contiguous_format)
    # A 0 at each first entry stays in every product that reaches across it, and so parts the segments.
    d = _align(torch.where(_align(_position(offsets), decay) == 0, 0, decay), y).to(y.dtype)
    buffer = torch.empty_like(y)  # a state is large, and fresh memory costs more than the arithmetic
    for step in _doubling(offsets):
        longer = torch.mul(d[step:], y[:-step], out=buffer[step:]).add_(y[step:])
        forgets = d[step:] == 0
        torch.where(forgets, y[step:], longer, out=y[step:])
        d = torch.cat([d[:step], torch.where(forgets, 0, d[step:] * d[:-step])])
    return y.to(x.dtype)


def _scan_back(g: Tensor, decay: Tensor, offsets: Tensor) -> Tensor:
    """(Q, …) -> (Q, …): B_q = g_q + decay_{q+1} B_{q+1} within a segment."""
    return _scan(g.flip(0), decay.flip(0).roll(1, 0), offsets[-1] - offsets.flip(0)).flip(0)


def _doubling(offsets: Tensor) -> Iterator[int]:
    """1, 2, 4 … as far as the longest segment reaches."""
    longest = max(offsets.diff().tolist(), default=0)
    step = 1
    while step < longest:
        yield step
        step *= 2


def _position(offsets: Tensor) -> Tensor:
    """(rows,) int64: 0, 1, 2 … within each segment."""
    segment = segment_of_row(offsets)
    return torch.arange(segment.shape[0], device=offsets.device) - offsets[segment]


# What each query sees: intervals are reduced, then scanned over the queries of a series; O(N + Q log Q).


def between_queries(offsets: Tensor, query_visible: Tensor, query_offsets: Tensor) -> Intervals:
    """The intervals of a batch; the one place that knows which rows a query adds to the query before it."""
    series = segment_of_row(query_offsets)
    query = torch.arange(series.shape[0], device=offsets.device) + series
    rest = query_offsets[1:] + torch.arange(offsets.shape[0] - 1, device=offsets.device)
    ends = offsets.new_empty(query.shape[0] + rest.shape[0])
    ends.index_copy_(0, query, offsets[series] + query_visible).index_copy_(0, rest, offsets[1:])
    return Intervals(
        offsets=F.pad(ends, (1, 0)), query=query, query_visible=query_visible, query_offsets=query_offsets
    )


def cumulative_sum(x: Tensor, intervals: Intervals) -> Tensor:
    """(N, …) -> (Q, …): the sum of what each query sees, 0 where it sees nothing."""
    every = x.new_ones(intervals.query.shape[0])
    return scan_linear(_sum(x, intervals), every, intervals.query_offsets)


def cumulative_mean(x: Tensor, intervals: Intervals) -> Tensor:
    """(N, …) -> (Q, …): the mean of what each query sees, 0 where it sees nothing."""
    total = cumulative_sum(x, intervals)
    return total / _align(intervals.query_visible.clamp(min=1), total).to(total.dtype)


def cumulative_max(x: Tensor, intervals: Intervals) -> Tensor:
    """(N, …) -> (Q, …): the maximum of what each query sees, -inf where it sees nothing.

    The rows of a query's prefix that tie for its maximum share its gradient evenly. x holds no NaN.
    """
    y: Tensor = _CumulativeMax.apply(x, intervals)  # type: ignore[no-untyped-call]
    return y


def cumulative_logsumexp(x: Tensor, intervals: Intervals) -> Tensor:
    """(N, …) -> (Q, …): log Σ_j exp(x_j) over what each query sees, -inf where it sees nothing."""
    weight, peak, decay = _exponentials(x, intervals)
    total = scan_linear(_sum(weight, intervals), decay, intervals.query_offsets)
    return _log(total, peak).to(x.dtype)


def cumulative_softmax(logits: Tensor, values: Tensor, intervals: Intervals) -> tuple[Tensor, Tensor]:
    """log Σ_j exp(e_j) and Σ_j softmax(e)_j v_j over what each query sees.

    logits (N, H), values (N, H, D), or (N, D) for all heads -> (Q, H), -inf where a query sees nothing or
    only logits of -inf, and (Q, H, D), 0 there. A row of weight 0 is left out, whatever its values hold.
    """
    weight, peak, decay = _exponentials(logits, intervals)
    total = scan_linear(_sum(weight, intervals), decay, intervals.query_offsets)
    by_head = values[:, None] if values.dim() == 2 else values
    state: Tensor = _WeightedSum.apply(weight, by_head, intervals)  # type: ignore[no-untyped-call]
    state = scan_linear(state, decay, intervals.query_offsets)
    mean = (state / torch.where(total == 0, 1, total)[..., None]).to(values.dtype)
    return _log(total, peak).to(logits.dtype), mean


def _log(total: Tensor, peak: Tensor) -> Tensor:
    """The logarithm of a sum of exponentials whose largest was `peak`."""
    nothing = total == 0
    return torch.where(nothing, -inf, torch.where(nothing, 1, total).log() + peak)


class _Sum(Function):
    """(N, …) -> (Q, …): the sum of each interval; the gradient goes back to its rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, intervals: Intervals) -> Tensor:
        ctx.rows, ctx.intervals = x.shape[0], intervals
        return _reduce(x, intervals, "sum")

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return _to_rows(g, ctx.intervals, ctx.rows, rest=0), None


class _Repeat(Function):
    """(Q, …) -> (N, …): to each row what its interval has, 0 where nobody sees it; its gradient is summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, intervals: Intervals, rows: int) -> Tensor:
        ctx.intervals = intervals
        return _to_rows(x, intervals, rows, rest=0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return _reduce(g, ctx.intervals, "sum"), None, None


class _CumulativeMax(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, intervals: Intervals) -> Tensor:
        y = scan_max(_reduce(x, intervals, "max"), intervals.query_offsets)
        ctx.save_for_backward(x, y)
        ctx.intervals = intervals
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        x, y = ctx.saved_tensors
        intervals: Intervals = ctx.intervals
        # A row that is not the maximum where it is first seen never becomes it; a query that has the same
        # maximum as the query before it has the same ties and some more.
        tie = x == _to_rows(y, intervals, x.shape[0], rest=0)
        same = (y == y.roll(1, 0)).to(_wide(y).dtype)
        ties = _scan(_reduce(tie.to(same.dtype), intervals, "sum"), same, intervals.query_offsets)
        share = _scan_back(g / ties.clamp(min=1), same, intervals.query_offsets)
        return _to_rows(share.to(g.dtype), intervals, x.shape[0], rest=0).masked_fill_(~tie, 0), None


class _WeightedSum(Function):
    """weight (N, H), values (N, H or 1, D) -> (Q, H, D): Σ_j weight_j values_j over each interval.

    The products are never written down: forward is one pass over the values, backward goes in cached parts.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, values: Tensor, intervals: Intervals) -> Tensor:
        ctx.save_for_backward(weight, values)
        ctx.intervals = intervals
        (n, heads), width = weight.shape, values.shape[2]
        row = (
            torch.arange(n * values.shape[1], device=weight.device).view(n, values.shape[1]).expand(n, heads)
        )
        start = torch.arange(heads, device=weight.device)[:, None] * n + intervals.offsets[:-1]
        keep = weight.T.flatten() > 0  # 0 · inf is not 0
        kept = F.pad(keep.cumsum(0), (1, 0))
        y = F.embedding_bag(
            row.T.flatten()[keep],
            values.flatten(0, 1),
            torch.cat([kept[start.flatten()], kept[-1:]]),
            mode="sum",
            per_sample_weights=weight.T.flatten()[keep].to(values.dtype),
            include_last_offset=True,
        )
        return _wide(y).view(heads, -1, width)[:, intervals.query].transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None]:
        weight, values = ctx.saved_tensors
        d_weight, d_values = torch.empty_like(weight), torch.empty_like(values)
        of_interval, interval = _with_rest(g, ctx.intervals, rest=0), segment_of_row(ctx.intervals.offsets)
        size = max(1, _CACHED // max(1, prod(g.shape[1:])))
        for part in (slice(a, a + size) for a in range(0, weight.shape[0], size)):
            of_row = of_interval.index_select(0, interval[part])
            d_weight[part] = torch.where(weight[part] > 0, (of_row * values[part]).sum(2), 0)
            d_values[part] = (weight[part, :, None] * of_row).sum_to_size(values[part].shape)
        return d_weight, d_values, None


def _sum(x: Tensor, intervals: Intervals) -> Tensor:
    y: Tensor = _Sum.apply(x, intervals)  # type: ignore[no-untyped-call]
    return y


def _exponentials(logits: Tensor, intervals: Intervals) -> tuple[Tensor, Tensor, Tensor]:
    """(N, …) -> exp(e_j - m_q) (N, …) for the first query that sees j, m_q (Q, …), exp(m_{q-1} - m_q) (Q, …).

    m is the running maximum, a constant for the gradient; 0 stands for it where it is infinite.
    """
    logits = _wide(logits)
    highest = scan_max(_reduce(logits.detach(), intervals, "max"), intervals.query_offsets)
    peak = torch.where(highest.isinf(), 0, highest)
    decay = (highest.roll(1, 0) - peak).exp()
    of_row = _to_rows(peak, intervals, logits.shape[0], rest=inf)
    return torch.where(of_row == inf, -inf, logits - of_row).exp(), peak, decay


def _whole(offsets: Tensor) -> Intervals:
    """One query a segment, which sees all of it."""
    return between_queries(offsets, offsets.diff(), torch.arange(offsets.shape[0], device=offsets.device))


def _reduce(x: Tensor, intervals: Intervals, mode: Literal["sum", "max"]) -> Tensor:
    """(N, …) -> (Q, …): the sum or the maximum of each query's interval; 0 or -inf where it is empty.

    A bag of consecutive rows is read in place, in order, by one thread: much faster than
    `segment_reduce`, and without the atomics of `index_add`.
    """
    rows = torch.arange(x.shape[0], device=x.device)
    flat = x.reshape(x.shape[0], prod(x.shape[1:]))
    y = F.embedding_bag(rows, flat, intervals.offsets, mode=mode, include_last_offset=True)
    y = y[intervals.query].view(intervals.query.shape[0], *x.shape[1:])
    if mode == "sum":
        return y
    empty = intervals.offsets.diff()[intervals.query] == 0
    return torch.where(_align(empty, y), -inf, y)


def _to_rows(y: Tensor, intervals: Intervals, rows: int, rest: float) -> Tensor:
    """(Q, …) -> (N, …): to each row what the first query that sees it has, `rest` where none does."""
    counts = intervals.offsets.diff()
    return _with_rest(y, intervals, rest).repeat_interleave(counts, 0, output_size=rows)


def _with_rest(y: Tensor, intervals: Intervals, rest: float) -> Tensor:
    """(Q, …) -> (P, …): to each interval what its query has, `rest` to those without one."""
    every = y.new_full((intervals.offsets.shape[0] - 1, *y.shape[1:]), rest)
    return every.index_copy_(0, intervals.query, y)


def _align(x: Tensor, like: Tensor) -> Tensor:
    """x with as many dimensions as `like`, its own first."""
    return x.reshape(x.shape + (1,) * (like.dim() - x.dim()))


def _wide(x: Tensor) -> Tensor:
    """x in at least float32, in which states are kept."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


# Whole batches.


def to_steps(batch: Batch, modalities: int) -> Steps:
    """Dense steps in the order of (moment, time), whatever the order of the rows within a moment.

    δ_t = s_t - s_{t-1} (+ δ_{t-1} where not seen at t-1), on a clock s that never runs backwards: a late
    observation makes a later step with an older time. The gradient reaches the values.
    """
    moment = _differs(segment_of_row(batch.offsets), batch.moment).cumsum(0)
    order = batch.time.argsort(stable=True)
    order = order[moment[order].argsort(stable=True)]
    time = batch.time[order]
    first = _differs(moment, time)
    before = F.pad(first.cumsum(0), (1, 0))  # how many steps begin before a row
    start = batch.offsets[segment_of_row(batch.query_offsets)]
    offsets, steps = before[batch.offsets], int(before[-1])

    step = torch.empty_like(order).index_copy_(0, order, before[1:] - 1)
    cell = step * modalities + batch.modality
    value = batch.value.new_zeros(steps * modalities).index_copy(0, cell, batch.value)
    mask = torch.zeros_like(value, dtype=torch.bool).index_fill_(0, cell, True).view(steps, modalities)
    return Steps(
        time=time[first],
        value=value.view(steps, modalities),
        mask=mask,
        elapsed=_elapsed(time[first], mask, offsets),
        moment=batch.moment[first],
        offsets=offsets,
        query_visible=before[start + batch.query_visible] - before[start],
    )


def _elapsed(time: Tensor, mask: Tensor, offsets: Tensor) -> Tensor:
    """time (T,), mask (T, M) -> (T, M): hours since seen in an earlier step, or else since the first."""
    clock = scan_max(time, offsets)[:, None]
    first = _position(offsets)[:, None] == 0
    seen = scan_max(torch.where(mask | first, clock, -inf), offsets)
    return torch.where(first, 0, clock - seen.roll(1, 0))


def _differs(*keys: Tensor) -> Tensor:
    """(N,) bool: whether a row is the first of all or differs in a key from the row before it."""
    differs = torch.ones_like(keys[0], dtype=torch.bool)
    differs[1:] = torch.stack([key[1:] != key[:-1] for key in keys]).any(0)
    return differs


def expand_prefixes(batch: Batch) -> Batch:
    """Each query as a series of its own, with the rows it sees and no other query; Q series."""
    series = segment_of_row(batch.query_offsets)
    rows, offsets = _ranges(batch.offsets[series], batch.query_visible)
    alone = torch.arange(batch.queries + 1, device=offsets.device)
    return replace(_gather(batch, series, rows, offsets), query_offsets=alone)


def take(batch: Batch, rows: Tensor) -> Batch:
    """The series at these positions (R,) int64 of a batch, in this order, repeats allowed; R series."""
    observations, offsets = _ranges(batch.offsets[rows], batch.offsets[rows + 1] - batch.offsets[rows])
    starts = batch.query_offsets[rows]
    queries, query_offsets = _ranges(starts, batch.query_offsets[rows + 1] - starts)
    return replace(
        _gather(batch, rows, observations, offsets),
        query_time=batch.query_time[queries],
        query_visible=batch.query_visible[queries],
        query_offsets=query_offsets,
        label=batch.label[queries],
    )


def keep(batch: Batch, rows: Tensor) -> Batch:
    """The batch with just these observations (N,) bool; moments count anew, queries see what is left."""
    before = F.pad(rows.cumsum(0), (1, 0))  # how many are kept before a row
    offsets = before[batch.offsets]
    start = batch.offsets[segment_of_row(batch.query_offsets)]
    series, moment = segment_of_row(batch.offsets)[rows], batch.moment[rows]
    number = _differs(series, moment).cumsum(0)
    first = F.pad(number, (0, 1))[offsets[:-1]]
    return replace(
        batch,
        time=batch.time[rows],
        arrival=batch.arrival[rows],
        value=batch.value[rows],
        modality=batch.modality[rows],
        moment=(number - first[series]).int(),
        offsets=offsets,
        query_visible=before[start + batch.query_visible] - before[start],
    )


def concat(batches: Sequence[Batch]) -> Batch:
    """The series of some batches, at least one, one after the other."""
    joined = {f.name: torch.cat([getattr(batch, f.name) for batch in batches]) for f in fields(Batch)}
    for name in ("offsets", "query_offsets"):
        counts = torch.cat([getattr(batch, name).diff() for batch in batches])
        joined[name] = F.pad(counts.cumsum(0), (1, 0))
    return Batch(**joined)


def _gather(batch: Batch, series: Tensor, rows: Tensor, offsets: Tensor) -> Batch:
    """The batch with these series (R,) and their rows; its queries are still as they were."""
    return replace(
        batch,
        series=batch.series[series],
        time=batch.time.index_select(0, rows),
        arrival=batch.arrival.index_select(0, rows),
        value=batch.value.index_select(0, rows),
        modality=batch.modality.index_select(0, rows),
        moment=batch.moment.index_select(0, rows),
        offsets=offsets,
        static=batch.static[series],
    )


def _ranges(starts: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """(R,), (R,) -> the positions starts[r] … starts[r] + counts[r] - 1, one r after the other; offsets."""
    offsets = F.pad(counts.cumsum(0), (1, 0))
    shift = (starts - offsets[:-1]).repeat_interleave(counts)
    return shift.add_(torch.arange(shift.shape[0], device=shift.device)), offsets
