"""What a download asks of the server, keeps on disk, and says when it cannot go on."""

import fcntl
import hashlib
import io
import random
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from seft.data import download as module
from seft.data.download import ATTEMPTS, RemoteFile, cache_folder, download
from seft.error import InputError

CONTENT = random.Random(1).randbytes(1_000_000)


@dataclass
class Server:
    """A real server on this machine: what it does is set before, what it did is read after."""

    port: int = 0
    content: bytes = CONTENT
    status: int = 200
    ranges: bool = True  # whether it understands Range
    shift: int = 0  # how far from what was asked it starts
    cut_after: int | None = None  # it closes the connection after so many bytes of an answer
    stall_after: int | None = None  # it falls silent after so many
    refuse_after: int | None = None  # answers, after which it says 503
    location: str = ""  # where it sends those who ask for /moved
    asked: list[str | None] = field(default_factory=list)  # the Range of each request
    sent: list[int] = field(default_factory=list)  # bytes of each answer
    silence: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/files/set-a.tar.gz"

    def file(self, content: bytes = CONTENT) -> RemoteFile:
        """The file as seft expects it."""
        return RemoteFile(url=self.url, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        asked = request.headers["Range"]
        self.asked.append(asked)
        self.sent.append(0)
        if request.path == "/moved":
            request.send_response(302)
            request.send_header("Location", self.location)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        if self.status != 200 or (self.refuse_after is not None and len(self.asked) > self.refuse_after):
            request.send_error(self.status if self.status != 200 else 503)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.ranges else 0
        body = self.content[start + self.shift if start else 0 :]
        request.send_response(206 if asked and self.ranges else 200)
        request.send_header("Content-Length", str(len(body)))
        if asked and self.ranges:
            size = len(self.content)
            request.send_header("Content-Range", f"bytes {start + self.shift}-{size - 1}/{size}")
        request.end_headers()
        limit = self.cut_after if self.cut_after is not None else self.stall_after
        body = body if limit is None else body[:limit]
        self.sent[-1] = len(body)
        with suppress(ConnectionError):  # who does not like the answer's size hangs up
            request.wfile.write(body)
        if self.stall_after is not None:
            self.silence.wait()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.answer(self)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = False  # so that closing it waits for the answers under way
        server.port = http.server_address[1]
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.silence.set()
        http.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


def part_of(target: Path) -> Path:
    return target / "set-a.tar.gz.part"


def left_in(target: Path) -> list[str]:
    return sorted(path.name for path in target.iterdir() if path.name != ".lock")


def refusal_of(file: RemoteFile, target: Path) -> str:
    """The one line that a download ends in."""
    with pytest.raises(InputError) as refusal:
        download([file], target)
    message = str(refusal.value)
    assert message.startswith(f"{file.url}: ")
    assert "\n" not in message
    assert message.endswith("--raw")
    return message


# --- what is fetched ---------------------------------------------------------------------------------


def test_a_download_is_the_file_under_its_own_name(server: Server, tmp_path: Path) -> None:
    assert download([server.file()], tmp_path / "new" / "cache") == [
        tmp_path / "new" / "cache" / "set-a.tar.gz"
    ]
    assert (tmp_path / "new" / "cache" / "set-a.tar.gz").read_bytes() == CONTENT
    assert left_in(tmp_path / "new" / "cache") == ["set-a.tar.gz"]
    assert server.asked == [None]


def test_several_files_come_in_the_order_they_were_asked_for(server: Server, tmp_path: Path) -> None:
    first = server.file()
    second = RemoteFile(url=server.url.replace("set-a", "set-b"), bytes=first.bytes, sha256=first.sha256)
    assert [path.name for path in download([second, first], tmp_path)] == ["set-b.tar.gz", "set-a.tar.gz"]


def test_a_file_that_is_there_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    download([server.file()], tmp_path)
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # nor does it wait for another run
        (path,) = download([server.file()], tmp_path)
    assert path.read_bytes() == CONTENT
    assert len(server.asked) == 1


def test_only_what_is_missing_is_fetched(server: Server, tmp_path: Path) -> None:
    first = server.file()
    second = RemoteFile(server.url.replace("set-a", "set-b"), first.bytes, first.sha256)
    download([first], tmp_path)
    download([first, second], tmp_path)
    assert len(server.asked) == 2
    assert left_in(tmp_path) == ["set-a.tar.gz", "set-b.tar.gz"]


@pytest.mark.parametrize("damaged", [CONTENT[:-1], CONTENT[:-1] + b"!", b""])
def test_a_file_that_is_there_but_damaged_is_replaced(server: Server, tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / "set-a.tar.gz").write_bytes(damaged)
    (path,) = download([server.file()], tmp_path)
    assert path.read_bytes() == CONTENT


def test_a_query_in_the_address_is_no_part_of_the_name() -> None:
    assert RemoteFile(url="https://host/a/b.zip?download", bytes=1, sha256="").name == "b.zip"


# --- resuming ----------------------------------------------------------------------------------------


def test_a_part_is_resumed_by_asking_only_for_the_rest(server: Server, tmp_path: Path) -> None:
    part_of(tmp_path).write_bytes(CONTENT[:700_001])
    (path,) = download([server.file()], tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.asked == ["bytes=700001-"]
    assert server.sent == [len(CONTENT) - 700_001]


def test_a_part_that_is_whole_asks_for_nothing(server: Server, tmp_path: Path) -> None:
    part_of(tmp_path).write_bytes(CONTENT)
    (path,) = download([server.file()], tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.asked == []


def test_a_server_that_ignores_ranges_starts_the_file_over(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    part_of(tmp_path).write_bytes(b"?" * 700_001)
    (path,) = download([server.file()], tmp_path)
    assert path.read_bytes() == CONTENT


def test_a_connection_that_closes_early_is_taken_up_again(server: Server, tmp_path: Path) -> None:
    server.cut_after = 300_000
    (path,) = download([server.file()], tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=300000-", "bytes=600000-", "bytes=900000-"]


def test_what_came_before_giving_up_is_kept_for_the_next_run(server: Server, tmp_path: Path) -> None:
    server.cut_after = 1000
    message = refusal_of(server.file(), tmp_path)
    assert (
        f"broke off {ATTEMPTS} times (the connection closed early), 5,000 of 1,000,000 bytes came" in message
    )
    assert part_of(tmp_path).read_bytes() == CONTENT[: 1000 * ATTEMPTS]
    server.cut_after = None
    download([server.file()], tmp_path)
    assert server.asked[-1] == "bytes=5000-"
    assert left_in(tmp_path) == ["set-a.tar.gz"]


def test_a_server_that_falls_silent_is_left_after_a_while(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TIMEOUT", 0.1)
    server.stall_after = 1000
    assert "timed out" in refusal_of(server.file(), tmp_path)
    assert part_of(tmp_path).read_bytes() == CONTENT[: 1000 * ATTEMPTS]


def test_a_server_that_gives_up_meanwhile_loses_nothing(server: Server, tmp_path: Path) -> None:
    server.cut_after = 1000
    server.refuse_after = 2
    assert "HTTP 503" in refusal_of(server.file(), tmp_path)
    assert part_of(tmp_path).read_bytes() == CONTENT[:2000]


def test_two_runs_at_once_fetch_a_file_once(server: Server, tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        runs = [threading.Thread(target=download, args=([server.file()], tmp_path)) for _ in range(2)]
        for run in runs:
            run.start()
        runs[0].join(0.1)
        assert server.asked == []  # both wait
    for run in runs:
        run.join()
    assert len(server.asked) == 1
    assert (tmp_path / "set-a.tar.gz").read_bytes() == CONTENT


# --- what goes wrong ---------------------------------------------------------------------------------


def test_other_content_of_the_same_size_is_deleted_and_told(server: Server, tmp_path: Path) -> None:
    server.content = CONTENT[:-1] + b"!"
    assert "another checksum" in refusal_of(server.file(), tmp_path)
    assert left_in(tmp_path) == []


def test_a_range_other_than_the_one_asked_for_does_not_pass(server: Server, tmp_path: Path) -> None:
    server.shift = -7
    part_of(tmp_path).write_bytes(CONTENT[:5000])
    refusal_of(server.file(), tmp_path)
    assert not (tmp_path / "set-a.tar.gz").exists()


@pytest.mark.parametrize("content", [b"<html>please log in</html>", CONTENT + b"more"])
def test_a_file_of_another_size_is_told_before_it_is_fetched(
    server: Server, tmp_path: Path, content: bytes
) -> None:
    server.content = content
    assert f"is {len(content):,} bytes there and should be 1,000,000" in refusal_of(server.file(), tmp_path)
    assert left_in(tmp_path) == []


def test_a_page_that_is_sent_in_place_of_the_rest_does_not_cost_the_part(
    server: Server, tmp_path: Path
) -> None:
    server.content, server.ranges = b"<html>please log in</html>", False
    part_of(tmp_path).write_bytes(CONTENT[:5000])
    refusal_of(server.file(), tmp_path)
    assert part_of(tmp_path).read_bytes() == CONTENT[:5000]


@pytest.mark.parametrize(
    ("status", "words"), [(404, "HTTP 404 Not Found"), (503, "HTTP 503 Service Unavailable")]
)
def test_what_the_server_answers_is_told(server: Server, tmp_path: Path, status: int, words: str) -> None:
    server.status = status
    assert f"could not be fetched ({words}); fetch it by hand" in refusal_of(server.file(), tmp_path)
    assert left_in(tmp_path) == []


def test_no_server_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    file = RemoteFile(url=f"http://127.0.0.1:{port}/set-a.tar.gz", bytes=1, sha256="")
    assert "could not be fetched (Connection refused)" in refusal_of(file, tmp_path)


def test_no_name_is_one_line(tmp_path: Path) -> None:
    """`.invalid` is reserved: no resolver knows it, and where there is no network none is asked."""
    file = RemoteFile(url="https://physionet.invalid/set-a.tar.gz", bytes=1, sha256="")
    assert "could not be fetched (" in refusal_of(file, tmp_path)


def test_a_server_that_hangs_up_or_speaks_something_else_is_one_line(tmp_path: Path) -> None:
    for greeting in (b"", b"SSH-2.0-other\r\n\r\n"):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=greet, args=(listener, greeting))
            thread.start()
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/set-a.tar.gz"
            assert "could not be fetched (" in refusal_of(RemoteFile(url=url, bytes=1, sha256=""), tmp_path)
            thread.join()


def greet(listener: socket.socket, greeting: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(greeting)


@pytest.mark.parametrize(
    "url",
    [
        "http://physionet.org/a",
        "file:///etc/passwd",
        "ftp://physionet.org/a",
        "http://127.0.0.1.evil.org/a",
        "a",
    ],
)
def test_only_https_is_fetched(tmp_path: Path, url: str) -> None:
    assert "only https" in refusal_of(RemoteFile(url=url, bytes=1, sha256=""), tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "location", ["http://physionet.invalid/a", "ftp://physionet.invalid/a", "file:///etc/passwd"]
)
def test_a_redirect_away_from_https_is_not_followed(server: Server, tmp_path: Path, location: str) -> None:
    server.location = location
    file = RemoteFile(url=f"http://127.0.0.1:{server.port}/moved", bytes=1, sha256="")
    message = refusal_of(file, tmp_path)
    assert "could not be fetched (" in message
    assert location in message
    assert left_in(tmp_path) == []


def test_a_redirect_is_followed_and_still_resumes(server: Server, tmp_path: Path) -> None:
    server.location = server.url
    moved = RemoteFile(
        url=f"http://127.0.0.1:{server.port}/moved", bytes=len(CONTENT), sha256=server.file().sha256
    )
    (tmp_path / "moved.part").write_bytes(CONTENT[:5000])
    (path,) = download([moved], tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.asked == ["bytes=5000-", "bytes=5000-"]
    assert server.sent[-1] == len(CONTENT) - 5000


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here to write to")
def test_a_full_disk_is_not_taken_for_the_network(server: Server, tmp_path: Path) -> None:
    part_of(tmp_path).symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        download([server.file()], tmp_path)
    assert len(server.asked) == 1


# --- what is shown, and where it is kept -------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_how_far_it_is(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    download([server.file()], tmp_path)
    assert "set-a.tar.gz" in terminal.getvalue()
    assert "1.0/1.0 MB" in terminal.getvalue()


def test_nothing_is_shown_where_nobody_looks(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    download([server.file()], tmp_path)
    assert capsys.readouterr() == ("", "")


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("SEFT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == Path("/home/somebody/.cache/seft")
    monkeypatch.setenv("XDG_CACHE_HOME", "/large/cache")
    assert cache_folder() == Path("/large/cache/seft")
    monkeypatch.setenv("SEFT_CACHE", "~/own")
    assert cache_folder() == Path("/home/somebody/own")
