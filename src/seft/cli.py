"""The commands: parse, call, print. Exit code 0 done, 1 the check failed, 2 the input is wrong."""

import json as json_format
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from errno import ENOSPC
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import tyro
from rich.console import Console

import seft
from seft.error import InputError

if TYPE_CHECKING:
    from seft.training.recipe import Recipe

# Imported when asked for: `seft --help` answers at once, and nothing loads what it does not use.
SOURCES = ("physionet2012", "physionet2019", "mimic3", "meds", "table", "synthetic")

Run = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
MaybeDataset = Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")]
Dataset = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")]


def prepare(arguments: list[str]) -> None:
    """Turn raw recordings into a dataset folder."""
    name = _choose(arguments, SOURCES, "source", "seft prepare SOURCE --out DATASET [options]", _first_line)
    source: Callable[..., None] = import_module(f"seft.data.sources.{name}").prepare
    tyro.cli(source, prog=f"seft prepare {name}", args=arguments[1:])


def inspect(arguments: list[str]) -> None:
    """Say what is in a dataset."""
    tyro.cli(_inspect, prog="seft inspect", args=arguments)


def _inspect(
    dataset: Dataset, /, *, json: bool = False, plot: Path | None = None, verify: bool = False
) -> None:
    """Say what is in a dataset.

    Args:
        dataset: The dataset folder.
        json: Print it as JSON.
        plot: Draw a few series to this PNG.
        verify: Compare every file with its checksum first.
    """
    from seft.data.folder import Folder
    from seft.data.inspection import plot as draw
    from seft.data.inspection import render, summary

    folder = Folder(dataset)
    if verify:
        print(f"{folder.verify()} files have the checksums of dataset.json", file=sys.stderr)
    facts = summary(folder)
    if json:
        print(json_format.dumps(facts, indent=1, ensure_ascii=False))
    else:
        width = None if sys.stdout.isatty() else 130
        Console(width=width, markup=False, highlight=False).print(render(facts))
    if plot is not None:
        draw(folder, plot)


def train(arguments: list[str]) -> None:
    """Train a model on a dataset."""
    from seft.models.registry import MODELS, model_class
    from seft.training.recipe import Recipe

    usage = "seft train MODEL DATASET --out RUN [--preset NAME] [options]"
    name = _choose(arguments, tuple(MODELS), "model", usage, lambda model: model_class(model).__doc__ or "")
    preset, rest = _taken(arguments[1:], "--preset")
    recipe = Recipe.default(name) if preset is None else Recipe.preset(preset)
    if recipe.model != name:
        raise InputError(f"the preset {preset} is one of {recipe.model}, not of {name}")

    def run(
        dataset: Dataset,
        /,
        *,
        out: Path,
        config: recipe.config.__class__ = recipe.config,  # type: ignore[name-defined]
        training: recipe.training.__class__ = recipe.training,  # type: ignore[name-defined]
        device: str | None = None,
        record: Path | None = None,
        note: str = "",
    ) -> None:
        """Train a model on a dataset; killed at any moment, the same command goes on.

        Args:
            dataset: The dataset folder.
            out: The run folder to make, or to go on with.
            config: Of the model.
            training: How it is trained.
            device: cuda, mps or cpu (default: what there is).
            record: Append the finished run to this CSV, judged on the test split.
            note: What to write in that row beside the numbers.
        """
        _train(replace(recipe, config=config, training=training), preset, dataset, out, device, record, note)

    if {"-h", "--help"} & set(rest):
        print(_search_ranges(recipe))
    tyro.cli(run, prog=f"seft train {name}", args=rest, config=(tyro.conf.OmitArgPrefixes,))


def _search_ranges(recipe: "Recipe") -> str:
    """What a search draws each hyperparameter from, and where its legal bounds are."""
    from seft.models.hyperparameter import LogUniform, searched

    lines = ["searched over:"]
    for config in (recipe.config, recipe.training):
        for field, search in searched(type(config)):
            if isinstance(search, LogUniform):
                drawn = f"{search.low:g} … {search.high:g}, log-uniform"
            else:
                drawn = ", ".join(f"{value:g}" for value in search)
            low, high = field.metadata["legal"]
            lines.append(f"  --{field.name.replace('_', '-'):<20} {drawn}  (legal: {low:g} … {high:g})")
    return "\n".join(lines) + "\n"


