import subprocess
import sys
from pathlib import Path

import pytest

import seft
from tests.data.example import write


def test_every_public_name_is_there_and_no_other() -> None:
    for name in seft.__all__:
        assert getattr(seft, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = seft.nothing


def test_a_dataset_is_opened_by_path_or_text(tmp_path: Path) -> None:
    write(tmp_path / "d")
    assert len(seft.open(tmp_path / "d")) == len(seft.open(str(tmp_path / "d"))) == 60
    with pytest.raises(seft.InputError, match="is no dataset folder"):
        seft.open(tmp_path)


def test_importing_the_package_loads_nothing_heavy() -> None:
    script = "import sys, seft; print(sorted({'torch', 'polars', 'numpy', 'tyro'} & sys.modules.keys()))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_training_and_predicting_need_neither_polars_nor_tyro(tmp_path: Path) -> None:
    write(tmp_path / "d", series=40)
    script = (
        "import sys; sys.modules['polars'] = None; sys.modules['tyro'] = None\n"
        "from dataclasses import replace\n"
        "from pathlib import Path\n"
        "import seft\n"
        "from seft.evaluation.prediction import predict\n"
        "from seft.training.recipe import Recipe\n"
        "from seft.training.run import train\n"
        f"at = Path({str(tmp_path)!r})\n"
        "recipe = Recipe.default('seft')\n"
        "recipe = replace(recipe, training=replace(recipe.training, max_epochs=1))\n"
        "train(recipe, at / 'd', at / 'run')\n"
        "dataset = seft.open(at / 'd')\n"
        "predict(seft.load(at / 'run'), dataset, dataset.split('test')).write(at / 'p.parquet')\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "p.parquet").exists()
