"""Tables in files, scanned and not loaded: their columns, their rows' names, how they tell time."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import polars as pl

from seft.error import InputError

T = TypeVar("T")

# What polars raises at a damaged file; a few kinds of damage make its Parquet reader panic.
_UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)

_SECOND = 1_000_000
UNITS = {
    "microseconds": 1,
    "milliseconds": 1_000,
    "seconds": _SECOND,
    "minutes": 60 * _SECOND,
    "hours": 3_600 * _SECOND,
    "days": 86_400 * _SECOND,
    "weeks": 7 * 86_400 * _SECOND,
    "years": 31_557_600 * _SECOND,  # 365.25 days
}
TimeUnit = Literal["microseconds", "milliseconds", "seconds", "minutes", "hours", "days", "weeks", "years"]
_FARTHEST = 2.0**62  # microseconds; beyond that whole numbers of them run out

# What a date in a CSV file may look like; nothing whose day and month could be confused.
_DATE_FORMATS = (
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%dT%H:%M",
    "%Y-%m-%dT%H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M:%S%.f%#z",
    "%Y-%m-%d",
)


def _scan(path: Path) -> pl.LazyFrame:
    """A file's columns with the number of each row; those of a CSV file as text."""
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    if path.suffix == ".parquet":
        return pl.scan_parquet(path, row_index_name="_row")
    return pl.scan_csv(path, row_index_name="_row", infer_schema=False)


def open_file(path: Path, needed: dict[str, str]) -> pl.LazyFrame:
    """Scan a file and see that its columns are there; `needed` maps a column to the option naming it."""
    frame = _reading(path, lambda: _scan(path))
    present = _reading(path, frame.collect_schema).names()
    for column, option in needed.items():
        if column not in present:
            has = ", ".join(name for name in present if name != "_row")
            raise InputError(f"{path}: has no column {column!r}{option}; it has {has}")
    return frame


def _reading(path: Path, read: Callable[[], T]) -> T:
    try:
        return read()
    except _UNREADABLE as error:
        message = str(error).strip().splitlines()
        raise InputError(f"{path}: cannot be read: {message[0] if message else 'it is empty'}") from None


def collect(path: Path, frame: pl.LazyFrame) -> pl.DataFrame:
    return _reading(path, lambda: frame.collect(engine="streaming"))


def row_name(path: Path, row: int) -> str:
    """A row as its reader finds it: in a CSV file the line, counting the header."""
    return f"{path}, row {row + 1}" if path.suffix == ".parquet" else f"{path}, line {row + 2}"


def text_of(column: str) -> pl.Expr:
    """A column as text, null where it is blank."""
    text = pl.col(column).cast(pl.String).str.strip_chars()
    return pl.when(text != "").then(text)


# --- time ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """How the table tells time: numbers of a unit since the start, or dates of some format."""

    numeric: bool
    unit: int = 1  # microseconds, where numeric
    date_format: str | None = None  # where dates are text

    @classmethod
    def of(cls, path: Path, frame: pl.LazyFrame, column: str, unit: TimeUnit) -> "Clock":
        """Find it out from the column's type or, where that is text, from its first rows."""
        kind = frame.collect_schema()[column]
        if kind.is_numeric():
            return cls(numeric=True, unit=UNITS[unit])
        if kind.is_temporal():
            return cls(numeric=False)
        sample = collect(path, frame.select(text_of(column)).drop_nulls().head(1_000))[column]
        if sample.cast(pl.Float64, strict=False).null_count() == 0:
            return cls(numeric=True, unit=UNITS[unit])
        for date_format in _DATE_FORMATS:
            clock = cls(numeric=False, date_format=date_format)
            if sample.to_frame().select(clock.microseconds(column)).to_series().null_count() == 0:
                return clock
        raise InputError(
            f"{path}: the {column} {sample[0]!r} is neither a number nor a date like 2024-01-31 13:45:00"
        )

    def microseconds(self, column: str) -> pl.Expr:
        """The column as whole microseconds, since the start or since 1970; null where it is unreadable."""
        if self.numeric:
            number = pl.col(column).cast(pl.Float64, strict=False) * self.unit
            near = number.is_finite() & (number.abs() < _FARTHEST)
            return pl.when(near).then(number.round().cast(pl.Int64, strict=False))
        if self.date_format is None:
            return pl.col(column).cast(pl.Datetime("us")).dt.epoch("us")
        date = (
            pl.col(column).str.strip_chars().str.to_datetime(self.date_format, time_unit="us", strict=False)
        )
        return date.dt.epoch("us")

    def readable(self, path: Path, frame: pl.LazyFrame, column: str) -> pl.Expr:
        """The same for another column, which must tell time the same way."""
        kind = frame.collect_schema()[column]
        if kind.is_temporal() if self.numeric else kind.is_numeric():
            expected = "numbers" if self.numeric else "dates"
            raise InputError(f"{path}: the column {column!r} should hold {expected}, as the times do")
        if kind == pl.String or self.numeric:
            return self.microseconds(column)
        return Clock(numeric=False).microseconds(column)


def refuse_unreadable_time(
    path: Path, frame: pl.LazyFrame, column: str, time: pl.Expr, may_be_blank: bool
) -> None:
    """Raise where a time cannot be read; say in which row."""
    wrong = time.is_null() & text_of(column).is_not_null() if may_be_blank else time.is_null()
    rows = collect(path, frame.filter(wrong).select("_row", pl.col(column).cast(pl.String)).head(1))
    if len(rows):
        row, text = rows.row(0)
        raise InputError(f"{row_name(path, row)}: the {column} {text!r} cannot be read as a time")
