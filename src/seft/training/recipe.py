"""A model with its settings and how it is trained: what a preset is, and what a run can be repeated from."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from seft.error import InputError
from seft.models.hyperparameter import check
from seft.models.registry import model_class
from seft.training.config import TrainingConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    model: str
    config: Any  # the model's own config dataclass
    training: TrainingConfig

    @classmethod
    def default(cls, model: str) -> "Recipe":
        return cls(model=model, config=model_class(model).Config(), training=TrainingConfig())

    @classmethod
    def preset(cls, name: str) -> "Recipe":
        """One that ships, or a YAML file that a search wrote."""
        if name.endswith((".yaml", ".yml")):
            return cls.read(Path(name))
        shipped = {
            file.name.removesuffix(".yaml"): file
            for file in resources.files("seft.presets").iterdir()
            if file.name.endswith(".yaml")
        }
        if name not in shipped:
            near = get_close_matches(name, shipped, n=3) or sorted(shipped)
            raise InputError(f"there is no preset {name!r}; did you mean {' or '.join(near)}?")
        return cls._parse(shipped[name].read_text(encoding="utf-8"), f"the preset {name}")

    @classmethod
    def read(cls, path: Path) -> "Recipe":
        if not path.is_file():
            raise InputError(f"{path}: there is no such file")
        return cls._parse(path.read_text(encoding="utf-8"), str(path))

    @classmethod
    def _parse(cls, text: str, where: str) -> "Recipe":
        try:
            record = yaml.safe_load(text)
            model, config, training = record["model"], record.get("config", {}), record.get("training", {})
        except (yaml.YAMLError, TypeError, KeyError, AttributeError):
            raise InputError(f"{where}: is not YAML with model, config and training") from None
        recipe = cls(
            model=model,
            config=_built(model_class(model).Config, config, where),
            training=_built(TrainingConfig, training, where),
        )
        recipe.check()
        return recipe

    def check(self) -> None:
        """Raise where a value lies outside its legal bounds."""
        check(self.config)
        check(self.training)

    def to_yaml(self, beside: Mapping[str, Any]) -> str:
        """Complete: every field, also those at their defaults; `beside` stands first, for people."""
        record = {
            **beside,
            "model": self.model,
            "config": _plain(asdict(self.config)),
            "training": _plain(asdict(self.training)),
        }
        return yaml.safe_dump(record, sort_keys=False, allow_unicode=True)


def _built(kind: type, values: dict[str, Any], where: str) -> Any:
    names = [declared.name for declared in fields(kind)]
    for name in values:
        if name not in names:
            near = get_close_matches(name, names, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise InputError(f"{where}: there is no field {name!r}{hint}")
    return kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
