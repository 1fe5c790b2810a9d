"""Raw recordings as they come: a folder, or an archive that is unpacked for as long as it is read.

An archive of recordings holds files and folders. Whatever else stands in one (a link, a device, a path
that leads elsewhere) is refused with the whole archive, so that no path can leave the folder it is
unpacked into. tarfile's own filters are not used: they let links pass, which is where their holes were.
"""

import bz2
import errno
import gzip
import io
import lzma
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Self

from seft.error import InputError

# An archive may be this large unpacked, and beyond that only so many times its own size.
UNPACKED_BYTES = 10 * 2**30
UNPACKED_RATIO = 100
_HEADER_BYTES = 2**20

_TAR_STREAMS: dict[str, Callable[[Path], io.RawIOBase | io.BufferedIOBase]] = {
    ".tar": io.FileIO,
    ".tar.gz": gzip.GzipFile,
    ".tgz": gzip.GzipFile,
    ".tar.xz": lzma.LZMAFile,
    ".tar.bz2": bz2.BZ2File,
}
SUFFIXES = (*_TAR_STREAMS, ".zip")

_DAMAGE = (
    EOFError,
    tarfile.TarError,
    zipfile.BadZipFile,
    lzma.LZMAError,
    zlib.error,
    ValueError,
)


@contextmanager
def unpacked(raw: Path) -> Iterator[Path]:
    """The folder of raw files: `raw` itself, or what it unpacks to, which is removed afterwards."""
    if raw.is_dir():
        yield raw
        return
    if not raw.exists():
        raise InputError(f"{raw}: there is no such file or folder; give the raw files with --raw")
    with TemporaryDirectory(prefix="seft-") as folder:
        target = Path(folder) / "raw"
        extract(raw, target)
        yield target


def extract(archive: Path, target: Path) -> None:
    """Unpack into `target`: all of it, or nothing. What stands in `target` already is left alone."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{target.name}.unpacking-", dir=target.parent) as folder:
        with _members_of(archive) as members:
            _write(archive, members, Path(folder))
        entries = sorted(Path(folder).iterdir())
        for entry in entries:
            if (target / entry.name).exists():
                raise InputError(
                    f"{archive}: holds {entry.name!r}, which {target} has already; remove one of them"
                )
        target.mkdir(exist_ok=True)
        for entry in entries:
            entry.rename(target / entry.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    name: str
    kind: int  # as in a file's mode: S_IFREG or S_IFDIR; all others are refused alike
    size: int  # bytes, as declared; no more than these are read
    open: Callable[[], IO[bytes] | None]


def _write(archive: Path, members: Iterator[_Member], folder: Path) -> None:
    limit = max(UNPACKED_BYTES, UNPACKED_RATIO * archive.stat().st_size)
    total = 0
    for member in members:
        _refuse_unsafe(archive, member)
        total += member.size
        if total > limit:
            raise InputError(
                f"{archive}: unpacks to over {limit / 2**30:.0f} GiB, more than {UNPACKED_RATIO} times its "
                "size; if that is right, unpack it yourself and give the folder"
            )
        path = folder / member.name
        if member.kind == stat.S_IFDIR:
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        source = member.open()
        assert source is not None  # tarfile opens every regular member
        with source, path.open("wb") as sink:
            shutil.copyfileobj(source, sink)


def _refuse_unsafe(archive: Path, member: _Member) -> None:
    # A backslash separates too: an archive means the same wherever it is unpacked.
    parts = re.split(r"[/\\]", member.name)
    if ".." in parts or (member.name and not parts[0]) or "\0" in member.name:
        fault = "would be written outside the target"
    elif member.kind not in (stat.S_IFREG, stat.S_IFDIR):
        fault = "is a link or a device, and only files and folders are unpacked"
    elif member.size < 0:
        fault = "has a negative size"
    else:
        return
    raise InputError(
        f"{archive}: its member {member.name!r} {fault}; nothing was unpacked: use an archive you trust, "
        "or unpack it yourself and give the folder"
    )


@contextmanager
def _members_of(archive: Path) -> Iterator[Iterator[_Member]]:
    """The members of an archive, for reading in this order; damage is told in one line."""
    name = archive.name.lower()
    stream = next((stream for suffix, stream in _TAR_STREAMS.items() if name.endswith(suffix)), None)
    if stream is None and not name.endswith(".zip"):
        raise InputError(
            f"{archive}: is neither a folder nor an archive ({', '.join(SUFFIXES)}); give one of them"
        )
    try:
        with closing(_zip_members(archive) if stream is None else _tar_members(stream, archive)) as members:
            yield members
    except _DAMAGE as error:
        raise _damaged(archive, error) from None
    except RuntimeError as error:  # zipfile's word for a password, or for a compression it does not know
        raise InputError(
            f"{archive}: cannot be unpacked ({error}); unpack it yourself and give the folder"
        ) from None
    except OSError as error:
        # Without a number it is gzip's or bz2's word for damage; EINVAL is a zip's offset that cannot be.
        if error.errno not in (None, errno.EINVAL):
            raise  # the system's: no space left, no permission
        raise _damaged(archive, error) from None


def _damaged(archive: Path, error: Exception) -> InputError:
    reason = str(error) or type(error).__name__
    return InputError(f"{archive}: is truncated or damaged ({reason}); fetch it again")


def _zip_members(archive: Path) -> Generator[_Member, None, None]:
    with zipfile.ZipFile(archive) as file:
        for info in file.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16) or stat.S_IFREG
            yield _Member(
                name=info.filename,
                kind=stat.S_IFDIR if info.is_dir() else kind,
                size=info.file_size,
                open=partial(file.open, info),
            )


def _tar_members(
    stream: Callable[[Path], io.RawIOBase | io.BufferedIOBase], archive: Path
) -> Generator[_Member, None, None]:
    with stream(archive) as content:
        with tarfile.open(fileobj=content, mode="r:", tarinfo=_Header) as tar:
            for info in tar:
                yield _Member(
                    name=info.name,
                    kind=stat.S_IFDIR if info.isdir() else stat.S_IFREG if info.isreg() else stat.S_IFLNK,
                    size=info.size,
                    open=partial(tar.extractfile, info),
                )
        while content.read(2**20):
            pass  # to the compression's own end, where its checksum stands


class _Header(tarfile.TarInfo):
    """A tar header that must be whole; tarfile itself takes a broken one for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            header = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise  # the mark of the end
            raise tarfile.ReadError(str(error)) from None
        # tarfile reads what belongs to a header (a long name) into memory, whatever size it declares.
        if not header.isreg() and not 0 <= header.size <= _HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {header.size} bytes")
        return header
