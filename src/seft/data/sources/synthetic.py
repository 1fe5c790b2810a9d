"""ICU-like series that are made, not recorded, with a risk that is known.

Each series has a hidden severity. It moves the vitals and labs, and it decides how often labs are drawn
(informative sampling); labs become known an hour or so after they are drawn. The true risk at a query is a
function of nothing but what the query sees, so no model can do better than the risk itself: its AUROC is
the best possible one, and `seft inspect` prints it for each split.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seft.data.assembly import MICROSECONDS_PER_HOUR, Recordings, Rows, assemble
from seft.data.folder import Writer
from seft.data.schema import Schema, Static, Variable
from seft.data.split import split
from seft.data.task import Task
from seft.error import InputError

HOURS = 48
SERIES_A_SHARD = 5_000

# Name, unit, mean, standard deviation, bounds, what one unit of severity adds (in standard deviations),
# the chance of being measured in an hour, and what one unit of severity adds to the logit of that.
_MEASURED = (
    ("HR", "1/min", 85.0, 14.0, (20, 250), 0.6, 0.8, 0.0),
    ("MAP", "mmHg", 78.0, 11.0, (20, 180), -0.7, 0.7, 0.0),
    ("RespRate", "1/min", 18.0, 4.0, (2, 60), 0.4, 0.5, 0.0),
    ("SpO2", "%", 97.0, 2.0, (50, 100), -0.4, 0.6, 0.0),
    ("Temp", "°C", 37.0, 0.7, (30, 43), 0.2, 0.25, 0.0),
    ("GCS", "points", 13.0, 2.0, (3, 15), -0.4, 0.1, 0.3),
    ("Lactate", "mmol/L", 2.0, 1.0, (0.2, 30), 0.8, 0.06, 1.0),
    ("Creatinine", "mg/dL", 1.2, 0.5, (0.1, 15), 0.5, 0.04, 0.5),
    ("WBC", "1/nL", 11.0, 4.0, (0.1, 100), 0.3, 0.04, 0.2),
    ("Potassium", "mmol/L", 4.1, 0.5, (2, 9), 0.1, 0.05, 0.2),
)
_FIRST_LAB = 6  # from Lactate on: known only when the laboratory has reported
_VASOPRESSOR = len(_MEASURED)  # an event, without a value

SCHEMA = Schema(
    variables=(
        *(Variable(name=name, unit=unit) for name, unit, *_ in _MEASURED),
        Variable(name="Vasopressor", event=True),
    ),
    statics=(
        Static(name="Age", unit="years"),
        Static(name="Admission", levels=("elective", "emergency")),
    ),
)
TASK = Task(kind="binary", classes=("stable", "deteriorates"), metric="auprc")


def prepare(
    *,
    out: Path,
    series: int = 2_000,
    hourly: bool = False,
    seed: int = 0,
    overwrite: bool = False,
) -> None:
    """Made-up intensive-care series with a known risk: eleven variables, 48 hours.

    Args:
        out: The dataset folder to make.
        series: How many series.
        hourly: A query at every hour instead of one at the end.
        seed: The same seed makes the same data.
        overwrite: Replace the dataset that is there.
    """
    if series < 1 or seed < 0:
        raise InputError(f"--series {series} --seed {seed}: at least one series and no negative seed")
    risk: dict[str, list[NDArray[np.float64]]] = {}
    label: dict[str, list[NDArray[np.float32]]] = {}
    with Writer(out, source="synthetic", schema=SCHEMA, task=TASK, overwrite=overwrite) as writer:
        for rows in generate(series, hourly, seed, writer.notes):
            writer.add(rows)
            recordings = rows.recordings
            assert recordings.risk is not None
            of_query = recordings.split[recordings.query_series]
            for name in np.unique(of_query).tolist():
                risk.setdefault(name, []).append(recordings.risk[of_query == name])
                label.setdefault(name, []).append(recordings.label[of_query == name, 0])
        writer.finish(
            {"title": "made-up intensive-care series", "series": series, "hourly": hourly, "seed": seed},
            {name: best_auroc(np.concatenate(label[name]), np.concatenate(risk[name])) for name in risk},
        )


def generate(series: int, hourly: bool, seed: int, notes: Counter[str]) -> Iterator[Rows]:
    """The series in shards; each shard draws from a generator of its own."""
    for number, first in enumerate(range(0, series, SERIES_A_SHARD)):
        generator = np.random.default_rng((seed, number))
        count = min(SERIES_A_SHARD, series - first)
        rows = assemble(_recordings(first, count, hourly, generator), SCHEMA, notes)
        yield _labelled(rows, generator)


def best_auroc(label: NDArray[np.float32], risk: NDArray[np.float64]) -> dict[str, float]:
    """The AUROC of the true risk itself; nothing where a split has one class only."""
    if len(np.unique(label)) < 2:
        return {}
    from sklearn.metrics import roc_auc_score  # a second to import, and needed at the end alone

    return {"best_auroc": float(roc_auc_score(label, risk))}


def _recordings(first: int, count: int, hourly: bool, generator: np.random.Generator) -> Recordings:
    """What is recorded of `count` series; labels follow, since the risk depends on what is seen."""
    names = np.array([f"s{number:06d}" for number in range(first, first + count)])
    emergency = generator.random(count) < 0.6
    age = np.clip(generator.normal(63, 15, count), 18, 95)
    level = generator.normal(0.4 * (emergency - 0.6), 1.0)
    trend = generator.normal(0.0, 0.7, count)
    # (B, 48): severity at the middle of each hour
    severity = level[:, None] + trend[:, None] * ((np.arange(HOURS) + 0.5) / HOURS - 0.5)
    series, hour, modality, value = _observations(severity, generator)
    time = ((hour + generator.random(len(hour))) * 60).astype(np.int64) * (MICROSECONDS_PER_HOUR // 60)
    report = (generator.gamma(4.0, 0.25, len(time)) * MICROSECONDS_PER_HOUR).astype(np.int64)
    is_lab = (modality >= _FIRST_LAB) & (modality < _VASOPRESSOR)
    when = np.arange(1, HOURS + 1) if hourly else np.array([HOURS])
    query_series = np.repeat(np.arange(count, dtype=np.int32), len(when))
    return Recordings(
        id=names,
        group=names,
        split=split(names, np.zeros(count, np.int64), seed=0),
        static=np.column_stack([age, ~emergency, emergency]).astype(np.float32),
        series=series.astype(np.int32),
        time=time,
        arrival=np.where(is_lab, time + report, time),
        modality=modality.astype(np.int32),
        value=value,
        query_series=query_series,
        query_time=np.tile(when, count) * MICROSECONDS_PER_HOUR,
        label=np.full((len(query_series), 1), np.nan, np.float32),
    )


def _observations(
    severity: NDArray[np.float64], generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Series, hour, modality and value of all that is measured, drawn hour by hour."""
    parts = []
    for modality, (_, _, mean, spread, bounds, gain, chance, informative) in enumerate(_MEASURED):
        logit = np.log(chance / (1 - chance)) + informative * severity
        series, hour = np.nonzero(generator.random(severity.shape) < _sigmoid(logit))
        standard = gain * severity[series, hour] + generator.normal(0.0, 0.8, len(series))
        parts.append(
            (series, hour, np.full(len(series), modality), np.clip(mean + spread * standard, *bounds))
        )
    series, hour = np.nonzero(generator.random(severity.shape) < 0.1 * _sigmoid(2 * severity - 2))
    parts.append((series, hour, np.full(len(series), _VASOPRESSOR), np.ones(len(series))))
    all_series, hours, modalities, values = zip(*parts, strict=True)
    return (
        np.concatenate(all_series),
        np.concatenate(hours),
        np.concatenate(modalities),
        np.concatenate(values),
    )


