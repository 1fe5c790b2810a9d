"""Thousands of small text files read into one buffer, so that they are parsed in one go."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from seft.error import InputError

LIMIT = 64 * 2**20  # bytes of text a pile; with its parsed columns it makes one shard


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
    """The files in order, as few piles of about `limit` bytes; each must begin with the line `header`."""
    sizes = [path.stat().st_size for path in paths]
    begin, total = 0, 0
    for number, size in enumerate(sizes):
        if total and total + size > limit:
            yield _pile(paths[begin:number], sizes[begin:number], header)
            begin, total = number, 0
        total += size
    if begin < len(paths):
        yield _pile(paths[begin:], sizes[begin:], header)


def _pile(paths: Sequence[Path], sizes: Sequence[int], header: bytes) -> Pile:
    """One system call reads a file's header aside and its text to where it belongs."""
    buffer = bytearray(sum(sizes) + len(paths))
    view = memoryview(buffer)
    head = bytearray(len(header))
    ends: list[int] = []
    end = 0
    for path, size in zip(paths, sizes, strict=True):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            read = os.readv(descriptor, [head, view[end : end + max(size - len(header), 0)]])
        finally:
            os.close(descriptor)
        if head != header or read != size:
            raise InputError(f"{path}: does not begin with the line {header.decode().strip()!r}")
        end += size - len(header)
        if size > len(header) and buffer[end - 1] != 0x0A:
            buffer[end] = 0x0A  # a last line without its line feed
            end += 1
        ends.append(end)
    return Pile(paths=paths, text=bytes(view[:end]), ends=ends)


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
