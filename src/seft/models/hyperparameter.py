"""A field of a config with what is legal and where a search looks.

    heads: int = hyper(4, legal=(1, 64), search=(1, 2, 4, 8))

Outside `legal` is an error. `search` is what the paper drew from: a tuple of values, or a `LogUniform`
range; a field without one is never searched. Selected values may lie outside what was searched.
"""

from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar

from seft.error import InputError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogUniform:
    """A range whose logarithm is drawn from evenly."""

    low: float
    high: float


Search = tuple[Any, ...] | LogUniform


def hyper(default: T, *, legal: tuple[float, float] | None = None, search: Search | None = None) -> T:
    """A config field; typed as its default, as dataclasses.field is."""
    declared: T = field(default=default, metadata={"legal": legal, "search": search})
    return declared


def check(config: Any) -> None:
    """Raise where a value of a config lies outside its legal bounds."""
    for declared in fields(config):
        value, legal = getattr(config, declared.name), declared.metadata.get("legal")
        if legal is None or value is None:
            continue
        low, high = legal
        if not low <= value <= high:
            raise InputError(f"{declared.name} is {value}; it must lie between {low:g} and {high:g}")


def searched(config: type) -> Iterator[tuple[Field[Any], Search]]:
    """The fields of a config that a search draws, with where from."""
    for declared in fields(config):
        search = declared.metadata.get("search")
        if search is not None:
            yield declared, search
