"""What holds for arithmetic on ragged rows, against plain loops, forward and backward."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import pairwise
from math import inf, nan, prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from seft.data import ragged
from seft.data.batch import Batch, segment_of_row
from seft.data.ragged import Intervals
from tests.data.random_batch import random_batch

MODALITIES = 3
HEADS, WIDTH = 2, 3

batches = random_batch(MODALITIES)
seeds = st.integers(0, 1 << 32)
often = settings(max_examples=60, deadline=None)

Reduction = Callable[[Tensor], Tensor]  # (n, …) -> (…), n may be 0
Cumulative = Callable[[Tensor, Intervals], Tensor]
Segment = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The arrays are tiny: on a busy machine a second thread is only waited for."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# The same arithmetic, said plainly.


def sum_of(x: Tensor) -> Tensor:
    return x.sum(0)


def mean_of(x: Tensor) -> Tensor:
    return x.sum(0) / max(1, x.shape[0])


def max_of(x: Tensor) -> Tensor:
    return x.amax(0) if x.shape[0] else torch.full(x.shape[1:], -inf, dtype=x.dtype)


def logsumexp_of(x: Tensor) -> Tensor:
    """Column by column, of the rows that are not -inf: those have no part in it."""
    columns = x.reshape(x.shape[0], prod(x.shape[1:])).unbind(1)
    alive = [column[column > -inf] for column in columns]
    lowest = torch.tensor(-inf, dtype=x.dtype)
    return torch.stack([a.logsumexp(0) if a.shape[0] else lowest for a in alive]).view(x.shape[1:])


def softmax_of(x: Tensor) -> Tensor:
    weight = (x - x.amax(0).clamp(min=-1e300)).exp() if x.shape[0] else x
    total = weight.sum(0)
    return weight / torch.where(total == 0, 1, total)


REDUCTIONS: list[tuple[Segment, Cumulative, Reduction]] = [
    (ragged.segment_sum, ragged.cumulative_sum, sum_of),
    (ragged.segment_mean, ragged.cumulative_mean, mean_of),
    (ragged.segment_max, ragged.cumulative_max, max_of),
    (ragged.segment_logsumexp, ragged.cumulative_logsumexp, logsumexp_of),
]
every_reduction = pytest.mark.parametrize(
    ("segment", "cumulative", "plain"), REDUCTIONS, ids=["sum", "mean", "max", "logsumexp"]
)


def softmax_sum_of(logits: Tensor, values: Tensor) -> Tensor:
    values = values[:, None] if values.dim() == 2 else values
    return (softmax_of(logits)[..., None] * torch.where(logits[..., None] > -inf, values, 0)).sum(0)


def spans(offsets: Tensor) -> Iterator[slice]:
    return (slice(a, b) for a, b in pairwise(offsets.tolist()))


def sights(batch: Batch) -> list[slice]:
    """The rows that each query sees."""
    return [
        slice(rows.start, rows.start + sees)
        for rows, queries in zip(spans(batch.offsets), spans(batch.query_offsets), strict=True)
        for sees in batch.query_visible[queries].tolist()
    ]


def stack(parts: list[Tensor], like: Tensor) -> Tensor:
    return torch.stack(parts) if parts else torch.zeros(0, *like.shape, dtype=like.dtype)


# Numbers.


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def tied(seed: int, *shape: int) -> Tensor:
    """Few different numbers, and -inf among them."""
    x = normal(seed, *shape).round()
    return torch.where(x < -0.5, -inf, x)


def intervals_of(batch: Batch) -> Intervals:
    return ragged.between_queries(batch.offsets, batch.query_visible, batch.query_offsets)


def alone(batch: Batch, query: int) -> tuple[slice, slice, Intervals]:
    """A query with what it sees and the queries before it, as if nothing else were known."""
    b = int(segment_of_row(batch.query_offsets)[query])
    queries = slice(int(batch.query_offsets[b]), query + 1)
    seen = batch.query_visible[queries]
    start, count = int(batch.offsets[b]), int(seen[-1])
    ends = torch.tensor([0, count]), torch.tensor([0, seen.shape[0]])
    return slice(start, start + count), queries, ragged.between_queries(ends[0], seen, ends[1])


def assert_same(a: object, b: object) -> None:
    """Two batches, steps or tensors, bit by bit."""
    if isinstance(a, Tensor):
        assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    else:
        for f in fields(a):  # type: ignore[arg-type]
            assert_same(getattr(a, f.name), getattr(b, f.name))


def assert_agree(ours: Callable[..., Tensor], plain: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Both give the same, and the same gradient for all inputs."""
    given = [x.clone().requires_grad_() for x in inputs]
    y, expected = ours(*given), plain(*given)
    assert_close(y, expected)
    probe = normal(y.numel(), *y.shape)
    assert_close(gradients(y, given, probe), gradients(expected, given, probe))


