"""What made up an answer: contributions of observations and statics that add up to the logit."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seft.data import ragged
from seft.data.batch import Batch, segment_of_row
from seft.data.schema import Schema

MOST_STOPS = 256  # along one order; with more observations several enter between two stops and share
ROWS_AT_ONCE = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What made up the logits of one query; contributions and bias add up to them.

    N are the observations that the query sees, in their order.
    """

    observation: Tensor  # (N, C) of each observation
    static: Tensor  # (S, C) of each static column
    absence: Tensor  # (M, C) of each modality's not having been observed
    bias: Tensor  # (C,) the answer to a series of which nothing is known
    attention: Tensor | None = None  # (N, heads) where the model has one


@torch.no_grad()
def shapley(
    answer: Callable[[Batch], Tensor], schema: Schema, batch: Batch, query: int, orders: int, seed: int
) -> Explanation:
    """Shapley values over sampled orders, for any model.

    Observations and statics enter one after the other, from a series of which nothing is known to the whole
    one; each is credited with the change of the logit as it enters, φ_j = mean over orders of
    f(S ∪ {j}) - f(S). Along one order the changes telescope, so contributions add up to the logit exactly.
    Observations keep their times and moments: only who is there changes. Orders come in pairs, one the
    other's reverse, which evens out what depends on being early.
    """
    alone = _alone(batch, query)
    observations, columns = alone.observations, _columns_of_statics(schema)
    players = observations + len(columns)
    generator = torch.Generator().manual_seed(seed)
    credit = torch.zeros(players, alone.label.shape[1], dtype=torch.float64)
    bias = credit.new_zeros(credit.shape[1])
    drawn = [torch.randperm(players, generator=generator) for _ in range(-(-orders // 2))]
    everyone = [order for one in drawn for order in (one, one.flip(0))][: max(orders, 1)]
    for order in everyone:
        place = torch.empty_like(order)
        place[order] = torch.arange(players)
        stops = torch.linspace(0, players, min(players, MOST_STOPS) + 1).round().long()
        entered = place < stops[:, None]  # (stops, players)
        logits = torch.cat(list(_answers(answer, alone, entered, columns))).double().cpu()
        block = torch.bucketize(place, stops[1:], right=True)
        size = stops.diff()
        credit += (logits.diff(dim=0) / size[:, None])[block] / len(everyone)
        bias = logits[0]
    static = credit.new_zeros(alone.static.shape[1], credit.shape[1])
    for number, own in enumerate(columns):
        on = [column for column in own if alone.static[0, column] == 1]
        static[on[0] if on and len(own) > 1 else own[0]] = credit[observations + number]
    return Explanation(
        observation=credit[:observations].float(),
        static=static.float(),
        absence=torch.zeros(schema.modalities, credit.shape[1]),
        bias=bias.float(),
    )


def _alone(batch: Batch, query: int) -> Batch:
    """One series with one query and the rows that it sees."""
    position = torch.tensor([query], device=batch.offsets.device)
    return ragged.take(ragged.expand_prefixes(batch), position)


def _columns_of_statics(schema: Schema) -> list[list[int]]:
    """The columns of each static: those of one enter together."""
    found, begin = [], 0
    for static in schema.statics:
        found.append(list(range(begin, begin + len(static.columns))))
        begin += len(static.columns)
    return found


def _answers(
    answer: Callable[[Batch], Tensor], alone: Batch, entered: Tensor, columns: list[list[int]]
) -> Iterator[Tensor]:
    """Logits of the series with just those observations and statics that have entered (stops, players)."""
    observations = alone.observations
    device = alone.time.device
    at_once = max(ROWS_AT_ONCE // max(observations, 1), 1)
    for part in entered.split(at_once):  # type: ignore[no-untyped-call]
        copies = ragged.take(alone, torch.zeros(len(part), dtype=torch.int64, device=device))
        known = torch.zeros(len(part), alone.static.shape[1], dtype=torch.bool)
        for number, own in enumerate(columns):
            known[:, own] = part[:, observations + number, None]
        there = part[:, :observations].flatten().to(device)
        static = torch.where(known.to(device), copies.static, torch.nan)
        yield answer(ragged.keep(replace(copies, static=static), there))


def rows_seen(batch: Batch, query: int) -> slice:
    """The rows of a batch that a query sees: those that an explanation speaks of."""
    series = int(segment_of_row(batch.query_offsets)[query])
    begin = int(batch.offsets[series])
    return slice(begin, begin + int(batch.query_visible[query]))
