"""From the plain columns that a source reads to the sorted rows of a shard.

What a query sees is decided here, once, on whole microseconds; nothing after this compares times.
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seft.data.schema import Schema
from seft.error import InputError

MICROSECONDS_PER_HOUR = 3_600_000_000

Strings = NDArray[np.str_] | NDArray[np.object_]


def hours(microseconds: NDArray[np.int64]) -> NDArray[np.float32]:
    """Microseconds since the start to the float32 hours that a batch holds."""
    return np.divide(microseconds, MICROSECONDS_PER_HOUR, dtype=np.float64).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recordings:
    """Some whole series as a source read them; observations and queries in any order.

    Times are microseconds since the series' start.
    """

    id: Strings  # (B,)
    group: Strings  # (B,)
    split: Strings  # (B,)
    start: NDArray[np.datetime64] | None = None  # (B,) when the series began, where that is known
    static: NDArray[np.float32]  # (B, S), NaN where unknown
    series: NDArray[np.int32]  # (N,) position in `id`
    time: NDArray[np.int64]  # (N,)
    arrival: NDArray[np.int64] | None = None  # (N,) None: known as soon as it was observed
    modality: NDArray[np.int32]  # (N,)
    value: NDArray[np.float32] | NDArray[np.float64]  # (N,)
    query_series: NDArray[np.int32]  # (Q,)
    query_time: NDArray[np.int64]  # (Q,)
    label: NDArray[np.float32]  # (Q, L) a column a label column of the task, NaN where unscored
    risk: NDArray[np.float64] | None = None  # (Q,) the true risk, where data is made and it is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What a shard holds: the recordings sorted, made unique, and told apart into moments."""

    recordings: Recordings
    arrival: NDArray[np.int64]  # (N,)
    moment: NDArray[np.int32]  # (N,)
    observations: NDArray[np.int64]  # (B,) a series' rows
    queries: NDArray[np.int64]  # (B,) a series' queries
    visible: NDArray[np.int64]  # (Q,) the query sees the first so many rows of its series


def assemble(recordings: Recordings, schema: Schema, notes: Counter[str]) -> Rows:
    """Sort, drop what has no value, merge what is simultaneous; `notes` counts what was changed."""
    _refuse_infinite_statics(recordings, schema)
    recordings = _with_finite_values(recordings, schema, notes)
    arrival = _arrival(recordings, notes)
    recordings, arrival = _sorted_observations(recordings, arrival)
    recordings, arrival = _merged(recordings, arrival, schema, notes)
    recordings = _sorted_queries(recordings)
    series_count = len(recordings.id)
    observations = np.bincount(recordings.series, minlength=series_count)
    queries = np.bincount(recordings.query_series, minlength=series_count)
    return Rows(
        recordings=recordings,
        arrival=arrival,
        moment=_moments(recordings.series, arrival, observations),
        observations=observations,
        queries=queries,
        visible=_visible(arrival, observations, recordings.query_time, queries),
    )


def _keep(recordings: Recordings, rows: NDArray[np.bool_] | NDArray[np.int64]) -> Recordings:
    arrival = recordings.arrival
    return replace(
        recordings,
        series=recordings.series[rows],
        time=recordings.time[rows],
        arrival=None if arrival is None else arrival[rows],
        modality=recordings.modality[rows],
        value=recordings.value[rows],
    )


def _refuse_infinite_statics(recordings: Recordings, schema: Schema) -> None:
    infinite = np.argwhere(np.isinf(recordings.static))
    if len(infinite):
        b, column = infinite[0]
        raise InputError(
            f"series {recordings.id[b]}: the static {schema.static_columns[column]} is infinite or beyond "
            "float32; correct it or leave it out"
        )


def _with_finite_values(recordings: Recordings, schema: Schema, notes: Counter[str]) -> Recordings:
    """Values as float32: NaN is no observation and is dropped, infinite is an error."""
    with np.errstate(over="ignore"):  # what overflows becomes infinite and is refused below
        value = recordings.value.astype(np.float32, copy=False)
    finite = np.isfinite(value)
    if finite.all():
        return replace(recordings, value=value)
    infinite = np.flatnonzero(np.isinf(value))
    if len(infinite):
        row = infinite[0]
        raise InputError(
            f"series {recordings.id[recordings.series[row]]}, "
            f"variable {schema.variables[recordings.modality[row]].name}, "
            f"{hours(recordings.time[row]):g} h: the value {recordings.value[row]} is infinite or beyond "
            "float32; correct it or leave it out"
        )
    notes["observations without a value (NaN), dropped"] += int((~finite).sum())
    return _keep(replace(recordings, value=value), finite)


def _arrival(recordings: Recordings, notes: Counter[str]) -> NDArray[np.int64]:
    """Nothing is known before it happened, nor before the series began."""
    if recordings.arrival is None:
        return np.maximum(recordings.time, 0)
    early = recordings.arrival < recordings.time
    if early.any():
        notes["arrivals before their own time, raised to it"] += int(early.sum())
    return np.maximum(np.maximum(recordings.arrival, recordings.time), 0)


