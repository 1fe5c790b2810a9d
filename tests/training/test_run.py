import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from seft.data.dataset import Dataset, open_dataset
from seft.data.sources import synthetic
from seft.data.task import Task
from seft.error import InputError
from seft.models.predictor import Predictor
from seft.models.seft import SeftConfig
from seft.training.config import TrainingConfig
from seft.training.fit import Epoch, add_gradients_of_ranks
from seft.training.recipe import Recipe
from seft.training.run import train
from tests.data.example import write

SMALL = SeftConfig(n_phi_layers=1, phi_width=8, latent_width=8, n_rho_layers=1, rho_width=8, n_psi_layers=1)
RECIPE = Recipe(
    model="seft",
    config=SMALL,
    training=TrainingConfig(max_epochs=4, learning_rate=3e-3, averaging=0.9, schedule="plateau"),
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    out = tmp_path_factory.mktemp("run") / "dataset"
    synthetic.prepare(out=out, series=150)
    return open_dataset(out)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return Predictor.load(run / "predictor").model.state_dict()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one | other)


def test_a_run_leaves_all_that_repeats_it(dataset: Dataset, tmp_path: Path) -> None:
    trained = train(RECIPE, dataset.path, tmp_path / "run")
    assert Recipe.read(tmp_path / "run" / "config.yaml") == RECIPE
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4]
    assert {"loss", "val_auroc", "val_auprc", "best", "learning_rate", "seconds"} <= lines[0].keys()
    assert {"seft", "commit", "torch", "device"} <= json.loads(
        (tmp_path / "run" / "environment.json").read_text()
    ).keys()
    rows = dataset.split("test")
    batch = dataset.batch(rows)
    loaded = Predictor.load(tmp_path / "run" / "predictor")
    torch.testing.assert_close(loaded.model(batch), trained.predictor.model(batch), rtol=0, atol=0)
    assert loaded.calibration == trained.predictor.calibration
    assert min(loaded.calibration.slope) > 0


def test_a_seed_makes_two_runs_equal_to_the_bit_and_another_seed_does_not(
    dataset: Dataset, tmp_path: Path
) -> None:
    torch.set_num_threads(2)
    try:
        for name in ("one", "two"):
            train(RECIPE, dataset.path, tmp_path / name)
    finally:
        torch.set_num_threads(1)
    other = replace(RECIPE, training=replace(RECIPE.training, seed=1))
    train(other, dataset.path, tmp_path / "other")
    assert same(weights(tmp_path / "one"), weights(tmp_path / "two"))
    assert not same(weights(tmp_path / "one"), weights(tmp_path / "other"))


@pytest.mark.parametrize("after", [1, 3])
def test_an_interrupted_run_ends_as_an_unbroken_one(dataset: Dataset, tmp_path: Path, after: int) -> None:
    def interrupt(epoch: Epoch) -> None:
        if epoch.epoch == after:
            raise KeyboardInterrupt

    unbroken = train(RECIPE, dataset.path, tmp_path / "unbroken")
    with pytest.raises(KeyboardInterrupt):
        train(RECIPE, dataset.path, tmp_path / "broken", tell=interrupt)
    resumed = train(RECIPE, dataset.path, tmp_path / "broken")
    assert same(weights(tmp_path / "unbroken"), weights(tmp_path / "broken"))
    assert (resumed.epochs, resumed.best_epoch, resumed.best) == (4, unbroken.best_epoch, unbroken.best)
    lines = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("broken", "unbroken")
    ]
    for broken, whole in zip(*lines, strict=True):
        assert {k: v for k, v in broken.items() if k != "seconds"} == {
            k: v for k, v in whole.items() if k != "seconds"
        }


def test_a_killed_command_resumes_to_the_result_of_an_unbroken_one(dataset: Dataset, tmp_path: Path) -> None:
    def command(out: Path) -> list[str]:
        options = ["--max-epochs", "3", "--phi-width", "8", "--latent-width", "8", "--n-phi-layers", "1"]
        return [
            str(Path(sys.executable).parent / "seft"),
            "train",
            "seft",
            str(dataset.path),
            "--out",
            str(out),
            *options,
        ]

    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command(tmp_path / "killed"), stdout=subprocess.PIPE, env=environment)
    while not (tmp_path / "killed" / "checkpoint.safetensors").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    for name in ("killed", "unbroken"):
        subprocess.run(command(tmp_path / name), check=True, capture_output=True, env=environment)
    assert same(weights(tmp_path / "killed"), weights(tmp_path / "unbroken"))