def _labelled(rows: Rows, generator: np.random.Generator) -> Rows:
    """Each query's label drawn with its true risk."""
    risk = true_risk(rows)
    label = (generator.random(len(risk)) < risk).astype(np.float32)
    return replace(rows, recordings=replace(rows.recordings, risk=risk, label=label[:, None]))


def true_risk(rows: Rows) -> NDArray[np.float64]:
    """(Q,) the risk at each query, of what it sees alone.

    σ of a sum over shrunk means z̄ = Σz / (n + 1) of standardised values, a trend (heart rates weighed by
    how late they are), the share of lactates among all that was seen (sampling itself is informative),
    vasopressors, an interaction of lactate and blood pressure, and the statics.
    """
    recordings = rows.recordings
    mean, spread = (np.array([row[k] for row in _MEASURED] + [k - 2.0]) for k in (2, 3))
    z = (recordings.value - mean[recordings.modality]) / spread[recordings.modality]
    late = recordings.time / (HOURS * MICROSECONDS_PER_HOUR) - 0.5

    def seen(modality: int, weight: NDArray[np.float64] | float = 1.0) -> NDArray[np.float64]:
        return _sum_seen(rows, np.where(recordings.modality == modality, weight, 0.0))

    hr, blood_pressure, lactate = 0, 1, 6
    total = _sum_seen(rows, np.ones(len(z)))
    mean_lactate = seen(lactate, z) / (seen(lactate) + 1)
    mean_pressure = seen(blood_pressure, z) / (seen(blood_pressure) + 1)
    trend = seen(hr, z * late) / (seen(hr) + 1)
    share = seen(lactate) / (total + 1)
    vasopressors = np.minimum(seen(_VASOPRESSOR), 3)
    static = recordings.static[recordings.query_series].astype(np.float64)
    logit = (
        -3.6
        + 0.9 * mean_lactate
        - 0.8 * mean_pressure
        + 3.0 * trend
        + 20.0 * (share - 0.02)
        + 1.2 * np.logaddexp(0, mean_lactate - mean_pressure)
        + 0.3 * vasopressors
        + 0.4 * (static[:, 0] - 63) / 15
        + 0.3 * static[:, 2]
    )
    return _sigmoid(logit)


def _sum_seen(rows: Rows, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """(Q,) the sum of `x` over the rows that each query sees."""
    running = np.concatenate(([0.0], np.cumsum(x)))
    begin = (np.cumsum(rows.observations) - rows.observations)[rows.recordings.query_series]
    seen: NDArray[np.float64] = running[begin + rows.visible] - running[begin]
    return seen


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    probability: NDArray[np.float64] = 1.0 / (1.0 + np.exp(-x))
    return probability
