"""What is in a dataset: counts, variables, distributions, and pictures of some series."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Group
from rich.table import Table
from rich.text import Text

from seft.data.assembly import hours
from seft.data.folder import Folder
from seft.error import InputError

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_BARS = "▁▂▃▄▅▆▇█"


def summary(folder: Folder) -> dict[str, Any]:
    """All that `seft inspect` says of a dataset, as JSON."""
    count = folder.series.column("observations").to_numpy()
    queries = folder.series.column("queries").to_numpy()
    return {
        "dataset": str(folder.path),
        "source": folder.source,
        "provenance": folder.provenance,
        "task": None if folder.task is None else folder.task.to_json(),
        "series": len(folder),
        "shards": folder.shards,
        "splits": folder.splits,
        "observations_a_series": _quantiles(count),
        "queries_a_series": _quantiles(queries),
        "last_hour": _quantiles(_last_hours(folder, count)),
        "modalities": _modalities(folder),
        "statics": _statics(folder),
        "notes": folder.notes,
    }


def _quantiles(values: NDArray[Any]) -> dict[str, float]:
    """Minimum to maximum; empty where there is nothing."""
    if not len(values):
        return {}
    found = np.quantile(values, QUANTILES).tolist()
    return {f"{round(100 * q)}%": value for q, value in zip(QUANTILES, found, strict=True)}


def _last_hours(folder: Folder, count: NDArray[np.int64]) -> NDArray[np.float32]:
    """The time of the last arrival of each series that has any."""
    parts = []
    first = 0
    for shard, series in enumerate(folder.rows("series").tolist()):
        of_series = count[first : first + series]
        last = np.cumsum(of_series)[of_series > 0] - 1
        parts.append(hours(folder.column("observations", shard, "arrival")[last]))
        first += series
    return np.concatenate(parts)


def _modalities(folder: Folder) -> list[dict[str, Any]]:
    """A record a variable; shard by shard, so that no more than the values themselves are held."""
    kinds = folder.schema.modalities
    seen_in = np.zeros(kinds, dtype=np.int64)
    parts: list[list[NDArray[np.float32]]] = [[] for _ in range(kinds)]
    for shard in range(folder.shards):
        modality = folder.column("observations", shard, "modality")
        series = folder.column("observations", shard, "series").astype(np.int64)
        pairs = np.unique(series * kinds + modality)
        seen_in += np.bincount(pairs % kinds, minlength=kinds)
        order = np.argsort(modality, kind="stable")
        values = folder.column("observations", shard, "value")[order]
        cuts = np.cumsum(np.bincount(modality, minlength=kinds))[:-1]
        for kind, part in enumerate(np.split(values, cuts)):
            parts[kind].append(part)
    records = []
    for variable, found, in_series in zip(folder.schema.variables, parts, seen_in.tolist(), strict=True):
        values = np.concatenate(found)
        records.append(
            {
                "name": variable.name,
                "unit": variable.unit,
                "event": variable.event,
                "count": len(values),
                "series": in_series,
                "share_of_series": in_series / len(folder),
                "mean": float(values.mean(dtype=np.float64)) if len(values) else None,
                "sd": float(values.std(dtype=np.float64)) if len(values) else None,
                "quantiles": _quantiles(values),
                "sparkline": sparkline(values),
            }
        )
    return records


def _statics(folder: Folder) -> list[dict[str, Any]]:
    records = []
    for static in folder.schema.statics:
        columns = {
            name: folder.series.column(f"static_{name}").to_numpy().astype(np.float64)
            for name in static.columns
        }
        record: dict[str, Any] = {"name": static.name, "unit": static.unit}
        if static.levels:
            counts = {
                level: int((values == 1).sum())
                for level, values in zip(static.levels, columns.values(), strict=True)
            }
            record |= {"levels": counts, "unknown": len(folder) - sum(counts.values())}
        else:
            values = columns[static.name]
            known = values[~np.isnan(values)]
            record |= {"unknown": len(values) - len(known), "quantiles": _quantiles(known)}
        records.append(record)
    return records


def sparkline(values: NDArray[np.float32], bins: int = 12) -> str:
    """A histogram in one word, between the 1st and the 99th percentile so that outliers don't flatten it."""
    if not len(values):
        return ""
    low, high = np.quantile(values, (0.01, 0.99), method="nearest")
    if low == high:
        return _BARS[-1]
    counts, _ = np.histogram(values, bins=bins, range=(low, high))
    heights = np.ceil(counts / counts.max() * len(_BARS)).astype(int)
    return "".join(_BARS[height - 1] if height else " " for height in heights.tolist())


# --- for people ------------------------------------------------------------------------------------


def render(facts: dict[str, Any]) -> Group:
    """The summary as tables for a terminal."""
    lines = [Text(f"{facts['dataset']}  ({facts['source']})", style="bold")]
    if facts["task"] is not None:
        task = facts["task"]
        lines.append(Text(f"{task['kind']} task: {', '.join(task['classes'])}; chosen by {task['metric']}"))
    else:
        lines.append(Text("no labels"))
    lines += [
        Text(f"{title}: {_spread(facts[name])}")
        for title, name in (
            ("observations a series", "observations_a_series"),
            ("queries a series", "queries_a_series"),
            ("last arrival (h)", "last_hour"),
        )
    ]
    notes = [Text(f"{count:,} {note}", style="yellow") for note, count in facts["notes"].items()]
    return Group(*lines, _split_table(facts), _modality_table(facts), _static_table(facts), *notes)


