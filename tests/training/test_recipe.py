from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from seft.error import InputError
from seft.training.config import TrainingConfig
from seft.training.recipe import Recipe

# The paper's appendix, "Best hyperparameters of all models on all datasets".
PAPER = {
    "seft-physionet2012": (0.00081, 512, 4, 128, 0.2, 32, 2, 512, 0.0, 0.5, 100.0, 4),
    "seft-mimic3": (0.00245, 512, 3, 64, 0.1, 256, 2, 512, 0.1, 0.1, 1000.0, 8),
    "seft-physionet2019": (0.00011, 64, 4, 32, 0.0, 512, 3, 128, 0.0, 0.1, 10.0, 16),
}


@pytest.mark.parametrize("name", PAPER)
def test_a_preset_has_the_values_that_the_paper_selected(name: str) -> None:
    recipe = Recipe.preset(name)
    c, t = recipe.config, recipe.training
    assert (
        *(t.learning_rate, t.batch_size, c.n_phi_layers, c.phi_width, c.phi_dropout, c.latent_width),
        *(c.n_rho_layers, c.rho_width, c.rho_dropout, c.attn_dropout, c.max_timescale, c.n_positional_dims),
    ) == PAPER[name]
    assert (c.n_psi_layers, c.psi_width, c.psi_latent_width, c.dot_prod_dim, c.n_heads) == (
        2,
        64,
        128,
        128,
        4,
    )
    assert (t.sampling, t.optimizer, t.max_epochs, t.patience) == ("balanced", "adam", 300, 30)
    online = name == "seft-physionet2019"
    assert c.keys == ("arrived" if online else "set")
    assert t.class_weights == ((0.5553, 5.0188) if online else None)


def test_every_preset_that_ships_loads() -> None:
    names = [file.name for file in resources.files("seft.presets").iterdir() if file.name.endswith(".yaml")]
    assert len(names) >= 3
    for name in names:
        Recipe.preset(name.removesuffix(".yaml"))


def test_a_recipe_is_the_same_after_yaml(tmp_path: Path) -> None:
    for recipe in (Recipe.default("seft"), Recipe.preset("seft-physionet2019")):
        (tmp_path / "config.yaml").write_text(recipe.to_yaml({"dataset": "d"}))
        assert Recipe.read(tmp_path / "config.yaml") == recipe
        assert Recipe.preset(str(tmp_path / "config.yaml")) == recipe


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: seft\nconfig: {phi_widht: 3}", "there is no field 'phi_widht'; did you mean phi_width"),
        ("model: seft\ntraining: {batch_size: 0}", "batch_size is 0; it must lie between 1 and"),
        ("model: sefd", "there is no model 'sefd'; did you mean seft"),
        ("config: {}", "is not YAML with model, config and training"),
        ("- 1", "is not YAML with model, config and training"),
        ("{", "is not YAML with model, config and training"),
        ("!!python/object/apply:os.system ['true']", "is not YAML with model, config and training"),
    ],
)
def test_a_bad_recipe_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(InputError, match=message) as raised:
        Recipe.preset(str(tmp_path / "x.yaml"))
    assert "\n" not in str(raised.value)


def test_an_unknown_preset_names_its_neighbours() -> None:
    with pytest.raises(InputError, match="there is no preset 'seft-physionet2013'; did you mean seft-phys"):
        Recipe.preset("seft-physionet2013")


def test_a_value_outside_its_bounds_is_refused() -> None:
    recipe = Recipe.default("seft")
    with pytest.raises(InputError, match="n_heads is 0"):
        replace(recipe, config=replace(recipe.config, n_heads=0)).check()


@pytest.mark.parametrize(("series", "size"), [(1, 8), (80, 8), (200, 12), (1_280, 64), (25_813, 64)])
def test_small_data_is_trained_in_small_batches(series: int, size: int) -> None:
    assert TrainingConfig().series_a_step(series) == size
    assert TrainingConfig(batch_size=512).series_a_step(series) == 512
