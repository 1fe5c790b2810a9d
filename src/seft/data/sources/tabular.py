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
FARTHEST = 2.0**62  # microseconds; beyond that whole numbers of them run out

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


ROW = "(row)"  # the number of a row in its file, a name that no file will have

# What stands for nothing in a column of text; `none` may be somebody's category and is left alone.
_BLANK = ("", "na", "n/a", "nan", "null", "<na>")


def _scan(path: Path) -> pl.LazyFrame:
    """A file's columns with the number of each row; those of a CSV file as text."""
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    if path.suffix == ".parquet":
        return pl.scan_parquet(path, row_index_name=ROW, glob=False)
    return pl.scan_csv(path, row_index_name=ROW, infer_schema=False, glob=False)


def open_file(path: Path, needed: dict[str, str]) -> pl.LazyFrame:
    """Scan a file and see that its columns are there; `needed` maps a column to the option naming it."""
    frame = _reading(path, lambda: _scan(path))
    present = [name for name in _reading(path, frame.collect_schema).names() if name != ROW]
    for name in present:
        if not name.strip():
            raise InputError(f"{path}: has a column without a name (a saved row number?); remove it")
        original, _, number = name.rpartition("_duplicated_")
        if number.isdigit() and original in present:
            raise InputError(f"{path}: has two columns called {original!r}; rename one of them")
    for column, option in needed.items():
        if column not in present:
            raise InputError(f"{path}: has no column {column!r}{option}; {_instead(column, present)}")
    return frame


def _instead(column: str, present: list[str]) -> str:
    """What may have been meant by a column that is not there."""
    for separator, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if len(present) == 1 and separator in present[0]:
            return f"its columns are separated by {name}: write it with commas"
    alike = [name for name in present if name.strip().casefold() == column.casefold()]
    return f"is it {alike[0]!r}?" if alike else f"it has {', '.join(present)}"


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
    """A column as text, null where it says nothing."""
    text = pl.col(column).cast(pl.String).str.strip_chars()
    return pl.when(~text.str.to_lowercase().is_in(_BLANK)).then(text)


def name_of(frame: pl.LazyFrame, column: str) -> pl.Expr:
    """A column of names, null where blank: as they stand in text (`Na` is sodium), 1.0 as 1."""
    if frame.collect_schema()[column].is_float():
        number = pl.col(column).fill_nan(None)
        whole = number.cast(pl.Int64, strict=False)
        return pl.when(whole == number).then(whole.cast(pl.String)).otherwise(number.cast(pl.String))
    text = pl.col(column).cast(pl.String).str.strip_chars()
    return pl.when(text != "").then(text)


# --- time ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """How a column tells time: numbers of a unit since the start, or dates of some format."""

    column: str
    numeric: bool
    zoned: bool = False  # dates that know their time zone; they count in UTC
    unit: int = 1  # microseconds, where numeric
    date_format: str | None = None  # where dates are text

    @classmethod
    def of(cls, path: Path, frame: pl.LazyFrame, column: str, unit: TimeUnit) -> "Clock | None":
        """Found out from the column's type or, where that is text, from its first rows; None if blank."""
        kind = frame.collect_schema()[column]
        if kind.is_numeric():
            return cls(column=column, numeric=True, unit=UNITS[unit])
        if isinstance(kind, pl.Datetime | pl.Date):
            zoned = isinstance(kind, pl.Datetime) and kind.time_zone is not None
            return cls(column=column, numeric=False, zoned=zoned)
        if kind not in (pl.String, pl.Categorical, pl.Null):
            raise InputError(f"{path}: the {column} is {kind}; numbers or dates are expected")
        sample = collect(path, frame.select(text_of(column)).drop_nulls().head(1_000))
        if not len(sample):
            return None
        candidates = [
            cls(column=column, numeric=True, unit=UNITS[unit]),
            *(
                cls(column=column, numeric=False, zoned="%#z" in form, date_format=form)
                for form in _DATE_FORMATS
            ),
        ]
        # The one that most rows agree with; a row that does not is then named by itself.
        read = [
            len(sample) - sample.select(clock.microseconds()).to_series().null_count() for clock in candidates
        ]
        if max(read) == 0:
            raise InputError(
                f"{path}: the {column} {sample.item(0, 0)!r} is neither a number nor a date like "
                "2024-01-31 13:45:00"
            )
        return candidates[read.index(max(read))]

    def microseconds(self) -> pl.Expr:
        """The column as whole microseconds, since the start or since 1970; null where it is unreadable."""
        if self.numeric:
            number = pl.col(self.column).cast(pl.Float64, strict=False) * self.unit
            near = number.is_finite() & (number.abs() < FARTHEST)
            return pl.when(near).then(number.round().cast(pl.Int64, strict=False))
        if self.date_format is None:
            return pl.col(self.column).cast(pl.Datetime("us")).dt.epoch("us")
        text = pl.col(self.column).cast(pl.String).str.strip_chars()
        return text.str.to_datetime(self.date_format, time_unit="us", strict=False).dt.epoch("us")

    def check_like(self, other: "Clock", path: Path) -> None:
        """Raise where two columns cannot be compared: numbers and dates, or dates with and without a zone."""
        for mine, theirs, kinds in (
            (self.numeric, other.numeric, ("numbers", "dates")),
            (self.zoned, other.zoned, ("dates with a time zone", "dates without one")),
        ):
            if mine != theirs:
                raise InputError(
                    f"{path}: the {self.column} is in {kinds[not mine]} and the observations' "
                    f"{other.column} in {kinds[not theirs]}; write both alike"
                )


def microseconds_of(
    path: Path,
    frame: pl.LazyFrame,
    clock: Clock | None,
    like: Clock | None = None,
    may_be_blank: bool = False,
) -> pl.Expr:
    """A column's times, checked: every row can be read, and it tells time as `like` does."""
    if clock is None:
        return pl.lit(None, pl.Int64)
    if like is not None:
        clock.check_like(like, path)
    time = clock.microseconds()
    said = text_of(clock.column).is_not_null()
    wrong = time.is_null() & said if may_be_blank else time.is_null()
    rows = collect(path, frame.filter(wrong).select(ROW, pl.col(clock.column).cast(pl.String)).head(1))
    if len(rows):
        row, text = rows.row(0)
        what = "is blank" if text is None else f"{text!r} cannot be read as a time"
        raise InputError(f"{row_name(path, row)}: the {clock.column} {what}")
    return time