def gradients(y: Tensor, inputs: list[Tensor], probe: Tensor) -> list[Tensor]:
    if not y.requires_grad:
        return [torch.zeros_like(x) for x in inputs]
    found = torch.autograd.grad(y, inputs, probe, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


# Segments.


@every_reduction
@given(batch=batches, seed=seeds)
@often
def test_a_segment_is_reduced_as_a_loop_would(
    segment: Segment, cumulative: Cumulative, plain: Reduction, batch: Batch, seed: int
) -> None:
    for x in (normal(seed, batch.observations, 2, 2), tied(seed, batch.observations)):
        if plain is sum_of or plain is mean_of:
            x = x.clamp(min=-9)

        def loop(x: Tensor) -> Tensor:
            return stack([plain(x[rows]) for rows in spans(batch.offsets)], like=x[:0].sum(0))

        assert_agree(lambda x: segment(x, batch.offsets), loop, x)


@given(batch=batches, seed=seeds)
@often
def test_a_softmax_is_taken_within_its_segment(batch: Batch, seed: int) -> None:
    def loop(x: Tensor) -> Tensor:
        return torch.cat([x[:0], *(softmax_of(x[rows]) for rows in spans(batch.offsets))])

    for x in (normal(seed, batch.observations, 2), tied(seed, batch.observations)):
        assert_agree(lambda x: ragged.segment_softmax(x, batch.offsets), loop, x)


def test_a_segment_of_nothing_but_minus_infinity_has_no_weights_and_no_nan() -> None:
    logits = torch.tensor([-inf, -inf, 1.0, -inf], requires_grad=True)
    weights = ragged.segment_softmax(logits, torch.tensor([0, 2, 2, 4]))
    (found,) = torch.autograd.grad(weights, logits, torch.arange(4.0))
    assert weights.tolist() == [0, 0, 1, 0]
    assert found.tolist() == [0, 0, 0, 0]


@given(batch=batches, seed=seeds)
@often
def test_what_a_segment_has_is_repeated_to_its_rows(batch: Batch, seed: int) -> None:
    def loop(x: Tensor) -> Tensor:
        segments = [b for b, rows in enumerate(spans(batch.offsets)) for _ in range(rows.stop - rows.start)]
        return x[segments]

    assert_agree(lambda x: ragged.segment_repeat(x, batch.offsets), loop, normal(seed, len(batch), 2))


# Scans.


@given(batch=batches, seed=seeds)
@often
def test_a_running_maximum_starts_over_in_each_series(batch: Batch, seed: int) -> None:
    x = tied(seed, batch.queries, 2)
    expected = [x[s].cummax(0).values for s in spans(batch.query_offsets) if s.start < s.stop]
    assert_same(ragged.scan_max(x, batch.query_offsets), torch.cat([x[:0], *expected]))


@given(batch=random_batch(series=3), seed=seeds)
@often
def test_a_linear_recurrence_starts_over_in_each_series(batch: Batch, seed: int) -> None:
    decay = normal(seed + 1, batch.queries, 2).clamp(0, 1)

    def loop(x: Tensor) -> Tensor:
        out: list[Tensor] = []
        for queries in spans(batch.query_offsets):
            for q in range(queries.start, queries.stop):
                out.append(x[q] if q == queries.start else x[q] + decay[q, :, None] * out[-1])
        return stack(out, like=x[:0].sum(0))

    x = normal(seed, batch.queries, 2, 3)
    assert_agree(lambda x: ragged.scan_linear(x, decay, batch.query_offsets), loop, x)


def test_a_decay_of_zero_forgets_even_infinity() -> None:
    x = torch.tensor([inf, 1.0, 2.0, nan, 3.0, 4.0])
    decay = torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0, 0.5])
    assert_same(
        ragged.scan_linear(x, decay, torch.tensor([0, 4, 6]))[[0, 1, 2, 4, 5]],
        torch.tensor([inf, 1, 3, 3, 5.5]),
    )