def test_two_processes_have_the_gradients_of_one(tmp_path: Path) -> None:
    """Each takes every other series of the batch; their gradients add up to those of the whole batch."""
    write(tmp_path / "d")
    script = tmp_path / "ranks.py"
    script.write_text(
        "import sys, numpy as np, torch, torch.distributed as distributed\n"
        "from seft.data.dataset import open_dataset\n"
        "from seft.models.seft import Seft, SeftConfig\n"
        "from seft.training.fit import add_gradients_of_ranks, join_ranks, summed_over_ranks\n"
        "join_ranks()\n"
        "d = open_dataset(sys.argv[1])\n"
        "torch.manual_seed(0)\n"
        "model = Seft(SeftConfig(attn_dropout=0.0, phi_dropout=0.0, rho_dropout=0.0), d.schema, d.task)\n"
        "rank, world = (distributed.get_rank(), 2) if distributed.is_initialized() else (0, 1)\n"
        "loss, count = model.objective(d.batch(np.arange(60)[rank::world]), None)\n"
        "total = summed_over_ranks(count.clone())\n"
        "(loss / total).backward()\n"
        "add_gradients_of_ranks(model)\n"
        "gradients = {n: p.grad for n, p in model.named_parameters()}\n"
        "if rank == 0: torch.save(gradients, sys.argv[2])\n"
        "if distributed.is_initialized(): distributed.destroy_process_group()\n"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    arguments = [str(script), str(tmp_path / "d")]
    subprocess.run([sys.executable, *arguments, str(tmp_path / "one")], check=True, env=environment)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    subprocess.run(
        [*torchrun, *arguments, str(tmp_path / "two")], check=True, env=environment, capture_output=True
    )
    one, two = (torch.load(tmp_path / name, weights_only=True) for name in ("one", "two"))
    for name, gradient in one.items():
        torch.testing.assert_close(two[name], gradient, rtol=1e-5, atol=1e-6)


def test_two_processes_make_one_run(dataset: Dataset, tmp_path: Path) -> None:
    """The whole command under torchrun: one folder, one line an epoch, one row."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    small = ["--max-epochs", "2", "--phi-width", "8", "--latent-width", "8", "--n-phi-layers", "1"]
    files = ["--out", str(tmp_path / "run"), "--record", str(tmp_path / "runs.csv")]
    run = subprocess.run(
        [*torchrun, "-m", "seft.cli", "train", "seft", str(dataset.path), *files, *small],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2
    assert run.stdout.count("epoch   1") == 1
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 2
    assert Predictor.load(tmp_path / "run" / "predictor").task == dataset.task


def test_alone_gradients_stay_as_they_are(dataset: Dataset) -> None:
    from seft.models.seft import Seft

    assert dataset.task is not None
    model = Seft(SMALL, dataset.schema, dataset.task)
    add_gradients_of_ranks(model)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("sampling", ["natural", "balanced"])
@pytest.mark.parametrize(
    "task",
    [
        Task(kind="multiclass", classes=("a", "b", "c"), metric="balanced_accuracy"),
        Task(kind="multilabel", classes=("x", "y"), metric="auprc"),
    ],
    ids=lambda task: task.kind,
)
def test_every_kind_of_task_trains(tmp_path: Path, task: Task, sampling: str) -> None:
    if task.kind == "multilabel" and sampling == "balanced":
        pytest.skip("series of several labels have no class to balance")
    write(tmp_path / "d", task=task, series=40)
    training = replace(RECIPE.training, sampling=sampling, max_epochs=2)  # type: ignore[arg-type]
    trained = train(replace(RECIPE, training=training), tmp_path / "d", tmp_path / "run")
    batch = open_dataset(tmp_path / "d").batch(np.arange(9))
    shown = trained.predictor.probability(trained.predictor.model(batch))
    assert shown.shape == (batch.queries, task.outputs)
    assert ((shown > 0) & (shown < 1)).all()
    if task.kind == "multiclass":
        torch.testing.assert_close(shown.sum(1), torch.ones(batch.queries))


# --- bad input -------------------------------------------------------------------------------------


def test_a_folder_of_another_run_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    train(replace(RECIPE, training=replace(RECIPE.training, max_epochs=1)), dataset.path, tmp_path / "run")
    with pytest.raises(InputError, match="holds a run of another configuration; choose another --out"):
        train(RECIPE, dataset.path, tmp_path / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    with pytest.raises(InputError, match="exists and holds no run"):
        train(RECIPE, dataset.path, tmp_path / "mine")


def test_a_damaged_checkpoint_is_named(dataset: Dataset, tmp_path: Path) -> None:
    def interrupt(epoch: Epoch) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(RECIPE, dataset.path, tmp_path / "run", tell=interrupt)
    file = tmp_path / "run" / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(InputError, match=r"checkpoint.safetensors: is damaged"):
        train(RECIPE, dataset.path, tmp_path / "run")


@pytest.mark.parametrize(
    ("file", "message"),
    [("model.safetensors", "cannot be read as weights"), ("predictor.json", "is damaged")],
)
def test_a_damaged_predictor_is_named(dataset: Dataset, tmp_path: Path, file: str, message: str) -> None:
    train(replace(RECIPE, training=replace(RECIPE.training, max_epochs=1)), dataset.path, tmp_path / "run")
    path = tmp_path / "run" / "predictor" / file
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match=f"{file}: {message}"):
        Predictor.load(path.parent)
    with pytest.raises(InputError, match="is no saved predictor"):
        Predictor.load(tmp_path)


def test_a_loss_that_is_no_number_stops_the_run_and_says_where(dataset: Dataset, tmp_path: Path) -> None:
    wild = replace(RECIPE, training=replace(RECIPE.training, class_weights=(1e38, 1e38)))
    with pytest.raises(InputError, match=r"the loss became inf at step 1 \(epoch 1, series .*last good"):
        train(wild, dataset.path, tmp_path / "run")


def test_splits_that_cannot_be_learnt_from_are_refused(tmp_path: Path) -> None:
    synthetic.prepare(out=tmp_path / "d", series=2)
    with pytest.raises(InputError, match=r"has no split 'val'|of one class"):
        train(RECIPE, tmp_path / "d", tmp_path / "run")
    assert not (tmp_path / "run").exists()
