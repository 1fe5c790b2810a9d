from dataclasses import dataclass, replace

import pytest

from seft.error import InputError
from seft.models.hyperparameter import LogUniform, check, hyper, searched


@dataclass(frozen=True)
class Config:
    width: int = hyper(8, legal=(1, 64), search=(4, 8, 16))
    rate: float | None = hyper(None, legal=(0.0, 1.0), search=LogUniform(1e-4, 1e-2))
    flag: bool = hyper(True)


@pytest.mark.parametrize(
    "changed", [{"width": 1}, {"width": 64}, {"rate": 0.5}, {"rate": None}, {"flag": False}]
)
def test_what_lies_within_its_bounds_passes(changed: dict[str, object]) -> None:
    check(replace(Config(), **changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"width": 0}, "width is 0; it must lie between 1 and 64"),
        ({"width": 65}, "width is 65; it must lie between 1 and 64"),
        ({"rate": -0.1}, "rate is -0.1; it must lie between 0 and 1"),
        ({"rate": float("nan")}, "rate is nan; it must lie between 0 and 1"),
    ],
)
def test_what_lies_outside_is_named(changed: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check(replace(Config(), **changed))  # type: ignore[arg-type]


def test_only_fields_with_a_search_range_are_searched() -> None:
    assert [(field.name, search) for field, search in searched(Config)] == [
        ("width", (4, 8, 16)),
        ("rate", LogUniform(1e-4, 1e-2)),
    ]