# What each query sees.


@every_reduction
@given(batch=batches, seed=seeds)
@often
def test_a_query_reduces_what_it_sees_as_a_loop_would(
    segment: Segment, cumulative: Cumulative, plain: Reduction, batch: Batch, seed: int
) -> None:
    for x in (normal(seed, batch.observations, 2, 2), tied(seed, batch.observations)):
        if plain is sum_of or plain is mean_of:
            x = x.clamp(min=-9)

        def loop(x: Tensor) -> Tensor:
            return stack([plain(x[rows]) for rows in sights(batch)], like=x[:0].sum(0))

        assert_agree(lambda x: cumulative(x, intervals_of(batch)), loop, x)


@pytest.mark.parametrize("shape", [(WIDTH,), (HEADS, WIDTH)], ids=["shared values", "values by head"])
@given(batch=batches, seed=seeds)
@often
def test_a_query_weighs_what_it_sees_by_softmax(shape: tuple[int, ...], batch: Batch, seed: int) -> None:
    def loop(logits: Tensor, values: Tensor) -> Tensor:
        like = torch.zeros(HEADS, WIDTH, dtype=torch.float64)
        return stack([softmax_sum_of(logits[rows], values[rows]) for rows in sights(batch)], like)

    def ours(logits: Tensor, values: Tensor) -> Tensor:
        return ragged.cumulative_softmax(logits, values, intervals_of(batch))[1]

    values = normal(seed + 1, batch.observations, *shape)
    for logits in (normal(seed, batch.observations, HEADS), tied(seed, batch.observations, HEADS)):
        assert_agree(ours, loop, logits, values)


@every_reduction
@given(batch=batches)
@often
def test_a_query_sees_what_a_series_that_ends_with_it_holds(
    segment: Segment, cumulative: Cumulative, plain: Reduction, batch: Batch
) -> None:
    prefixes = ragged.expand_prefixes(batch)
    y = cumulative(batch.value.double(), intervals_of(batch))
    assert_close(y, segment(prefixes.value.double(), prefixes.offsets))


def reductions_in_float32() -> list[Cumulative]:
    def weighted(x: Tensor, intervals: Intervals) -> Tensor:
        return ragged.cumulative_softmax(x, x.flip(1), intervals)[1]

    def weighted_by_head(x: Tensor, intervals: Intervals) -> Tensor:
        return ragged.cumulative_softmax(x, x[:, :, None] * x[:, None], intervals)[1]

    return [cumulative for _, cumulative, _ in REDUCTIONS] + [weighted, weighted_by_head]