def _sorted_observations(
    recordings: Recordings, arrival: NDArray[np.int64]
) -> tuple[Recordings, NDArray[np.int64]]:
    """By series, arrival, time as a batch has it, modality; most sources come so but for the modality."""
    when = (recordings.series, arrival, hours(recordings.time))
    if not _ascending(when):
        order = np.lexsort(when[::-1])
        recordings, arrival = _keep(recordings, order), arrival[order]
        when = (recordings.series, arrival, hours(recordings.time))
    if _ascending((*when, recordings.modality)):
        return recordings, arrival
    changes = np.zeros(len(arrival), bool)
    for key in when:
        changes[1:] |= key[1:] != key[:-1]
    # One number a (series, arrival, time) and modality; nearly sorted, which a stable sort makes use of.
    place = np.cumsum(changes) * (int(recordings.modality.max()) + 1) + recordings.modality
    order = np.argsort(place, kind="stable")
    return _keep(recordings, order), arrival[order]


def _ascending(keys: tuple[NDArray[Any], ...]) -> bool:
    """Whether rows ascend lexicographically in `keys`, the first the most significant."""
    tied = np.ones(max(len(keys[0]) - 1, 0), bool)
    for key in keys:
        if (tied & (key[1:] < key[:-1])).any():
            return False
        tied &= key[1:] == key[:-1]
    return True


def _merged(
    recordings: Recordings, arrival: NDArray[np.int64], schema: Schema, notes: Counter[str]
) -> tuple[Recordings, NDArray[np.int64]]:
    """One row for each (arrival, time, modality): events add up, measurements are averaged.

    Times within a moment are told apart as the float32 hours of a batch, so that unique here is unique
    there.
    """
    time = hours(recordings.time)
    again = np.zeros(len(time), bool)
    again[1:] = (
        (recordings.series[1:] == recordings.series[:-1])
        & (arrival[1:] == arrival[:-1])
        & (time[1:] == time[:-1])
        & (recordings.modality[1:] == recordings.modality[:-1])
    )
    if not again.any():
        return recordings, arrival
    first = np.flatnonzero(~again)
    value = recordings.value.astype(np.float64)
    size = np.diff(first, append=len(value))
    total = np.add.reduceat(value, first)
    event = np.array([variable.event for variable in schema.variables])[recordings.modality[first]]
    apart = recordings.time[first] != recordings.time[first + size - 1]
    measured = ~event & (size > 1)
    notes["simultaneous measurements of one variable, averaged"] += int(size[measured & ~apart].sum())
    notes["measurements known at one moment, too close in time for float32 hours, averaged"] += int(
        size[measured & apart].sum()
    )
    notes["simultaneous events of one kind, added up"] += int(size[event & (size > 1)].sum())
    merged = np.where(event, total, total / size).astype(np.float32)
    return replace(_keep(recordings, first), value=merged), arrival[first]


def _sorted_queries(recordings: Recordings) -> Recordings:
    keys = (recordings.query_series, recordings.query_time)
    if not _ascending(keys):
        order = np.lexsort(keys[::-1])
        recordings = replace(
            recordings,
            query_series=recordings.query_series[order],
            query_time=recordings.query_time[order],
            label=recordings.label[order],
            risk=None if recordings.risk is None else recordings.risk[order],
        )
    series, time = recordings.query_series, recordings.query_time
    twice = np.flatnonzero((series[1:] == series[:-1]) & (time[1:] == time[:-1]))
    if len(twice):
        row = twice[0]
        raise InputError(
            f"series {recordings.id[series[row]]}: two queries at {hours(time[row]):g} h; keep one"
        )
    return recordings


def _moments(
    series: NDArray[np.int32], arrival: NDArray[np.int64], observations: NDArray[np.int64]
) -> NDArray[np.int32]:
    """0, 1, 2 … within a series, one more at each later arrival."""
    if not len(series):
        return np.zeros(0, np.int32)
    later = np.zeros(len(series), bool)
    later[1:] = (series[1:] == series[:-1]) & (arrival[1:] != arrival[:-1])
    running = np.cumsum(later, dtype=np.int32)
    begin = np.cumsum(observations) - observations
    present = observations > 0
    moment: NDArray[np.int32] = running - np.repeat(running[begin[present]], observations[present])
    return moment


def _visible(
    arrival: NDArray[np.int64],
    observations: NDArray[np.int64],
    query_time: NDArray[np.int64],
    queries: NDArray[np.int64],
) -> NDArray[np.int64]:
    """How many rows of its series had arrived by each query, inclusive."""
    visible = np.zeros(len(query_time), np.int64)
    row = np.concatenate(([0], np.cumsum(observations))).tolist()
    query = np.concatenate(([0], np.cumsum(queries))).tolist()
    for b in range(len(observations)):
        if queries[b] and observations[b]:
            visible[query[b] : query[b + 1]] = np.searchsorted(
                arrival[row[b] : row[b + 1]], query_time[query[b] : query[b + 1]], side="right"
            )
    return visible
