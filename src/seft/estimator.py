"""The scikit-learn face: series in tables, labels in an array, and nothing on disk to think about.

    series = seft.series(observations, statics)        # id, time, variable, value; id and any columns
    model = seft.Classifier().fit(series, labels)
    risk = model.predict_proba(series)

`series` has a length and takes an array of positions, so that cross_val_score and GridSearchCV work on it.
What happens is what the commands do, in a temporary folder: there is no second way to prepare or to train.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError

from seft.data.dataset import open_dataset
from seft.data.sources import table
from seft.data.sources.tabular import TimeUnit
from seft.data.split import split
from seft.error import InputError
from seft.evaluation.prediction import predict
from seft.models.predictor import Predictor
from seft.training.config import TrainingConfig
from seft.training.recipe import Recipe
from seft.training.run import train

Table = pl.DataFrame | Mapping[str, Sequence[Any] | NDArray[Any]] | Any  # or a pandas DataFrame


@dataclass(frozen=True, slots=True)
class SeriesTable:
    """Some series, in an order; positions in it are what scikit-learn's indices mean."""

    id: NDArray[np.str_]  # (B,)
    observations: pl.DataFrame
    statics: pl.DataFrame | None

    def __len__(self) -> int:
        return len(self.id)

    @property
    def shape(self) -> tuple[int]:
        """What scikit-learn takes for an array that may be indexed by an array."""
        return (len(self),)

    def __getitem__(self, positions: Any) -> "SeriesTable":
        """The series at these positions, or under this mask; scikit-learn says `[positions, ...]`."""
        positions = positions[0] if isinstance(positions, tuple) else positions
        return replace(self, id=np.atleast_1d(self.id[np.asarray(positions)]))

    def write(self, folder: Path) -> None:
        """As the files that `seft prepare table` reads; each position is a series, also a repeated one."""
        order = pl.DataFrame({"id": self.id, "(position)": _names(len(self))})
        for name, part in (("observations", self.observations), ("statics", self.statics)):
            if part is not None:
                placed = part.join(order, on="id", how="inner", maintain_order="left")
                placed.drop("id").rename({"(position)": "id"}).write_parquet(folder / f"{name}.parquet")


def series(observations: Table, statics: Table | None = None) -> SeriesTable:
    """Series from a long table (id, time, variable, value, and arrival if known) and one of statics.

    Their order is that of the statics, or else of their first observation.
    """
    rows = _frame(observations, "observations", ("id", "time", "variable", "value"))
    facts = None if statics is None else _frame(statics, "statics", ("id",))
    known = rows["id"] if facts is None else facts["id"]
    ids = known.unique(maintain_order=True)
    if (strangers := rows.filter(~pl.col("id").is_in(ids.implode()))).height:
        raise InputError(
            f"the observations have a series {strangers['id'][0]!r} that the statics do not know"
        )
    return SeriesTable(ids.to_numpy().astype(str), rows, facts)


class Classifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A model as scikit-learn has it: one label a series, answered at its end.

    `config` and `training` are the dataclasses that the commands fill from their flags; None leaves the
    defaults, or the preset's. A share of the series is set aside for validation, which training stops on.
    """

    def __init__(
        self,
        model: str = "seft",
        *,
        preset: str | None = None,
        config: Any = None,
        training: TrainingConfig | None = None,
        max_epochs: int | None = None,
        time_unit: TimeUnit = "hours",
        at: str = table.END,
        validation: float = 0.2,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.preset = preset
        self.config = config
        self.training = training
        self.max_epochs = max_epochs
        self.time_unit = time_unit
        self.at = at
        self.validation = validation
        self.seed = seed

    def fit(self, X: SeriesTable, y: ArrayLike) -> Self:  # noqa: N803, scikit-learn's names
        labels = np.asarray(y)
        if labels.shape != (len(X),):
            raise InputError(
                f"there are {len(X)} series and labels of shape {labels.shape}; give one a series"
            )
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"all labels are {self.classes_[0]}; there is nothing to tell apart")
        names = _names(len(X))
        parts = {"train": 1 - self.validation, "val": self.validation}
        drawn = split(names, codes, seed=self.seed, fractions=parts).tolist()
        answers = pl.DataFrame({"id": names, "label": codes, "split": drawn})
        with TemporaryDirectory(prefix="seft-") as place:
            folder = Path(place)
            answers.write_parquet(folder / "labels.parquet")
            self._prepare(X, folder)
            trained = train(self._recipe(), folder / "dataset", folder / "run")
        self.predictor_: Predictor = trained.predictor
        self.n_iter_ = trained.epochs
        return self

    def predict_proba(self, X: SeriesTable) -> NDArray[np.float32]:  # noqa: N803
        """(B, K) calibrated probabilities, in the order of `classes_`."""
        if not hasattr(self, "predictor_"):
            raise NotFittedError("this Classifier is not fitted yet; call fit first")
        with TemporaryDirectory(prefix="seft-") as place:
            folder = Path(place)
            self._prepare(X, folder)
            dataset = open_dataset(folder / "dataset")
            rows = np.arange(len(dataset))
            order = {name: row for row, name in enumerate(dataset.ids(rows))}
            asked = np.array([order[name] for name in _names(len(X))])
            shown = predict(self.predictor_, dataset, asked).probability
        return np.column_stack([1 - shown[:, 0], shown[:, 0]]) if shown.shape[1] == 1 else shown

    def predict(self, X: SeriesTable) -> NDArray[Any]:  # noqa: N803
        """(B,) the class of the highest probability."""
        risk = self.predict_proba(X)
        found: NDArray[Any] = self.classes_[risk.argmax(1)]
        return found

    def _recipe(self) -> Recipe:
        recipe = Recipe.default(self.model) if self.preset is None else Recipe.preset(self.preset)
        training = self.training or recipe.training
        if self.max_epochs is not None:
            training = replace(training, max_epochs=self.max_epochs)
        return replace(
            recipe, config=self.config or recipe.config, training=replace(training, seed=self.seed)
        )

    def _prepare(self, X: SeriesTable, folder: Path) -> None:  # noqa: N803
        X.write(folder)
        table.prepare(raw=folder, out=folder / "dataset", time_unit=self.time_unit, at=self.at)


def _names(count: int) -> list[str]:
    return [f"{position:09d}" for position in range(count)]


def _frame(given: Table, what: str, needed: tuple[str, ...]) -> pl.DataFrame:
    """A polars, pandas or plain mapping of columns as a polars table; ids as text."""
    if isinstance(given, pl.DataFrame):
        frame = given
    elif isinstance(given, Mapping):
        frame = pl.DataFrame(given)
    else:
        frame = pl.from_pandas(given)
    for name in needed:
        if name not in frame.columns:
            raise InputError(f"the {what} have no column {name!r}; they have {', '.join(frame.columns)}")
    return frame.with_columns(pl.col("id").cast(pl.String))
