"""Thousands of small text files read into one buffer, so that they are parsed in one go."""

import io
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from seft.error import InputError

T = TypeVar("T")

LIMIT = 16 * 2**20  # bytes of text a pile: what a processor's cache holds, and one shard
LARGEST = 4 * 2**20  # bytes of one file; the real ones have a hundred thousand at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Pile:
    """The text of some files behind one another, their header lines taken off."""

    paths: Sequence[Path]
    text: bytes
    ends: Sequence[int]  # where in the text each file ends

    def line_counts(self) -> list[int]:
        """How many lines each file has below its header."""
        begins = (0, *self.ends[:-1])
        return [self.text.count(b"\n", begin, end) for begin, end in zip(begins, self.ends, strict=True)]

    def lines(self) -> Iterator[tuple[Path, int, str]]:
        """Every line with its file and its number there: slow, to say where something is wrong."""
        for path in self.paths:
            text = path.read_text(encoding="utf-8", errors="replace")
            for number, line in enumerate(text.splitlines()[1:], start=2):
                yield path, number, line


def piles(paths: Sequence[Path], header: bytes, limit: int = LIMIT) -> Iterator[Pile]:
    """The files in order, in piles of about `limit` bytes; each must begin with the line `header`."""
    while paths:
        pile = _pile(paths, header, limit)
        paths = paths[len(pile.paths) :]
        yield pile


def in_parallel(work: Callable[[Pile], T], items: Iterable[Pile]) -> Iterator[T]:
    """`work` done on two piles at a time while the next one is read; results in the order of the piles."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        waiting: deque[Future[T]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > 2:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _pile(paths: Sequence[Path], header: bytes, limit: int) -> Pile:
    """As many of the files as make `limit` bytes.

    One system call reads a file's header aside and its text to where it belongs, and the buffer hands its
    bytes over without a copy: half of the time would go into sizes, headers and copies otherwise.
    """
    buffer = io.BytesIO(bytes(limit + LARGEST))
    head = bytearray(len(header))
    ends: list[int] = []
    end = 0
    with buffer.getbuffer() as view:
        for path in paths:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                read = os.readv(descriptor, [head, view[end : end + LARGEST]])
            finally:
                os.close(descriptor)
            if head != header or read < len(header):
                raise InputError(
                    f"{path}: begins with {bytes(head[:read])!r} and must begin with the line "
                    f"{header.decode().strip()!r}"
                )
            if read == len(header) + LARGEST:
                raise InputError(f"{path}: is larger than {LARGEST:,} bytes; it cannot be one of these files")
            end += read - len(header)
            if read > len(header) and view[end - 1] != 0x0A:
                view[end] = 0x0A  # a last line without its line feed
                end += 1
            ends.append(end)
            if end >= limit:
                break
    buffer.truncate(end)
    return Pile(paths=paths[: len(ends)], text=buffer.getvalue(), ends=ends)


def stay_files(folder: Path, suffix: str) -> list[Path]:
    """The files of a folder that end in `suffix`, by name."""
    # os.scandir: listing 20,000 entries through pathlib takes longer than reading them.
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.name.endswith(suffix))
    return [folder / name for name in names]


def find_folder(raw: Path, name: str) -> Path | None:
    """The folder `name` in `raw` or in a folder of it, as archives are packed in one way or the other."""
    for candidate in (raw / name, *(child / name for child in sorted(raw.iterdir()) if child.is_dir())):
        if candidate.is_dir():
            return candidate
    return None
