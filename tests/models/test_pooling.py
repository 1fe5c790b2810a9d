import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from seft.data import ragged
from seft.models.pooling import Pooled, join, max_pool, softmax_pool, sum_pool

HEADS, WIDTH = 2, 3
cuts = st.lists(st.integers(0, 6), min_size=1, max_size=4)


def nothing(series: int = 1) -> Pooled:
    return Pooled(
        torch.full((series, HEADS), -torch.inf, dtype=torch.float64),
        torch.zeros(series, HEADS, WIDTH, dtype=torch.float64),
    )


def whole(rows: int) -> ragged.Intervals:
    """One series of so many rows with one query that sees them all."""
    one = torch.tensor([0, 1])
    return ragged.between_queries(torch.tensor([0, rows]), torch.tensor([rows]), one)


def elements(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 5 * torch.randn(rows, HEADS, dtype=torch.float64, generator=generator)
    return logits, torch.randn(rows, WIDTH, dtype=torch.float64, generator=generator)


@given(sizes=cuts, seed=st.integers(0, 99))
def test_a_stream_in_pieces_pools_as_the_whole(sizes: list[int], seed: int) -> None:
    logits, values = elements(sum(sizes), seed)
    at_once = softmax_pool(logits, values, whole(sum(sizes)), nothing())
    carry = nothing()
    for e, h in zip(torch.split(logits, sizes), torch.split(values, sizes), strict=True):
        carry = softmax_pool(e, h, whole(len(e)), carry)
    torch.testing.assert_close(carry.level, at_once.level)
    torch.testing.assert_close(carry.value, at_once.value)
    if sum(sizes):
        weight = logits.softmax(0)
        torch.testing.assert_close(at_once.value[0], torch.einsum("nh,nd->hd", weight, values))
        torch.testing.assert_close(at_once.level[0], logits.logsumexp(0))


@given(sizes=cuts, seed=st.integers(0, 99))
def test_sums_and_maxima_in_pieces_are_those_of_the_whole(sizes: list[int], seed: int) -> None:
    _, values = elements(sum(sizes), seed)
    values = values.relu()
    added = highest = Pooled(torch.zeros(1, 1), torch.zeros(1, 1, WIDTH, dtype=torch.float64))
    for h in torch.split(values, sizes):
        added = sum_pool(h, whole(len(h)), added)
        highest = max_pool(h, whole(len(h)), highest)
    torch.testing.assert_close(added.value[0, 0], values.sum(0))
    expected = values.amax(0) if len(values) else torch.zeros(WIDTH, dtype=torch.float64)
    torch.testing.assert_close(highest.value[0, 0], expected)


def test_joining_with_nothing_changes_nothing_and_has_a_gradient() -> None:
    level = torch.randn(1, HEADS, dtype=torch.float64, requires_grad=True)
    value = torch.randn(1, HEADS, WIDTH, dtype=torch.float64, requires_grad=True)
    joined = join(nothing(), Pooled(level, value))
    assert torch.equal(joined.level, level)
    assert torch.equal(joined.value, value)
    gradients = torch.autograd.grad((joined.value.sum() + joined.level.sum()), (level, value))
    assert all(gradient.isfinite().all() for gradient in gradients)
    empty = join(nothing(), nothing())
    assert empty.value.abs().sum() == 0