@pytest.mark.parametrize("cumulative", reductions_in_float32())
@given(batch=batches, seed=seeds, data=st.data())
@often
def test_what_comes_after_a_query_changes_no_bit_of_its_answer(
    cumulative: Cumulative, batch: Batch, seed: int, data: st.DataObject
) -> None:
    if batch.queries == 0:
        return
    query = data.draw(st.integers(0, batch.queries - 1))
    rows, queries, intervals = alone(batch, query)
    x = normal(seed, batch.observations, HEADS).float()
    expected = cumulative(x[rows], intervals)
    assert_same(cumulative(x, intervals_of(batch))[queries], expected)
    for other in (1e30, -1e30, inf, -inf, nan):
        changed = torch.full_like(x, other)
        changed[rows] = x[rows]
        assert_same(cumulative(changed, intervals_of(batch))[queries], expected)


@pytest.mark.parametrize("cumulative", reductions_in_float32())
def test_a_long_series_in_a_large_batch_gets_the_bits_it_gets_alone(cumulative: Cumulative) -> None:
    counts, every = torch.tensor([501, 0, 997, 130, 1203]), 7
    offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    visible = torch.cat([torch.arange(0, int(n) + 1, every) for n in counts])
    query_offsets = torch.nn.functional.pad((counts // every + 1).cumsum(0), (1, 0))
    x = normal(0, int(offsets[-1]), 19).float()
    y = cumulative(x, ragged.between_queries(offsets, visible, query_offsets))
    for rows, queries in zip(spans(offsets), spans(query_offsets), strict=True):
        for some in (slice(queries.start, queries.stop - 20), queries):
            if some.start >= some.stop:
                continue
            seen = visible[some]
            ends = torch.tensor([0, int(seen[-1])]), torch.tensor([0, seen.shape[0]])
            part = x[rows][: int(seen[-1])].clone()
            assert_same(y[some], cumulative(part, ragged.between_queries(ends[0], seen, ends[1])))


@given(batch=batches, seed=seeds)
@often
def test_large_logits_stay_finite(batch: Batch, seed: int) -> None:
    sign = normal(seed, batch.observations, HEADS).sign().float()
    logits = (1e4 * sign).requires_grad_()
    values = normal(seed, batch.observations, WIDTH).float().requires_grad_()
    y = ragged.cumulative_softmax(logits, values, intervals_of(batch))[1]
    total = ragged.cumulative_logsumexp(logits, intervals_of(batch))
    weights = ragged.segment_softmax(logits, batch.offsets)
    found = torch.autograd.grad(
        [y, total, weights], [logits, values], [torch.ones_like(t) for t in (y, total, weights)]
    )
    blind = torch.tensor([rows.start == rows.stop for rows in sights(batch)], dtype=torch.bool)
    assert all(bool(t.isfinite().all()) for t in (y, total[~blind], weights, *found))
    assert bool((y[blind] == 0).all())
    assert bool((total[blind] == -inf).all())


def test_a_row_without_weight_is_left_out_whatever_its_values_hold() -> None:
    logits = torch.tensor([[0.0], [-inf], [0.0], [-inf]], requires_grad=True)
    values = torch.tensor([[1.0], [inf], [3.0], [nan]], requires_grad=True)
    intervals = ragged.between_queries(torch.tensor([0, 4]), torch.tensor([2, 4]), torch.tensor([0, 2]))
    y = ragged.cumulative_softmax(logits, values, intervals)[1]
    d_logits, d_values = torch.autograd.grad(y.sum(), [logits, values])
    assert y.flatten().tolist() == [1, 2]
    assert d_logits.flatten().tolist() == [-0.5, 0, 0.5, 0]
    assert d_values.flatten().tolist() == [1.5, 0, 0.5, 0]


def test_the_gradient_is_the_same_in_parts_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, values = normal(0, 50, HEADS).requires_grad_(), normal(1, 50, WIDTH).requires_grad_()
    intervals = ragged.between_queries(torch.tensor([0, 50]), torch.tensor([20, 40]), torch.tensor([0, 2]))
    found = []
    for cached in (1, 100, 1 << 18):
        monkeypatch.setattr(ragged, "_CACHED", cached)
        y = ragged.cumulative_softmax(logits, values, intervals)[1]
        found.append(torch.autograd.grad(y.square().sum(), [logits, values]))
    assert_close(found[0], found[2])
    assert_close(found[1], found[2])


@pytest.mark.parametrize("cumulative", reductions_in_float32())
def test_half_precision_in_is_half_precision_out(cumulative: Cumulative) -> None:
    intervals = ragged.between_queries(torch.tensor([0, 90]), torch.arange(10, 91, 10), torch.tensor([0, 9]))
    x = normal(0, 90, 2).abs().bfloat16().requires_grad_()
    y, exact = cumulative(x, intervals), cumulative(x.double(), intervals)
    (found,), (wanted,) = (torch.autograd.grad(z.sum(), x) for z in (y, exact))
    assert y.dtype == found.dtype == torch.bfloat16
    assert_close(y.double(), exact, rtol=2e-2, atol=2e-2)
    assert_close(found, wanted, rtol=3e-2, atol=2e-2)


def test_states_of_half_precision_are_kept_in_float32() -> None:
    ones, ends = torch.ones(3000, 1, dtype=torch.bfloat16), torch.arange(0, 3001, 10)
    intervals = ragged.between_queries(torch.tensor([0, 3000]), ends, torch.tensor([0, 301]))
    exact = ends[:, None].double()
    assert_same(ragged.cumulative_sum(ones, intervals), exact.bfloat16())
    assert_same(ragged.cumulative_logsumexp(0 * ones, intervals), exact.log().bfloat16())


# Whole batches.


@given(batch=batches)
@often
def test_random_batches_keep_the_contract(batch: Batch) -> None:
    batch.check(MODALITIES)


@given(batch=batches)
@often
def test_a_batch_is_the_concatenation_of_its_series(batch: Batch) -> None:
    singles = [ragged.take(batch, torch.tensor([b])) for b in range(len(batch))]
    nothing = ragged.take(batch, torch.tensor([], dtype=torch.int64))
    assert_same(ragged.concat([nothing, *singles, nothing]), batch)


@given(batch=batches, data=st.data())
@often
def test_series_are_taken_in_any_order_and_repeatedly(batch: Batch, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, len(batch) - 1))) if len(batch) else []
    taken = ragged.take(batch, torch.tensor(rows, dtype=torch.int64))
    taken.check(MODALITIES)
    places = zip(rows, spans(taken.offsets), spans(taken.query_offsets), strict=True)
    for b, observations, queries in places:
        own, asked = list(spans(batch.offsets))[b], list(spans(batch.query_offsets))[b]
        for name in ("time", "arrival", "value", "modality", "moment"):
            assert_same(getattr(taken, name)[observations], getattr(batch, name)[own])
        for name in ("query_time", "query_visible", "label"):
            assert_same(getattr(taken, name)[queries], getattr(batch, name)[asked])
    assert_same(taken.series, batch.series[rows])
    assert_same(taken.static, batch.static[rows])


