from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score

import seft
from seft.models.seft import SeftConfig

SMALL = SeftConfig(n_phi_layers=1, phi_width=16, latent_width=16, n_rho_layers=1, rho_width=16)


def tables(count: int, classes: int = 2, seed: int = 0) -> tuple[pl.DataFrame, pl.DataFrame, NDArray[Any]]:
    """Series whose class shows in the mean of one of their variables; the other is noise."""
    generator = np.random.default_rng(seed)
    label = generator.integers(0, classes, count)
    rows = [
        {"id": f"p{i}", "time": float(t), "variable": name, "value": generator.normal() + shift}
        for i in range(count)
        for name, shift in (("told", 2.0 * label[i]), ("noise", 0.0))
        for t in generator.uniform(0, 10, generator.integers(3, 9))
    ]
    statics = pl.DataFrame({"id": [f"p{i}" for i in range(count)], "age": generator.normal(60, 9, count)})
    return pl.DataFrame(rows), statics, np.array(["low", "mid", "high"])[label]


def classifier(**options: Any) -> seft.Classifier:
    return seft.Classifier(config=SMALL, max_epochs=20, **options)


def test_series_are_counted_and_taken_by_position() -> None:
    observations, statics, _ = tables(9)
    series = seft.series(observations, statics)
    assert len(series) == 9
    assert series.id[3] == "p3"
    assert series[np.array([5, 2])].id.tolist() == ["p5", "p2"]
    assert series[series.id == "p4"].id.tolist() == ["p4"]
    assert len(seft.series(observations)) == 9
    assert len(seft.series(observations.to_dict(as_series=False))) == 9


def test_a_class_that_shows_is_learnt_and_other_data_is_predicted() -> None:
    observations, statics, label = tables(150)
    model = classifier().fit(seft.series(observations, statics), label)
    assert model.classes_.tolist() == ["low", "mid"]
    fresh, facts, truth = tables(80, seed=1)
    series = seft.series(fresh, facts)
    risk = model.predict_proba(series)
    assert risk.shape == (80, 2)
    np.testing.assert_allclose(risk.sum(1), 1, rtol=1e-5)
    assert roc_auc_score(truth == "mid", risk[:, 1]) > 0.9
    assert model.score(series, truth) == pytest.approx((model.predict(series) == truth).mean())
    turned = np.arange(80)[::-1]
    np.testing.assert_allclose(model.predict_proba(series[turned]), risk[turned], rtol=1e-4, atol=1e-5)
    twice = model.predict_proba(series[np.array([7, 7])])
    np.testing.assert_allclose(twice, risk[[7, 7]], rtol=1e-4, atol=1e-5)


def test_three_classes_have_three_probabilities() -> None:
    observations, statics, label = tables(150, classes=3)
    series = seft.series(observations, statics)
    model = classifier().fit(series, label)
    assert model.predict_proba(series).shape == (150, 3)
    assert model.score(series, label) > 0.6


def test_scikit_learn_cross_validates_and_searches() -> None:
    observations, statics, label = tables(90)
    series = seft.series(observations, statics)
    model = seft.Classifier(config=SMALL, max_epochs=8)
    scores = cross_val_score(model, series, label, cv=3, error_score="raise")
    assert scores.shape == (3,)
    assert scores.mean() > 0.6
    search = GridSearchCV(model, {"max_epochs": [1, 8]}, cv=2, error_score="raise").fit(series, label)
    assert search.best_params_["max_epochs"] in (1, 8)
    assert model.get_params()["max_epochs"] == 8
    assert type(model)(**model.get_params()).get_params() == model.get_params()


def test_a_seed_decides_everything(capsys: pytest.CaptureFixture[str]) -> None:
    observations, statics, label = tables(60)
    series = seft.series(observations, statics)
    one, two = (classifier(seed=3).fit(series, label).predict_proba(series) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert capsys.readouterr() == ("", ""), "a library says nothing"


def test_bad_input_is_an_input_error() -> None:
    observations, statics, label = tables(20)
    series = seft.series(observations, statics)
    with pytest.raises(seft.InputError, match="there are 20 series and labels of shape"):
        classifier().fit(series, label[:5])
    with pytest.raises(seft.InputError, match="all labels are 1; there is nothing to tell apart"):
        classifier().fit(series, np.ones(20, int))
    with pytest.raises(seft.InputError, match="the observations have no column 'value'"):
        seft.series(observations.drop("value"))
    with pytest.raises(seft.InputError, match="have a series 'p9' that the statics do not know"):
        seft.series(observations, statics.filter(pl.col("id") != "p9"))
    with pytest.raises(NotFittedError):
        classifier().predict(series)
