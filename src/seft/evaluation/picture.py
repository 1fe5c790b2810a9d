"""The paper's Figure 3 for one query: what was observed, coloured by what the model looked at."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from numpy.typing import NDArray

from seft.data.batch import Batch
from seft.data.dataset import Dataset
from seft.data.schema import Schema
from seft.error import InputError
from seft.models.explanation import Explanation, rows_seen
from seft.models.predictor import Match, Predictor


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One query of one series with its explanation; N observations that it sees."""

    id: str
    schema: Schema
    time: float  # hours, of the query
    logits: NDArray[np.float32]  # (C,)
    probability: NDArray[np.float32]  # (C,)
    hours: NDArray[np.float32]  # (N,)
    value: NDArray[np.float32]  # (N,)
    modality: NDArray[np.int32]  # (N,)
    static: NDArray[np.float32]  # (S,)
    explanation: Explanation
    output: int  # which of the C outputs is explained

    @property
    def contribution(self) -> NDArray[np.float32]:
        """(N,) of each observation to the logit."""
        found: NDArray[np.float32] = self.explanation.observation[:, self.output].numpy()
        return found

    def attention(self, head: int | None) -> NDArray[np.float32]:
        """(N,) of one head, or of all heads together; equal shares where the model has none."""
        attention = self.explanation.attention
        if attention is None:
            return np.full(len(self.hours), 1 / max(len(self.hours), 1), np.float32)
        if head is not None and not 0 <= head < attention.shape[1]:
            raise InputError(f"--head is {head}; the model has heads 0 to {attention.shape[1] - 1}")
        found: NDArray[np.float32] = (attention.mean(1) if head is None else attention[:, head]).cpu().numpy()
        return found

    def most_important(self, count: int) -> list[int]:
        """The observations that moved the logit most, the largest first."""
        order: list[int] = np.argsort(-np.abs(self.contribution), kind="stable")[:count].tolist()
        return order


def explain(
    predictor: Predictor, dataset: Dataset, series: str, at: float | None, orders: int, output: str | None
) -> Explained:
    """Explain a query of the series called `series`: the last one, or the last one by the hour `at`."""
    rows = np.flatnonzero(np.array(dataset.series.column("id").to_pylist(), dtype=object) == series)
    if not len(rows):
        raise InputError(f"{dataset.path}: there is no series called {series!r}")
    batch = Match.of(predictor.schema, dataset.schema)(dataset.batch(rows[:1]))
    query = _query(batch, at, series)
    classes = predictor.task.classes if predictor.task.outputs > 1 else predictor.task.classes[1:]
    if output is not None and output not in classes:
        raise InputError(f"--output {output!r}: the outputs are {', '.join(classes)}")
    with torch.no_grad():
        logits = predictor.model(batch)[query : query + 1].float()
    seen = rows_seen(batch, query)
    return Explained(
        id=series,
        schema=predictor.schema,
        time=float(batch.query_time[query]),
        logits=logits[0].numpy(),
        probability=predictor.probability(logits)[0].numpy(),
        hours=batch.time[seen].numpy(),
        value=batch.value[seen].numpy(),
        modality=batch.modality[seen].numpy(),
        static=batch.static[0].numpy(),
        explanation=predictor.model.explain(batch, query, orders=orders),
        output=int(logits[0].argmax()) if output is None else classes.index(output),
    )


def _query(batch: Batch, at: float | None, series: str) -> int:
    times = batch.query_time.tolist()
    asked = [q for q, time in enumerate(times) if at is None or time <= at]
    if not asked:
        when = "no query" if not times else f"its first query at {times[0]:g} h"
        raise InputError(f"the series {series!r} has {when}; there is nothing to explain")
    return asked[-1]


# --- numbers ---------------------------------------------------------------------------------------


def important_rows(explained: Explained, head: int | None, count: int) -> list[dict[str, Any]]:
    """The observations that mattered most, in the variables' own names and units."""
    attention = explained.attention(head)
    return [
        {
            "hours": float(explained.hours[j]),
            "variable": explained.schema.variables[explained.modality[j]].name,
            "value": float(explained.value[j]),
            "unit": explained.schema.variables[explained.modality[j]].unit,
            "attention": float(attention[j]),
            "contribution": float(explained.contribution[j]),
        }
        for j in explained.most_important(count)
    ]