def _train(
    recipe: "Recipe",
    preset: str | None,
    dataset: Path,
    out: Path,
    device: str | None,
    record: Path | None,
    note: str,
) -> None:
    from seft.training.fit import leads
    from seft.training.progress import watching
    from seft.training.run import train as train_run

    console = Console(markup=False, highlight=False)
    try:
        with watching(console, recipe.training.max_epochs) as tell:
            trained = train_run(recipe, dataset, out, device=device, tell=tell)
    except KeyboardInterrupt:
        _stop(f"interrupted; the same command goes on from the last finished epoch in {out}", 130)
    if not leads():
        return
    print(
        f"best of {trained.epochs} epochs: {trained.best_epoch}, "
        f"{trained.predictor.task.metric} {trained.best:.4f} on validation; saved in {out}"
    )
    if record is not None:
        from seft.evaluation.record import append

        append(record, out, dataset, preset, note)


def _taken(arguments: list[str], flag: str) -> tuple[str | None, list[str]]:
    """The value of a flag that decides what the others' defaults are, and the arguments without it."""
    for number, argument in enumerate(arguments):
        if argument == flag and number + 1 < len(arguments):
            return arguments[number + 1], arguments[:number] + arguments[number + 2 :]
        if argument.startswith(f"{flag}="):
            return argument.split("=", 1)[1], arguments[:number] + arguments[number + 1 :]
    return None, arguments


def evaluate(arguments: list[str]) -> None:
    """Judge a run on a split, with intervals."""
    tyro.cli(_evaluate, prog="seft evaluate", args=arguments)


