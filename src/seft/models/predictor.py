"""What is saved, loaded, served and exported: a model with all that its answers need to be understood."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as serialise
from torch import Tensor

import seft
from seft.data import ragged
from seft.data.batch import Batch
from seft.data.schema import Schema
from seft.data.task import Task
from seft.error import InputError
from seft.models.base import Model
from seft.models.hyperparameter import check
from seft.models.registry import model_class

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """slope · logit + bias, of each output; slopes are positive, so no answer overtakes another."""

    slope: tuple[float, ...]
    bias: tuple[float, ...]

    @classmethod
    def none(cls, task: Task) -> "Calibration":
        return cls(slope=(1.0,) * task.outputs, bias=(0.0,) * task.outputs)

    def __call__(self, logits: Tensor) -> Tensor:
        """(Q, C) -> (Q, C)"""
        return logits * logits.new_tensor(self.slope) + logits.new_tensor(self.bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor:
    """A model by name and value, its calibration, and the threshold on the raw logit that alarms go by."""

    name: str
    model: Model
    calibration: Calibration
    threshold: float = 0.0

    @property
    def schema(self) -> Schema:
        return self.model.schema

    @property
    def task(self) -> Task:
        return self.model.task

    def probability(self, logits: Tensor) -> Tensor:
        """(Q, C) raw logits to what people are shown: (Q, 1), or one a class or label."""
        calibrated = self.calibration(logits)
        return calibrated.softmax(1) if self.task.kind == "multiclass" else calibrated.sigmoid()

    def save(self, folder: Path) -> None:
        """Two files; the JSON is written last, and no folder without it is loaded."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: value.detach().cpu().contiguous() for name, value in self.model.state_dict().items()}
        (folder / "model.safetensors").write_bytes(serialise(weights))
        record = {
            "format": FORMAT,
            "seft": seft.__version__,
            "model": self.name,
            "config": asdict(self.model.config),
            "schema": self.schema.to_json(),
            "task": self.task.to_json(),
            "calibration": asdict(self.calibration),
            "threshold": self.threshold,
        }
        (folder / "predictor.json").write_text(
            json.dumps(record, indent=1, ensure_ascii=False), encoding="utf-8"
        )

    @classmethod
    def load(cls, folder: Path) -> "Predictor":
        record = _read(folder / "predictor.json")
        try:
            kind = model_class(record["model"])
            config = kind.Config(**_tuples(record["config"]))
            check(config)
            model = kind(config, Schema.from_json(record["schema"]), Task.from_json(record["task"]))
            calibration = Calibration(**_tuples(record["calibration"]))
        except (KeyError, TypeError) as error:
            raise InputError(f"{folder / 'predictor.json'}: is damaged ({error})") from None
        weights = folder / "model.safetensors"
        try:
            model.load_state_dict(load_file(weights))
        except (SafetensorError, OSError) as error:
            raise InputError(f"{weights}: cannot be read as weights ({error})") from None
        except RuntimeError as error:
            raise InputError(f"{weights}: is of another model ({str(error).splitlines()[0]})") from None
        return cls(
            name=record["model"], model=model.eval(), calibration=calibration, threshold=record["threshold"]
        )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"{path.parent} is no saved predictor: it has no {path.name}")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        version = record["format"]
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path}: is damaged") from None
    if version != FORMAT:
        raise InputError(f"{path}: has format {version}; this seft {seft.__version__} reads {FORMAT}")
    return dict(record)


def _tuples(record: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in record.items()}


# --- other data ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """How another dataset's variables and statics are the predictor's, matched by name."""

    modality: Tensor  # (M_data,) int32, the predictor's number, -1 where it knows none
    static: Tensor  # (S_predictor,) int64, the data's column, -1 where it has none
    ignored: tuple[str, ...]  # what the data has and the predictor does not know
    missing: tuple[str, ...]  # what the predictor knows and the data does not have

    @classmethod
    def of(cls, known: Schema, given: Schema) -> "Match":
        """Another unit is refused."""
        for kind in ("variables", "statics"):
            units = {item.name: item.unit for item in getattr(known, kind)}
            for item in getattr(given, kind):
                if item.unit != units.get(item.name, item.unit):
                    raise InputError(
                        f"{item.name} is in {item.unit or 'no unit'} here and was in "
                        f"{units[item.name] or 'no unit'} in training; convert it"
                    )
        names = [variable.name for variable in known.variables]
        theirs = [variable.name for variable in given.variables]
        numbers = [names.index(name) if name in names else -1 for name in theirs]
        columns = [
            given.static_columns.index(name) if name in given.static_columns else -1
            for name in known.static_columns
        ]
        statics = [static.name for static in known.statics]
        their_statics = [static.name for static in given.statics]
        return cls(
            modality=torch.tensor(numbers, dtype=torch.int32),
            static=torch.tensor(columns, dtype=torch.int64),
            ignored=tuple(x for x in theirs if x not in names)
            + tuple(x for x in their_statics if x not in statics),
            missing=tuple(x for x in names if x not in theirs)
            + tuple(x for x in statics if x not in their_statics),
        )

    def __call__(self, batch: Batch) -> Batch:
        """The batch in the predictor's numbers; observations that it does not know are left out."""
        modality = self.modality.to(batch.modality.device)[batch.modality.long()]
        absent = torch.full((len(batch), 1), torch.nan, device=batch.static.device)
        static = torch.cat([batch.static, absent], dim=1)[:, self.static.to(batch.static.device)]
        matched = replace(batch, modality=modality, static=static)
        return matched if bool((modality >= 0).all()) else ragged.keep(matched, modality >= 0)