def by_variable(explained: Explained, head: int | None) -> list[tuple[str, float, float]]:
    """Name, summed attention and summed contribution of each variable that was seen, most attended first."""
    kinds = explained.schema.modalities
    attention = np.bincount(explained.modality, explained.attention(head), kinds)
    contribution = np.bincount(explained.modality, explained.contribution, kinds)
    seen = np.flatnonzero(np.bincount(explained.modality, minlength=kinds))
    order = seen[np.argsort(-attention[seen], kind="stable")].tolist()
    return [(explained.schema.variables[k].name, float(attention[k]), float(contribution[k])) for k in order]


# --- the picture -----------------------------------------------------------------------------------


def draw(
    explained: Explained, out: Path, variables: tuple[str, ...] = (), head: int | None = None, shown: int = 4
) -> None:
    """The chosen variables (default: the most attended) over time, and the table beside them."""
    known = [variable.name for variable in explained.schema.variables]
    for name in variables:
        if name not in known:
            raise InputError(f"--variables {name!r}: the model knows {', '.join(known)}")
    summed = by_variable(explained, head)
    chosen = list(variables) or [name for name, _, _ in summed[:shown]]
    figure = plt.figure(figsize=(13, 2.0 + 1.7 * max(len(chosen), 3)), layout="constrained")
    panels: Any = figure.subfigures(1, 2, width_ratios=(2, 1.25))
    left, right = panels
    _draw_series(left, explained, chosen, head)
    _draw_shares(right, summed, important_rows(explained, head, 10))
    probability = explained.probability[explained.output]
    heads = "all heads" if head is None else f"head {head}"
    figure.suptitle(
        f"{explained.id} at {explained.time:g} h: probability {probability:.3f}, logit "
        f"{explained.logits[explained.output]:.2f}; attention of {heads}",
        fontsize=11,
        parse_math=False,
    )
    figure.savefig(out, dpi=120)
    plt.close(figure)


def _draw_series(panel: Any, explained: Explained, chosen: list[str], head: int | None) -> None:
    """A row a variable; each observation is coloured by the attention that it has."""
    attention = explained.attention(head)
    axes = panel.subplots(max(len(chosen), 1), 1, sharex=True, squeeze=False)[:, 0]
    names = [variable.name for variable in explained.schema.variables]
    top = float(attention.max()) if len(attention) else 1.0
    points = None
    for axis, name in zip(axes, chosen, strict=False):
        own = explained.modality == names.index(name)
        unit = explained.schema.variables[names.index(name)].unit
        axis.plot(explained.hours[own], explained.value[own], color="0.8", linewidth=0.8, zorder=1)
        points = axis.scatter(
            *(explained.hours[own], explained.value[own]),
            c=attention[own],
            cmap="viridis_r",
            vmin=0,
            vmax=top,
            s=18,
            zorder=2,
        )
        axis.set_ylabel(f"{name}\n{unit}" if unit else name, fontsize=8, parse_math=False)
        axis.axvline(explained.time, color="0.6", linewidth=0.8, linestyle=":")
    axes[-1].set_xlabel("hours since the start")
    if points is not None:
        panel.colorbar(points, ax=axes, label="attention", shrink=0.8)


def _draw_shares(panel: Any, summed: list[tuple[str, float, float]], rows: list[dict[str, Any]]) -> None:
    """Attention and contribution by variable, and the observations that mattered most."""
    bars, table = panel.subplots(2, 1)
    top = summed[:8][::-1]
    places = np.arange(len(top))
    bars.barh(places, [share for _, share, _ in top], color="tab:blue", height=0.7)
    bars.set_yticks(places, [name for name, _, _ in top], fontsize=8, parse_math=False)
    bars.set_xlabel("attention, summed by variable", fontsize=8)
    table.axis("off")
    if not rows:
        return
    cells = [
        [
            f"{row['hours']:.1f} h",
            row["variable"].replace("$", r"\$"),
            f"{row['value']:.4g} {row['unit']}".replace("$", r"\$"),
            f"{row['attention']:.3f}",
            f"{row['contribution']:+.3f}",
        ]
        for row in rows
    ]
    drawn = table.table(
        cells,
        colLabels=["time", "variable", "value", "attention", "contribution"],
        loc="center",
        cellLoc="left",
    )
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(7)
    drawn.auto_set_column_width(list(range(5)))