def _evaluate(
    run: Run,
    dataset: MaybeDataset = None,
    /,
    *,
    split: str = "test",
    threshold: float | None = None,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Judge a run on a split: metrics with 95 % intervals from 1,000 draws of groups.

    Args:
        run: The run folder, or a saved predictor.
        dataset: The dataset folder (default: the one that the run was trained on).
        split: Which of its splits.
        threshold: On the raw logit (default: the run's own, chosen on validation; 0 is the paper's 0.5).
        out: A folder for report.html (the curves, in one file) and metrics.json.
        json: Print it as JSON.
    """
    from seft.data.dataset import open_dataset
    from seft.evaluation import report
    from seft.evaluation.judgement import judge, render, to_json
    from seft.evaluation.prediction import predict as answers
    from seft.training.run import dataset_of, load

    predictor = load(run)
    data = open_dataset(dataset or dataset_of(run))
    used = predictor.threshold if threshold is None else threshold
    predictions = answers(predictor, data, data.split(split))
    found = judge(predictions, used)
    record = {"split": split, "threshold": used, "metrics": to_json(found)}
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        facts = {
            "run": str(run),
            "model": predictor.name,
            "dataset": f"{data.path} ({data.source})",
            "split": f"{split}: {len(predictions.id):,} series, {len(predictions.time):,} queries",
            "threshold": f"{used:.4g} on the raw logit",
        }
        report.write(out / "report.html", predictions, found, facts, used)
        (out / "metrics.json").write_text(json_format.dumps(record, indent=1) + "\n", encoding="utf-8")
    if json:
        print(json_format.dumps(record, indent=1))
    else:
        print(f"{run} on {data.path}, split {split}, raw logit ≥ {used:.4g} called positive")
        Console(markup=False, highlight=False).print(render(found))


def predict(arguments: list[str]) -> None:
    """Write one row a query: id, time, label, probability."""
    tyro.cli(_predict, prog="seft predict", args=arguments)


def _predict(run: Run, dataset: MaybeDataset = None, /, *, out: Path, split: str | None = None) -> None:
    """Write one row a query: id, time, label, probability.

    Args:
        run: The run folder, or a saved predictor.
        dataset: The dataset folder (default: the one that the run was trained on).
        out: The Parquet file to write.
        split: Only this split (default: every series).
    """
    import numpy as np

    from seft.data.dataset import open_dataset
    from seft.evaluation.prediction import predict as answers
    from seft.models.predictor import Match
    from seft.training.run import dataset_of, load

    predictor = load(run)
    data = open_dataset(dataset or dataset_of(run))
    match = Match.of(predictor.schema, data.schema)
    for names, what in (
        (match.ignored, "unknown to the model and ignored"),
        (match.missing, "absent in the data"),
    ):
        if names:
            print(f"seft: {what}: {', '.join(names)}", file=sys.stderr)
    rows = np.arange(len(data)) if split is None else data.split(split)
    answers(predictor, data, rows).write(out)


def explain(arguments: list[str]) -> None:
    """Show which observations mattered for an answer."""
    tyro.cli(_explain, prog="seft explain", args=arguments)


def _explain(
    run: Run,
    dataset: MaybeDataset = None,
    /,
    *,
    series: str,
    out: Path,
    time: float | None = None,
    variables: tuple[str, ...] = (),
    head: int | None = None,
    output: str | None = None,
    orders: int = 64,
    json: bool = False,
) -> None:
    """Show which observations mattered: a picture of the series, and the ten that moved the answer most.

    Args:
        run: The run folder, or a saved predictor.
        dataset: The dataset folder (default: the one that the run was trained on).
        series: The id of the series.
        out: The PNG to draw.
        time: Explain the last query by this hour (default: the last of all).
        variables: Draw these (default: the four most attended).
        head: The attention of this head alone (default: the mean of all).
        output: The class or label to explain (default: the positive one, or the one predicted).
        orders: Orders sampled for the contributions; more are more exact.
        json: Print the numbers as JSON.
    """
    from seft.data.dataset import open_dataset
    from seft.evaluation import picture
    from seft.training.run import dataset_of, load

    predictor = load(run)
    data = open_dataset(dataset or dataset_of(run))
    explained = picture.explain(predictor, data, series, time, orders, output)
    picture.draw(explained, out, variables, head)
    rows = picture.important_rows(explained, head, 10)
    if json:
        print(json_format.dumps(rows, indent=1, ensure_ascii=False))
        return
    bias = float(explained.explanation.bias[explained.output])
    statics = float(explained.explanation.static[:, explained.output].sum())
    logit = float(explained.logits[explained.output])
    print(
        f"logit {logit:.3f} = {bias:+.3f} to start from {statics:+.3f} statics "
        f"{float(explained.contribution.sum()):+.3f} of {len(explained.hours)} observations, the largest:"
    )
    for row in rows:
        print(
            f"  {row['contribution']:+.3f}  {row['variable']} {row['value']:.4g} {row['unit']} "
            f"at {row['hours']:.1f} h  (attention {row['attention']:.3f})"
        )


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "prepare": prepare,
    "inspect": inspect,
    "train": train,
    "evaluate": evaluate,
    "predict": predict,
    "explain": explain,
}


def _command_line(name: str) -> str:
    return (COMMANDS[name].__doc__ or "").strip()


def _first_line(source: str) -> str:
    """What a source is, by the first line of its docstring."""
    return (import_module(f"seft.data.sources.{source}").prepare.__doc__ or "").splitlines()[0]


def _choose(
    arguments: list[str],
    names: tuple[str, ...],
    kind: str,
    usage: str,
    describe: Callable[[str], str],
) -> str:
    """The first argument, one of `names`; without it, or with --help, the list of them."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: {usage}\n")
        width = max(map(len, names))
        for name in names:
            print(f"  {name:<{width}}  {describe(name)}")
        raise SystemExit(0 if arguments else 2)
    if arguments[0] not in names:
        near = get_close_matches(arguments[0], names, n=3) or names
        raise InputError(f"there is no {kind} {arguments[0]!r}; did you mean {' or '.join(near)}?")
    return arguments[0]


def main(arguments: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without Unicode shows what it can
    try:
        if arguments == ["--version"]:
            print(f"seft {seft.__version__}")
            return
        usage = "seft COMMAND [options]     research software, not a medical device"
        name = _choose(arguments, tuple(COMMANDS), "command", usage, _command_line)
        COMMANDS[name](arguments[1:])
    except InputError as error:
        _stop(str(error), 2)
    except BrokenPipeError:  # `seft inspect … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except OSError as error:
        # A full disk, a folder that may not be written: the machine's answer, not a fault of ours.
        where = f"{error.filename}: " if error.filename else ""
        advice = "; free some, or choose another place" if error.errno == ENOSPC else ""
        _stop(f"{where}{error.strerror or error}{advice}", 2)
    except KeyboardInterrupt:
        _stop("interrupted; nothing was left half-made", 130)


def _stop(message: str, code: int) -> NoReturn:
    print(f"seft: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(code)


if __name__ == "__main__":
    main()
