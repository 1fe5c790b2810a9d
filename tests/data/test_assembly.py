from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seft.data.assembly import MICROSECONDS_PER_HOUR, Recordings, assemble
from seft.data.schema import Schema, Static, Variable
from seft.error import InputError

HOUR = MICROSECONDS_PER_HOUR
SCHEMA = Schema(variables=(Variable(name="HR"), Variable(name="Drug", event=True), Variable(name="Temp")))
SERIES = 3

observation = st.tuples(
    st.integers(0, SERIES - 1),
    st.integers(-2, 5),  # time
    st.integers(-2, 5),  # arrival
    st.integers(0, SCHEMA.modalities - 1),
    st.sampled_from([1.0, 2.0, 4.0, float("nan")]),
)
query = st.tuples(st.integers(0, SERIES - 1), st.integers(-2, 6))


def recordings(
    observations: list[tuple[int, int, int, int, float]], queries: list[tuple[int, int]]
) -> Recordings:
    names = np.array([f"s{b}" for b in range(SERIES)])
    columns = list(zip(*observations, strict=True)) or [()] * 5
    asked = list(zip(*queries, strict=True)) or [()] * 2
    return Recordings(
        id=names,
        group=names,
        split=np.array(["train"] * SERIES),
        static=np.zeros((SERIES, 0), np.float32),
        series=np.array(columns[0], np.int32),
        time=np.array(columns[1], np.int64) * HOUR,
        arrival=np.array(columns[2], np.int64) * HOUR,
        modality=np.array(columns[3], np.int32),
        value=np.array(columns[4], np.float64),
        query_series=np.array(asked[0], np.int32),
        query_time=np.array(asked[1], np.int64) * HOUR,
        label=np.zeros((len(queries), 1), np.float32),
    )


@given(
    st.lists(observation, max_size=25),
    st.lists(query, max_size=8, unique=True),
)
def test_rows_are_those_of_a_plain_loop(
    observations: list[tuple[int, int, int, int, float]], queries: list[tuple[int, int]]
) -> None:
    notes: Counter[str] = Counter()
    rows = assemble(recordings(observations, queries), SCHEMA, notes)

    together: dict[tuple[int, int, int, int], list[float]] = defaultdict(list)
    for series, time, arrival, modality, value in observations:
        if value == value:
            together[series, max(arrival, time, 0), time, modality].append(value)
    expected = []
    for (series, arrival, time, modality), values in sorted(together.items()):
        mean = sum(values) / len(values)
        merged = sum(values) if modality == 1 else mean
        expected.append((series, arrival, time, modality, np.float32(merged)))
    own = rows.recordings
    found = zip(
        own.series.tolist(),
        (rows.arrival // HOUR).tolist(),
        (own.time // HOUR).tolist(),
        own.modality.tolist(),
        own.value.tolist(),
        strict=True,
    )
    assert list(found) == expected

    for b in range(SERIES):
        arrivals = [row[1] for row in expected if row[0] == b]
        ranks = {arrival: rank for rank, arrival in enumerate(sorted(set(arrivals)))}
        inside = own.series == b
        assert rows.moment[inside].tolist() == [ranks[arrival] for arrival in arrivals]
        assert rows.observations[b] == len(arrivals)
        asked = sorted(time for series, time in queries if series == b)
        of_series = own.query_series == b
        assert (own.query_time[of_series] // HOUR).tolist() == asked
        assert rows.visible[of_series].tolist() == [sum(a <= time for a in arrivals) for time in asked]
    assert notes["arrivals before their own time, raised to it"] == sum(
        arrival < time for _, time, arrival, _, value in observations if value == value
    )
    assert notes["observations without a value (NaN), dropped"] == sum(
        value != value for *_, value in observations
    )


def test_what_arrives_at_the_querys_own_microsecond_is_seen() -> None:
    given_at = recordings([(0, 1, 1, 0, 1.0), (0, 2, 2, 0, 1.0)], [(0, 2)])
    late = given_at.arrival
    assert late is not None
    late[1] += 1
    assert assemble(given_at, SCHEMA, Counter()).visible.tolist() == [1]
    late[1] -= 1
    assert assemble(given_at, SCHEMA, Counter()).visible.tolist() == [2]


def test_whatever_stands_between_them_close_times_become_one() -> None:
    """Two variables in turn, microseconds apart and known at one moment: (A, B, A, B) is (A, B)."""
    far = 200_000
    rows = recordings([(0, far, far, number % 2 * 2, float(number)) for number in range(6)], [])
    rows.time[:] += np.arange(6)
    assert rows.arrival is not None
    rows.arrival[:] += 10
    notes: Counter[str] = Counter()
    assembled = assemble(rows, SCHEMA, notes)
    assert assembled.recordings.modality.tolist() == [0, 2]
    assert assembled.recordings.value.tolist() == [2.0, 3.0]
    assert notes["measurements known at one moment, too close in time for float32 hours, averaged"] == 6
    assert notes["simultaneous measurements of one variable, averaged"] == 0


def test_times_that_a_batch_could_not_tell_apart_are_one() -> None:
    """Ten years into a series, float32 hours are half a minute apart."""
    decade = 10 * 365 * 24
    rows = recordings([(0, decade, decade, 0, 1.0), (0, decade, decade, 0, 3.0)], [])
    rows.time[1] += 1  # a microsecond later, known at the same moment
    assert rows.arrival is not None
    rows.arrival[:] += 1
    assembled = assemble(rows, SCHEMA, Counter())
    assert assembled.recordings.value.tolist() == [2.0]


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e39])
def test_an_infinite_value_is_named(value: float) -> None:
    with pytest.raises(InputError, match=r"series s1, variable Temp, 3 h: the value .* is infinite"):
        assemble(recordings([(0, 1, 1, 0, 1.0), (1, 3, 3, 2, value)], []), SCHEMA, Counter())


def test_an_infinite_static_is_named() -> None:
    given = replace(recordings([], []), static=np.array([[1.0], [np.inf], [np.nan]], np.float32))
    schema = replace(SCHEMA, statics=(Static(name="Age"),))
    with pytest.raises(InputError, match="series s1: the static Age is infinite"):
        assemble(given, schema, Counter())


def test_two_queries_at_one_time_are_refused() -> None:
    with pytest.raises(InputError, match="series s2: two queries at 4 h"):
        assemble(recordings([], [(2, 4), (0, 4), (2, 4)]), SCHEMA, Counter())