@given(batch=batches)
@often
def test_a_prefix_holds_just_what_its_query_saw(batch: Batch) -> None:
    prefixes = ragged.expand_prefixes(batch)
    prefixes.check(MODALITIES)
    of_query = [
        b for b, queries in enumerate(spans(batch.query_offsets)) for _ in range(queries.stop - queries.start)
    ]
    rows = [j for seen in sights(batch) for j in range(seen.start, seen.stop)]
    assert_same(prefixes.series, batch.series[of_query])
    assert_same(prefixes.static, batch.static[of_query])
    for name in ("time", "arrival", "value", "modality", "moment"):
        assert_same(getattr(prefixes, name), getattr(batch, name)[rows])
    for name in ("query_time", "query_visible", "label"):
        assert_same(getattr(prefixes, name), getattr(batch, name))
    assert_same(prefixes.offsets.diff(), batch.query_visible)
    assert_same(prefixes.query_offsets, torch.arange(batch.queries + 1))


# Steps.


def steps_of(batch: Batch) -> ragged.Steps:
    """One series after the other, one step after the other, by the recurrence for δ as it is written."""
    time, moment, value, mask, elapsed, offsets, visible = [], [], [], [], [], [0], []
    for rows, queries in zip(spans(batch.offsets), spans(batch.query_offsets), strict=True):
        moments, times = batch.moment[rows].tolist(), batch.time[rows].tolist()
        steps = sorted(set(zip(moments, times, strict=True)))
        s, delta, seen = steps[0][1] if steps else 0, torch.zeros(MODALITIES), torch.ones(MODALITIES).bool()
        for step in steps:
            clock = max(s, step[1])
            delta = clock - s + torch.where(seen, 0, delta)
            s, v, seen = clock, torch.zeros(MODALITIES), torch.zeros(MODALITIES).bool()
            for j in range(rows.start, rows.stop):
                if (int(batch.moment[j]), float(batch.time[j])) == step:
                    v[int(batch.modality[j])] = batch.value[j]
                    seen[int(batch.modality[j])] = True
            moment.append(step[0])
            time.append(step[1])
            value.append(v)
            mask.append(seen)
            elapsed.append(delta)
        offsets.append(len(time))
        for sees in batch.query_visible[queries].tolist():
            visible.append(len(set(zip(moments[:sees], times[:sees], strict=True))))
    like = torch.zeros(MODALITIES)
    return ragged.Steps(
        time=torch.tensor(time, dtype=torch.float32),
        value=stack(value, like),
        mask=stack(mask, like.bool()),
        elapsed=stack(elapsed, like),
        moment=torch.tensor(moment, dtype=torch.int32),
        offsets=torch.tensor(offsets),
        query_visible=torch.tensor(visible, dtype=torch.int64),
    )


