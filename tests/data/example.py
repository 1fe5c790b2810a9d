"""Small datasets for tests, made by the same way as real ones."""

from pathlib import Path

import numpy as np

from seft.data.assembly import MICROSECONDS_PER_HOUR, Recordings, assemble
from seft.data.dataset import Dataset, open_dataset
from seft.data.folder import Writer
from seft.data.schema import Schema, Static, Variable
from seft.data.task import Task

SCHEMA = Schema(
    variables=(Variable(name="HR", unit="1/min"), Variable(name="Drug", event=True), Variable(name="Temp")),
    statics=(Static(name="Age", unit="years"), Static(name="Sex", levels=("f", "m"))),
)
BINARY = Task(kind="binary", classes=("no", "yes"), metric="auprc")


def recordings(series: int, *, seed: int = 0, first: int = 0, task: Task = BINARY) -> Recordings:
    """Random series of 0 to 30 observations and 0 to 4 queries; some labels are unscored."""
    generator = np.random.default_rng((seed, first))
    names = np.array([f"s{number}" for number in range(first, first + series)])
    count = generator.integers(0, 31, series)
    asked = generator.integers(0, 5, series)
    rows, queries = int(count.sum()), int(asked.sum())
    time = generator.integers(-2 * MICROSECONDS_PER_HOUR, 48 * MICROSECONDS_PER_HOUR, rows)
    classes = 2 if task.kind != "multiclass" else len(task.classes)
    label = generator.integers(0, classes, (queries, len(task.label_columns))).astype(np.float32)
    label[generator.random(label.shape) < 0.2] = np.nan
    return Recordings(
        id=names,
        group=np.array([f"p{number // 2}" for number in range(first, first + series)]),
        split=np.array(["train", "val", "test"])[np.arange(first, first + series) % 3],
        static=np.column_stack([generator.normal(60, 9, series), *np.eye(2)[np.arange(series) % 2].T]).astype(
            np.float32
        ),
        series=np.repeat(np.arange(series, dtype=np.int32), count),
        time=time,
        arrival=time + generator.integers(0, MICROSECONDS_PER_HOUR, rows),
        modality=generator.integers(0, SCHEMA.modalities, rows).astype(np.int32),
        value=generator.normal(size=rows).astype(np.float32),
        query_series=np.repeat(np.arange(series, dtype=np.int32), asked),
        query_time=generator.choice(48 * MICROSECONDS_PER_HOUR, queries, replace=False),
        label=label,
    )


def write(out: Path, *, shards: int = 3, series: int = 20, task: Task = BINARY, seed: int = 0) -> Dataset:
    """A dataset of some shards of `series` random series each."""
    with Writer(out, source="example", schema=SCHEMA, task=task, overwrite=True) as writer:
        for shard in range(shards):
            part = recordings(series, seed=seed, first=shard * series, task=task)
            writer.add(assemble(part, SCHEMA, writer.notes))
        writer.finish({"title": "an example"})
    return open_dataset(out)