def _spread(quantiles: dict[str, float]) -> str:
    if not quantiles:
        return "none"
    low, q1, median, q3, high = (quantiles[q] for q in ("0%", "25%", "50%", "75%", "100%"))
    return f"{_number(low)} … {_number(q1)} [{_number(median)}] {_number(q3)} … {_number(high)}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number == 0 else "right", no_wrap=True)
    return table


def _split_table(facts: dict[str, Any]) -> Table:
    best = any("best_auroc" in split for split in facts["splits"].values())
    table = _table(
        "split", "series", "observations", "queries", "positive", "", *(["best AUROC"] if best else [])
    )
    for name in sorted(facts["splits"], key=_usual_order):
        split = facts["splits"][name]
        positive, share = _positive(split)
        cells = [name, *(f"{split[key]:,}" for key in ("series", "observations", "queries"))]
        cells += [positive, share]
        if best:
            cells.append(f"{split['best_auroc']:.4f}" if "best_auroc" in split else "")
        table.add_row(*cells)
    return table


def _usual_order(split: str) -> tuple[int, str]:
    usual = ("train", "val", "test")
    return (usual.index(split) if split in usual else len(usual), split)


def _positive(split: dict[str, Any]) -> tuple[str, str]:
    positive = split["positive"]
    if positive is None:
        return "", ""
    if isinstance(positive, dict):
        return ", ".join(f"{name} {count:,}" for name, count in positive.items()), ""
    return f"{positive:,}", f"{positive / split['queries']:.1%}" if split["queries"] else ""


def _modality_table(facts: dict[str, Any]) -> Table:
    table = _table("variable", "unit", "count", "in series", "5%", "median", "95%", "max", "1%…99%")
    for record in facts["modalities"]:
        spread = [_number(record["quantiles"].get(q)) for q in ("5%", "50%", "95%", "100%")]
        table.add_row(
            record["name"],
            "event" if record["event"] else record["unit"],
            f"{record['count']:,}",
            f"{record['share_of_series']:.1%}",
            *spread,
            record["sparkline"],
        )
    return table


def _static_table(facts: dict[str, Any]) -> Table:
    table = _table("static", "unit", "unknown", "")
    for record in facts["statics"]:
        if "levels" in record:
            content = ", ".join(f"{level}: {count:,}" for level, count in record["levels"].items())
        else:
            content = _spread(record["quantiles"])
        table.add_row(record["name"], record["unit"], f"{record['unknown']:,}", content)
    return table


# --- pictures --------------------------------------------------------------------------------------


def plot(folder: Folder, out: Path, series: int = 3, variables: int = 8) -> None:
    """Draw the first `series` series that have observations, with the variables observed most often."""
    # Not at the top: matplotlib is needed by this picture alone.
    import matplotlib.pyplot as plt

    known = plt.gcf().canvas.get_supported_filetypes()
    if out.suffix.removeprefix(".") not in known:
        raise InputError(f"{out}: pictures end in {', '.join(f'.{name}' for name in sorted(known))}")
    count = folder.series.column("observations").to_numpy()
    shown = np.flatnonzero(count > 0)[:series].tolist()
    figure, axes = plt.subplots(
        max(len(shown), 1), 1, figsize=(11, 2.6 * max(len(shown), 1)), squeeze=False, layout="constrained"
    )
    for axis, row in zip(axes[:, 0], shown, strict=False):
        time, modality, value, query = _rows_of(folder, row)
        kinds, counts = np.unique(modality, return_counts=True)
        common = np.sort(kinds[np.argsort(-counts, kind="stable")[:variables]])
        for level, kind in enumerate(common.tolist()):
            of_kind = modality == kind
            spread = np.ptp(value[of_kind]) or 1.0
            height = (value[of_kind] - value[of_kind].min()) / spread * 0.8
            axis.plot(time[of_kind], level + height, ".-", markersize=3, linewidth=0.5)
        names = [_variable_label(folder, kind) for kind in common.tolist()]
        axis.set_yticks(np.arange(len(common)) + 0.4, names, parse_math=False)
        axis.vlines(query, 0, len(common), colors="0.85", linewidth=0.6, zorder=0)
        identity = folder.series.column("id")[row].as_py()
        title = f"{identity}: {count[row]} observations, {len(query)} queries"
        axis.set_title(title, fontsize=9, loc="left", parse_math=False)
        axis.set_xlabel("hours since the start")
    figure.savefig(out, dpi=120)
    plt.close(figure)


def _variable_label(folder: Folder, modality: int) -> str:
    variable = folder.schema.variables[modality]
    return f"{variable.name} ({variable.unit})" if variable.unit else variable.name


def _rows_of(
    folder: Folder, row: int
) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:
    """Hours, modalities and values of one series, and the hours of its queries."""
    last = np.cumsum(folder.rows("series"))
    shard = int(np.searchsorted(last, row, side="right"))
    inside = folder.column("observations", shard, "series") == row
    asked = folder.column("queries", shard, "series") == row
    return (
        hours(folder.column("observations", shard, "time")[inside]),
        folder.column("observations", shard, "modality")[inside],
        folder.column("observations", shard, "value")[inside],
        hours(folder.column("queries", shard, "time")[asked]),
    )
