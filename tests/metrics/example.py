"""Made-up answers to judge."""

from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

Array = NDArray[Any]


@st.composite
def answers(draw: st.DrawFn, most: int = 40) -> tuple[Array, Array, Array]:
    """label, score, weight (N,): some with ties, some labels of one class alone, weights of 0 … 3."""
    n = draw(st.integers(0, most))
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    label = (random.random(n) < draw(st.sampled_from([0, 0.1, 0.5, 1]))).astype(np.float32)
    score = random.normal(size=n) + label
    if draw(st.booleans()):
        score = np.round(score)
    return label, score.astype(np.float32), random.integers(0, 4, n).astype(np.float64)


@st.composite
def stays(draw: st.DrawFn) -> tuple[Array, Array, Array]:
    """label, score (N,), offsets (B+1,): some series septic from a row on, some empty, scores with ties."""
    lengths = draw(st.lists(st.integers(0, 40), max_size=6))
    onset = [draw(st.none() | st.integers(0, n - 1)) if n else None for n in lengths]
    septic = [
        [float(first is not None and t >= first) for t in range(n)]
        for n, first in zip(lengths, onset, strict=True)
    ]
    label = np.array([value for series in septic for value in series], dtype=np.float32)
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    score = np.round(random.normal(size=len(label)), draw(st.integers(0, 2))).astype(np.float32)
    return label, score, np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
