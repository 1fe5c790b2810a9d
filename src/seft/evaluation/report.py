"""A run judged, as one HTML file that needs no network: numbers with intervals, and their curves."""

import io
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

import seft
from seft.evaluation.prediction import Predictions
from seft.metrics.bootstrap import Interval
from seft.metrics.calibration import reliability
from seft.metrics.ranking import precision_recall_curve, roc_curve
from seft.metrics.utility import utility_curve

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
body { color: #222 }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse } td, th { padding: .2rem .9rem .2rem 0; text-align: left }
td.n { text-align: right; font-variant-numeric: tabular-nums } th { border-bottom: 1px solid #ccc }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem } .pictures svg { width: 29rem; height: auto }
footer { margin-top: 2rem; color: #777; font-size: .85rem }
"""


def write(
    path: Path,
    predictions: Predictions,
    found: dict[str, Interval],
    facts: dict[str, str],
    threshold: float,
) -> None:
    """`facts` stand above the numbers; utility is drawn where the task declares it."""
    pictures = [_picture(draw) for draw in _curves(predictions, threshold)]
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td class=n>{_number(i.value)}</td>"
        f"<td class=n>{_number(i.low)} … {_number(i.high)}</td></tr>"
        for name, i in found.items()
    )
    head = "".join(f"<tr><td>{escape(k)}</td><td>{escape(v)}</td></tr>" for k, v in facts.items())
    text = (
        "<!doctype html><html lang=en><meta charset=utf-8><title>seft report</title>"
        f"<style>{_STYLE}</style><h1>Report</h1><table>{head}</table>"
        "<h2>Metrics</h2><table><tr><th>metric<th>value<th>95 % interval</tr>"
        f"{rows}</table><p>Intervals: 1,000 draws of groups with all of their queries.</p>"
        f"<h2>Curves</h2><div class=pictures>{''.join(pictures)}</div>"
        f"<footer>seft {seft.__version__}. Research software, not a medical device.</footer></html>\n"
    )
    unfinished = path.with_name(f".{path.name}.writing")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def _number(value: float) -> str:
    return "undefined" if value != value else f"{value:.4f}"


def _curves(predictions: Predictions, threshold: float) -> list[Callable[[Any], None]]:
    """Each draws itself on an axis."""
    names = predictions.task.classes[1:] if predictions.task.kind == "binary" else predictions.task.classes
    outputs = [
        (name, label, logit, shown)
        for name, label, logit, shown in zip(
            names, predictions.label.T, predictions.logits.T, predictions.calibrated.T, strict=True
        )
    ]

    def roc(axis: Any) -> None:
        for name, label, logit, _ in outputs:
            curve = roc_curve(label, logit)
            axis.plot(curve.x, curve.y, label=name)
        axis.plot([0, 1], [0, 1], color="0.8", linewidth=0.8)
        axis.set(xlabel="false positive rate", ylabel="sensitivity", title="ROC")

    def precision_recall(axis: Any) -> None:
        for name, label, logit, _ in outputs:
            curve = precision_recall_curve(label, logit)
            axis.step(curve.x, curve.y, where="pre", label=name)
            axis.axhline(float(np.nanmean(label)), color="0.8", linewidth=0.8)
        axis.set(xlabel="sensitivity", ylabel="precision", title="precision and sensitivity", ylim=(0, 1.02))

    def calibration(axis: Any) -> None:
        for name, label, _, shown in outputs:
            bins = reliability(label, shown)
            spread = np.stack([bins.frequency - bins.low, bins.high - bins.frequency]).clip(min=0)
            axis.errorbar(bins.probability, bins.frequency, yerr=spread, fmt="o-", markersize=3, label=name)
        axis.plot([0, 1], [0, 1], color="0.8", linewidth=0.8)
        axis.set(xlabel="probability shown", ylabel="observed frequency", title="calibration")

    def gain(axis: Any) -> None:
        curve = utility_curve(predictions.label[:, 0], predictions.logits[:, 0], predictions.offsets)
        axis.plot(curve.threshold, curve.y)
        axis.axvline(threshold, color="0.6", linewidth=0.8, linestyle=":")
        axis.set(xlabel="threshold on the raw logit", ylabel="normalised utility", title="utility")

    return [roc, precision_recall, calibration, *([gain] if predictions.task.utility else [])]


def _picture(draw: Callable[[Any], None]) -> str:
    """An SVG to stand in the page; its text is drawn, so that it looks the same everywhere."""
    figure, axis = plt.subplots(figsize=(5, 4), layout="constrained")
    draw(axis)
    if len(axis.get_legend_handles_labels()[1]) > 1:
        axis.legend(fontsize=8)
    page = io.StringIO()
    figure.savefig(page, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    svg = page.getvalue()
    return svg[svg.index("<svg") :]
