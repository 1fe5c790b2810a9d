"""The table of predictions: one row a query, from which everything else is computed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from seft.data.batch import Batch
from seft.data.dataset import Dataset, Rows
from seft.data.task import Task
from seft.error import InputError
from seft.models.predictor import Match, Predictor
from seft.training.fit import predict as answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """The answers to the queries of some series, in their order; Q queries of B series, C outputs."""

    task: Task
    id: list[str]  # (B,)
    group: list[str]  # (B,)
    offsets: NDArray[np.int64]  # (B+1,) series b owns queries offsets[b]:offsets[b+1]
    time: NDArray[np.float32]  # (Q,) hours since the start
    label: NDArray[np.float32]  # (Q, C) NaN where unscored
    logits: NDArray[np.float32]  # (Q, C) raw
    calibrated: NDArray[np.float32]  # (Q, C)
    probability: NDArray[np.float32]  # (Q, C) of the calibrated logits: what people are shown

    def of_query(self, names: list[str]) -> list[str]:
        """(B,) -> (Q,)"""
        return np.repeat(np.array(names, dtype=object), np.diff(self.offsets)).tolist()

    def table(self) -> pa.Table:
        """Columns id, time, label, probability; one a class, or a pair a label, where there are several."""
        columns: dict[str, Any] = {"id": self.of_query(self.id), "time": self.time}
        if self.task.kind == "binary":
            columns |= {"label": self.label[:, 0], "probability": self.probability[:, 0]}
        elif self.task.kind == "multiclass":
            unscored = np.isnan(self.label).any(1)
            names = np.array(self.task.classes, dtype=object)[self.label.argmax(1)]
            columns["label"] = pa.array(names, pa.string(), mask=unscored)
            for c, name in enumerate(self.task.classes):
                columns[f"probability_{name}"] = self.probability[:, c]
        else:
            for c, name in enumerate(self.task.classes):
                columns[f"label_{name}"] = self.label[:, c]
                columns[f"probability_{name}"] = self.probability[:, c]
        return pa.table(columns)

    def write(self, path: Path) -> None:
        """As Parquet; the file is there whole or not at all."""
        unfinished = path.with_name(f".{path.name}.writing")
        try:
            pq.write_table(self.table(), unfinished)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Matched:
    """A dataset as the predictor knows it: a source of batches in the predictor's own numbers."""

    dataset: Dataset
    match: Match

    def batch(self, rows: Rows) -> Batch:
        return self.match(self.dataset.batch(rows))


def predict(predictor: Predictor, dataset: Dataset, rows: Rows) -> Predictions:
    """Every query of the series `rows`, matched by name to what the predictor knows."""
    source = _Matched(dataset, Match.of(predictor.schema, dataset.schema))
    task = predictor.task
    if dataset.task is not None and dataset.task.classes != task.classes:
        raise InputError(
            f"{dataset.path}: its classes are {', '.join(dataset.task.classes)} and the predictor's are "
            f"{', '.join(task.classes)}"
        )
    parts: dict[str, list[NDArray[np.float32]]] = {"time": [], "label": [], "logits": [], "calibrated": []}
    for batch, logits in answers(predictor.model, dataset, source, rows):
        label = batch.label if dataset.task is not None else torch.full_like(logits, torch.nan)
        for name, column in (
            ("time", batch.query_time),
            ("label", label),
            ("logits", logits),
            ("calibrated", predictor.calibration(logits)),
        ):
            parts[name].append(column.cpu().numpy())
    if not parts["time"]:
        raise InputError(f"{dataset.path}: there is no series to predict")
    columns = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    probability = predictor.probability(torch.from_numpy(columns["logits"])).numpy()
    return Predictions(
        task=task,
        id=dataset.ids(rows),
        group=dataset.groups(rows),
        offsets=np.concatenate(([0], np.cumsum(dataset.queries(rows)))),
        probability=probability,
        **columns,
    )