@given(batch=batches)
@often
def test_steps_follow_the_recurrence_of_the_paper(batch: Batch) -> None:
    assert_same(ragged.to_steps(batch, MODALITIES), steps_of(batch))


def test_elapsed_time_counts_from_the_last_earlier_step_on_a_clock_that_never_runs_back() -> None:
    batch = Batch(
        series=torch.tensor([0]),
        time=torch.tensor([1.0, 3.0, 2.0, 6.0]),
        arrival=torch.tensor([1.0, 3.0, 4.0, 6.0]),
        value=torch.tensor([10.0, 20.0, 30.0, 40.0]),
        modality=torch.tensor([0, 1, 0, 0], dtype=torch.int32),
        moment=torch.tensor([0, 1, 2, 3], dtype=torch.int32),
        offsets=torch.tensor([0, 4]),
        static=torch.zeros(1, 0),
        query_time=torch.tensor([5.0]),
        query_visible=torch.tensor([3]),
        query_offsets=torch.tensor([0, 1]),
        label=torch.zeros(1, 1),
    )
    assert ragged.to_steps(batch, 2).elapsed.tolist() == [[0, 0], [2, 2], [2, 0], [3, 3]]


@given(batch=batches, seed=seeds)
@often
def test_the_order_of_rows_within_a_moment_does_not_matter_to_steps(batch: Batch, seed: int) -> None:
    group = segment_of_row(batch.offsets) * 100 + batch.moment
    order = normal(seed, batch.observations).argsort()
    order = order[group[order].argsort(stable=True)]
    shuffled = replace(
        batch, time=batch.time[order], value=batch.value[order], modality=batch.modality[order]
    )
    assert_same(ragged.to_steps(shuffled, MODALITIES), ragged.to_steps(batch, MODALITIES))


@given(batch=batches, seed=seeds)
@often
def test_each_value_gets_the_gradient_of_its_cell(batch: Batch, seed: int) -> None:
    value = batch.value.clone().requires_grad_()
    steps = ragged.to_steps(replace(batch, value=value), MODALITIES)
    # The gradient of half the squares of all cells is what the cells hold.
    (found,) = torch.autograd.grad(steps.value.square().sum() / 2, value)
    assert_same(found, batch.value)
