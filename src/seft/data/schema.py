"""What a dataset measures: its variables, their units, its statics."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from seft.error import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One modality. An event carries no measurement: its value is 1, and simultaneous ones add up."""

    name: str
    unit: str = ""
    event: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Static:
    """A fact known from the start: a number, or one column a level where levels are given."""

    name: str
    unit: str = ""
    levels: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Its columns in a batch: `Age`, or `Gender=0`, `Gender=1`."""
        return tuple(f"{self.name}={level}" for level in self.levels) or (self.name,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """Variables and statics, in the order of a batch's modality numbers and static columns."""

    variables: tuple[Variable, ...]
    statics: tuple[Static, ...] = ()

    @property
    def modalities(self) -> int:
        return len(self.variables)

    @property
    def static_columns(self) -> tuple[str, ...]:
        return tuple(column for static in self.statics for column in static.columns)

    def check(self) -> None:
        """Raise unless there is a variable and no two variables or static columns share a name."""
        if not self.variables:
            raise InputError("there is no variable with an observation, so there is nothing to learn from")
        for kind, names in (
            ("variables", [variable.name for variable in self.variables]),
            ("statics", list(self.static_columns)),
        ):
            twice = [name for name, count in Counter(names).items() if count > 1]
            if twice:
                raise InputError(f"two {kind} are called {twice[0]!r}; rename one of them")

    def to_json(self) -> dict[str, Any]:
        return {
            "variables": [{"name": v.name, "unit": v.unit, "event": v.event} for v in self.variables],
            "statics": [{"name": s.name, "unit": s.unit, "levels": list(s.levels)} for s in self.statics],
        }

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "Schema":
        return cls(
            variables=tuple(Variable(**variable) for variable in record["variables"]),
            statics=tuple(
                Static(name=static["name"], unit=static["unit"], levels=tuple(static["levels"]))
                for static in record["statics"]
            ),
        )
