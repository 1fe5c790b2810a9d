"""Public raw files into a cache: resumed where an earlier run stopped, and checked before they count."""

import fcntl
import hashlib
import http.client
import os
import urllib.error
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

import seft
from seft.error import InputError

TIMEOUT = 30.0  # seconds without a byte
ATTEMPTS = 5  # connections a file, where they close early
_CHUNK = 2**18
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_BY_HAND = "fetch it by hand and give it with --raw"


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file on a server, as it was when its size and checksum were written down."""

    url: str
    bytes: int
    sha256: str

    @property
    def name(self) -> str:
        return PurePosixPath(urlsplit(self.url).path).name


def cache_folder() -> Path:
    """Where downloads are kept: $SEFT_CACHE, else $XDG_CACHE_HOME/seft, else ~/.cache/seft."""
    if own := os.environ.get("SEFT_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "seft"


def download(files: Sequence[RemoteFile], target: Path) -> list[Path]:
    """Paths in `target` of the files, whole and checked; only what is missing there is fetched."""
    for file in files:
        if not _is_secure(file.url):
            raise InputError(f"{file.url}: only https is fetched; {_BY_HAND}")
    paths = [target / file.name for file in files]
    if all(map(_is_whole, paths, files)):
        return paths  # from a cache that may be another's, and read-only
    target.mkdir(parents=True, exist_ok=True)
    with (target / ".lock").open("w") as lock, _progress() as progress:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs must not append to one part
        for path, file in zip(paths, files, strict=True):
            _fetch(file, path, progress)
    return paths


def _progress() -> Progress:
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _fetch(file: RemoteFile, path: Path, progress: Progress) -> None:
    if _is_whole(path, file):
        return
    part = path.with_name(f"{path.name}.part")
    task = progress.add_task(file.name, total=file.bytes)
    _complete(file, part, lambda size: progress.update(task, completed=size))
    if not _is_whole(part, file):
        part.unlink()
        raise InputError(
            f"{file.url}: what came has another checksum than expected and was deleted; "
            f"run again, or {_BY_HAND}"
        )
    part.replace(path)


def _is_whole(path: Path, file: RemoteFile) -> bool:
    if _size(path) != file.bytes:
        return False
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest() == file.sha256


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class _InterruptedError(Exception):
    """The connection ended before the file did."""


def _complete(file: RemoteFile, part: Path, report: Callable[[int], None]) -> None:
    """Append to `part` what it lacks, over as many connections as that takes, within reason."""
    for _ in range(ATTEMPTS):
        try:
            _transfer(file, part, report)
        except _InterruptedError as error:
            reason = str(error)
        else:
            return
    raise InputError(
        f"{file.url}: broke off {ATTEMPTS} times ({reason}), {_size(part):,} of {file.bytes:,} bytes came; "
        f"run again to go on, or {_BY_HAND}"
    )


def _transfer(file: RemoteFile, part: Path, report: Callable[[int], None]) -> None:
    """One connection's share of the file."""
    size = _size(part)
    if size >= file.bytes:
        return
    with _open(file, size) as answer:
        if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
            size = 0  # the server sends the file from its beginning
        if answer.length is not None and answer.length != file.bytes - size:
            raise InputError(
                f"{file.url}: is {size + answer.length:,} bytes there and should be {file.bytes:,}, so it is "
                f"another file; {_BY_HAND}"
            )
        with part.open("ab" if size else "wb") as sink:
            while size < file.bytes:
                size += sink.write(_read(answer, file.bytes - size))
                report(size)


def _read(answer: http.client.HTTPResponse, left: int) -> bytes:
    """The next bytes; kept apart from the writing, whose errors are the disk's."""
    try:
        # What is there now: read() waits for all of it, and drops what it has where the rest never comes.
        chunk = answer.read1(min(left, _CHUNK))
    except (OSError, http.client.HTTPException) as error:
        raise _InterruptedError(_reason(error)) from None
    if not chunk:
        raise _InterruptedError("the connection closed early")
    return chunk


def _open(file: RemoteFile, start: int) -> http.client.HTTPResponse:
    headers = {"User-Agent": f"seft/{seft.__version__}"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        answer: http.client.HTTPResponse = build_opener(_SecureRedirects).open(
            Request(file.url, headers=headers), timeout=TIMEOUT
        )
    except (OSError, http.client.HTTPException) as error:
        raise InputError(f"{file.url}: could not be fetched ({_reason(error)}); {_BY_HAND}") from None
    return answer


def _reason(error: OSError | http.client.HTTPException) -> str:
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return f"HTTP {error.code} {error.reason}"
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    told = str(getattr(cause, "strerror", None) or cause) or type(cause).__name__
    return " ".join(told.split())  # a server's own words may span lines


def _is_secure(url: str) -> bool:
    """Whether nobody between here and there can change what is asked or answered."""
    address = urlsplit(url)
    return address.scheme == "https" or (address.scheme == "http" and address.hostname in _LOOPBACK)


class _SecureRedirects(HTTPRedirectHandler):
    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
    ) -> Request | None:
        if not _is_secure(newurl):
            fp.close()
            raise urllib.error.URLError(f"it is redirected to {newurl}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)
