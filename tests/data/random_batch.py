"""Random batches that keep the contract, small enough to shrink and odd enough to hurt."""

from random import Random

import torch
from hypothesis import strategies as st
from torch import nan

from seft.data.batch import Batch

# A series is how many observations each of its moments has, and how many moments each query sees.
_Shape = tuple[list[int], list[int]]


@st.composite
def _series(draw: st.DrawFn, largest: int) -> _Shape:
    moments = draw(st.lists(st.integers(1, largest), max_size=5))
    return moments, sorted(draw(st.lists(st.integers(0, len(moments)), max_size=5)))


@st.composite
def random_batch(draw: st.DrawFn, modalities: int = 3, series: int = 4) -> Batch:
    """Up to so many series: also without rows, without queries, with queries that see nothing or the same.

    Times are quarters of an hour and exact, several in a moment, late ones and some before the start among
    them; rows of a moment stand in the order of (time, modality).
    """
    shapes = draw(st.lists(_series(4), max_size=series))
    random = Random(draw(st.integers(0, 1 << 32)))
    rows: list[tuple[float, float, float, int, int]] = []
    queries: list[tuple[float, int, list[float]]] = []
    offsets, query_offsets = [0], [0]
    for moments, sights in shapes:
        ends = [0]
        for moment, size in enumerate(moments):
            cells = [(quarter, m) for quarter in range(-4, 4 * moment + 1) for m in range(modalities)]
            for quarter, modality in sorted(random.sample(cells, size)):
                rows.append((quarter / 4, moment, random.gauss(0, 1), modality, moment))
            ends.append(ends[-1] + size)
        queries += [(sees - 0.5, ends[sees], [random.choice([0, 1, nan])]) for sees in sights]
        offsets.append(len(rows))
        query_offsets.append(len(queries))
    time, arrival, value, modality_, moment_ = torch.tensor(rows, dtype=torch.float64).view(-1, 5).unbind(1)
    return Batch(
        series=torch.tensor([random.randrange(1000) for _ in shapes], dtype=torch.int64),
        time=time.float(),
        arrival=arrival.float(),
        value=value.float(),
        modality=modality_.int(),
        moment=moment_.int(),
        offsets=torch.tensor(offsets),
        static=torch.tensor([[random.choice([0.0, 1.0, nan])] * 2 for _ in shapes]).view(-1, 2),
        query_time=torch.tensor([time for time, _, _ in queries], dtype=torch.float32),
        query_visible=torch.tensor([sees for _, sees, _ in queries], dtype=torch.int64),
        query_offsets=torch.tensor(query_offsets),
        label=torch.tensor([label for _, _, label in queries], dtype=torch.float32).view(-1, 1),
    )
