from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from seft.data.dataset import Dataset, open_dataset
from seft.data.sources import synthetic
from seft.error import InputError


def prepared(at: Path, *, series: int, hourly: bool = False, seed: int = 0) -> Dataset:
    synthetic.prepare(out=at / "dataset", series=series, hourly=hourly, seed=seed, overwrite=True)
    return open_dataset(at / "dataset")


@pytest.mark.parametrize("hourly", [False, True])
def test_the_risk_is_a_function_of_what_each_query_sees(tmp_path: Path, hourly: bool) -> None:
    """Computed again from batches, query by query, in plain loops."""
    dataset = prepared(tmp_path, series=30, hourly=hourly, seed=3)
    names = [variable.name for variable in dataset.schema.variables]
    mean = {row[0]: row[2] for row in synthetic._MEASURED}
    spread = {row[0]: row[3] for row in synthetic._MEASURED}
    risk = dataset.column("queries", 0, "risk")
    batch = dataset.batch(np.arange(30))
    for b in range(30):
        for q in range(int(batch.query_offsets[b]), int(batch.query_offsets[b + 1])):
            begin = int(batch.offsets[b])
            seen = slice(begin, begin + int(batch.query_visible[q]))
            z: dict[str, list[float]] = {name: [] for name in names}
            late = 0.0
            for time, modality, value in zip(
                batch.time[seen].tolist(),
                batch.modality[seen].tolist(),
                batch.value[seen].tolist(),
                strict=True,
            ):
                name = names[modality]
                standard = (value - mean.get(name, 0.0)) / spread.get(name, 1.0)
                z[name].append(standard)
                late += standard * (time / 48 - 0.5) if name == "HR" else 0.0
            lactate = sum(z["Lactate"]) / (len(z["Lactate"]) + 1)
            pressure = sum(z["MAP"]) / (len(z["MAP"]) + 1)
            share = len(z["Lactate"]) / (sum(map(len, z.values())) + 1)
            age, _, emergency = batch.static[b].tolist()
            logit = (
                -3.6 + 0.9 * lactate - 0.8 * pressure + 3 * late / (len(z["HR"]) + 1) + 20 * (share - 0.02)
            )
            logit += 1.2 * np.log1p(np.exp(lactate - pressure)) + 0.3 * min(len(z["Vasopressor"]), 3)
            logit += 0.4 * (age - 63) / 15 + 0.3 * emergency
            assert risk[q] == pytest.approx(1 / (1 + np.exp(-logit)), abs=1e-4)


def test_the_best_auroc_is_that_of_the_risk(tmp_path: Path) -> None:
    dataset = prepared(tmp_path, series=400)
    risk, label = (dataset.column("queries", 0, name) for name in ("risk", "label"))
    for name, split in dataset.splits.items():
        rows = dataset.split(name)
        assert split["best_auroc"] == pytest.approx(roc_auc_score(label[rows], risk[rows]))
        assert 0.8 < split["best_auroc"] < 0.97, "neither hopeless nor trivial"


def test_labels_come_true_as_often_as_their_risk_says(tmp_path: Path) -> None:
    dataset = prepared(tmp_path, series=2_000, hourly=True)
    risk, label = (dataset.column("queries", 0, name) for name in ("risk", "label"))
    for low in np.arange(0, 1, 0.2):
        inside = (risk >= low) & (risk < low + 0.2)
        assert label[inside].mean() == pytest.approx(risk[inside].mean(), abs=0.02)


def test_severity_shows_in_how_often_labs_are_drawn(tmp_path: Path) -> None:
    """The number of lactates alone tells the classes apart: sampling is informative."""
    dataset = prepared(tmp_path, series=2_000)
    lactate = [variable.name for variable in dataset.schema.variables].index("Lactate")
    drawn = dataset.column("observations", 0, "modality") == lactate
    count = np.bincount(dataset.column("observations", 0, "series")[drawn], minlength=len(dataset))
    assert roc_auc_score(dataset.column("queries", 0, "label"), count) > 0.65


def test_labs_are_known_later_than_they_are_drawn(tmp_path: Path) -> None:
    dataset = prepared(tmp_path, series=50)
    delay = dataset.column("observations", 0, "arrival") - dataset.column("observations", 0, "time")
    lab = np.isin(dataset.column("observations", 0, "modality"), [6, 7, 8, 9])
    assert (delay[lab] > 0).mean() > 0.99
    assert (delay[~lab] == 0).all()


def test_the_seed_alone_decides(tmp_path: Path) -> None:
    def checksums(seed: int) -> list[str]:
        folder = prepared(tmp_path / str(seed), series=20, seed=seed)
        return [entry["sha256"] for shard in folder._files for entry in shard.values()]

    assert checksums(1) == checksums(1)
    assert checksums(1) != checksums(2)


def test_no_series_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--series 0 --seed 0: at least one series"):
        prepared(tmp_path, series=0)
