"""What may be unpacked, and what is left when something may not."""

import bz2
import errno
import gzip
import io
import lzma
import random
import resource
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from seft.data.archive import SUFFIXES, extract, unpacked
from seft.error import InputError

FILES = {
    "raw/a.txt": b"hello\n" * 500,
    "raw/deep/b.txt": random.Random(0).randbytes(3000),  # does not compress, so that cuts fall inside it
    "raw/empty.txt": b"",
    f"raw/{'long' * 40}.txt": b"a name beyond the 100 bytes of a header",
}
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".tar": bytes,
    ".gz": gzip.compress,
    ".tgz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder two levels below a place that nothing may be written to."""
    folder = tmp_path / "outside" / "inside"
    folder.mkdir(parents=True)
    return folder


def pack(archive: Path, files: dict[str, bytes]) -> Path:
    """An archive of the kind that its name says."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
            for name, content in files.items():
                zipped.writestr(name, content)
        return archive
    with tarred(archive) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return archive


@contextmanager
def tarred(archive: Path) -> Iterator[tarfile.TarFile]:
    """A tar to be filled, compressed as the archive's name says."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        yield tar
    archive.write_bytes(COMPRESS[archive.suffix](content.getvalue()))


def tar_with(archive: Path, name: str, kind: bytes, link: str = "") -> Path:
    """A tar of a harmless file, one odd member, and another harmless file."""
    with tarred(archive) as tar:
        for member_name, member_kind in (
            ("first.txt", tarfile.REGTYPE),
            (name, kind),
            ("b", tarfile.REGTYPE),
        ):
            member = tarfile.TarInfo(member_name)
            member.type = member_kind
            member.linkname = link if member_name == name else ""
            tar.addfile(member)
    return archive


def zip_with(archive: Path, name: str, mode: int = 0, content: bytes = b"") -> Path:
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr("first.txt", b"")
        member = zipfile.ZipInfo(name)
        member.external_attr = mode << 16
        zipped.writestr(member, content)
    return archive


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_refused(archive: Path, *words: str) -> None:
    """Refused in one line that says `words`, and not a file or folder more than there was."""
    before = set(archive.parents[2].rglob("*"))
    with pytest.raises(InputError) as refusal:
        extract(archive, archive.parent / "out")
    message = str(refusal.value)
    assert message.startswith(f"{archive}: ")
    assert "\n" not in message
    for word in words:
        assert word in message
    assert set(archive.parents[2].rglob("*")) == before


# --- what is unpacked --------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_kind_of_archive_unpacks_to_the_files_packed(folder: Path, suffix: str) -> None:
    archive = pack(folder / f"data{suffix}", FILES)
    extract(archive, folder / "out")
    assert content_of(folder / "out") == FILES
    assert sorted(path.name for path in folder.iterdir()) == sorted([archive.name, "out"])


def test_folders_in_an_archive_are_made_even_if_empty(folder: Path) -> None:
    with tarred(folder / "data.tar") as tar:
        for name in (".", "raw", "raw/empty"):
            member = tarfile.TarInfo(name)
            member.type = tarfile.DIRTYPE
            tar.addfile(member)
    with zipfile.ZipFile(folder / "data.zip", "w") as zipped:
        zipped.writestr("raw/empty/", b"")
    for name in ("data.tar", "data.zip"):
        extract(folder / name, folder / f"{name}-out")
        assert (folder / f"{name}-out" / "raw" / "empty").is_dir()


def test_a_name_in_capitals_is_the_same_kind_of_archive(folder: Path) -> None:
    pack(folder / "data.zip", FILES).rename(folder / "DATA.ZIP")
    extract(folder / "DATA.ZIP", folder / "out")
    assert content_of(folder / "out") == FILES


def test_two_archives_unpack_into_one_folder(folder: Path) -> None:
    extract(pack(folder / "a.zip", {"set-a/1.txt": b"1"}), folder / "out")
    extract(pack(folder / "b.tar.gz", {"set-b/2.txt": b"2"}), folder / "out")
    assert content_of(folder / "out") == {"set-a/1.txt": b"1", "set-b/2.txt": b"2"}


def test_nothing_that_stands_in_the_target_is_overwritten(folder: Path) -> None:
    archive = pack(folder / "a.zip", {"other.txt": b"new", "raw/a.txt": b"new"})
    (folder / "out" / "raw").mkdir(parents=True)
    (folder / "out" / "raw" / "a.txt").write_bytes(b"old")
    assert_refused(archive, "'raw'", "has already")
    assert content_of(folder / "out") == {"raw/a.txt": b"old"}


def test_a_raw_folder_is_read_where_it_is(folder: Path) -> None:
    with unpacked(folder) as raw:
        assert raw == folder
    assert folder.is_dir()


def test_a_raw_archive_is_unpacked_for_as_long_as_it_is_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "outside"))
    archive = pack(folder / "data.tar.xz", FILES)
    with unpacked(archive) as raw:
        assert content_of(raw) == FILES
    with pytest.raises(ZeroDivisionError), unpacked(archive):
        raise ZeroDivisionError
    assert list((tmp_path / "outside").iterdir()) == [folder]


def test_room_is_needed_only_where_the_target_is(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    extract(pack(folder / "data.zip", FILES), folder / "out")
    assert content_of(folder / "out") == FILES


def test_a_raw_path_that_is_not_there_is_named(folder: Path) -> None:
    with (
        pytest.raises(InputError, match="absent: there is no such file or folder"),
        unpacked(folder / "absent"),
    ):
        pass


def test_a_raw_file_that_is_no_archive_is_named(folder: Path) -> None:
    (folder / "data.csv").write_text("id,time\n")
    with (
        pytest.raises(InputError, match=r"data\.csv: is neither a folder nor an archive \(\.tar, "),
        unpacked(folder / "data.csv"),
    ):
        pass


# --- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "../evil.txt",
        "raw/../../evil.txt",
        "raw/..",
        "..",
        "/tmp/evil.txt",
        "//evil.txt",
        "..\\evil.txt",
        "raw\\..\\..\\evil.txt",
        "\\evil.txt",
    ],
)
@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".zip"])
def test_a_path_that_leaves_the_target_refuses_the_archive(folder: Path, suffix: str, name: str) -> None:
    archive = pack(folder / f"data{suffix}", {"first.txt": b"", name: b"evil", "last.txt": b""})
    assert_refused(archive, repr(name), "outside the target")


def test_an_absolute_path_writes_nothing_where_it_points(folder: Path, tmp_path: Path) -> None:
    evil = tmp_path / "evil.txt"
    for name in ("data.tar", "data.zip"):
        assert_refused(pack(folder / name, {str(evil): b"evil"}), repr(str(evil)))
        assert not evil.exists()


@pytest.mark.parametrize("link", ["/etc/passwd", "../../outside", "..", "first.txt", ""])
@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_a_link_in_a_tar_is_refused_wherever_it_points(folder: Path, kind: bytes, link: str) -> None:
    assert_refused(tar_with(folder / "data.tar", "link", kind, link), "'link'", "is a link")


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"Z"])
def test_a_device_in_a_tar_is_refused(folder: Path, kind: bytes) -> None:
    assert_refused(tar_with(folder / "data.tar.xz", "thing", kind), "'thing'", "a device")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_a_link_or_a_device_in_a_zip_is_refused(folder: Path, kind: int) -> None:
    assert_refused(zip_with(folder / "data.zip", "link", kind | 0o777, b"/etc/passwd"), "'link'", "is a link")


def test_writing_through_a_link_of_the_same_archive_is_refused(folder: Path) -> None:
    with tarred(folder / "data.tar") as tar:
        link = tarfile.TarInfo("door")
        link.type, link.linkname = tarfile.SYMTYPE, str(folder.parent)
        tar.addfile(link)
        evil = tarfile.TarInfo("door/evil.txt")
        evil.size = 4
        tar.addfile(evil, io.BytesIO(b"evil"))
    assert_refused(folder / "data.tar", "'door'")


def test_what_unpacks_to_absurd_sizes_is_refused_before_it_is_written(folder: Path) -> None:
    member = tarfile.TarInfo("zeros")
    member.size = 2**40
    (folder / "data.tar").write_bytes(member.tobuf() + bytes(2**16))
    assert_refused(folder / "data.tar", "unpacks to over 10 GiB")


def test_a_zip_with_a_password_is_to_be_unpacked_by_hand(folder: Path) -> None:
    archive = zip_with(folder / "data.zip", "secret.txt", content=b"secret")
    content = bytearray(archive.read_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.rindex(signature) + flags] |= 1  # the flag of an encrypted member
    archive.write_bytes(content)
    assert_refused(archive, "encrypted", "unpack it yourself")


# --- what is damaged ---------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar.xz", ".tar.bz2", ".zip"])
def test_a_compressed_archive_cut_anywhere_is_told_to_be_truncated(folder: Path, suffix: str) -> None:
    archive = pack(folder / f"data{suffix}", FILES)
    whole = archive.read_bytes()
    for cut in [*range(0, len(whole), 97), len(whole) - 8, len(whole) - 1]:
        archive.write_bytes(whole[:cut])
        assert_refused(archive, "is truncated or damaged", "fetch it again")


def test_a_tar_cut_anywhere_is_whole_or_told_to_be_truncated(folder: Path) -> None:
    """A plain tar ends in blocks of zeros that hold nothing; from the first of them on it is whole."""
    archive = pack(folder / "data.tar", FILES)
    whole = archive.read_bytes()
    end = len(whole.rstrip(b"\0")) // tarfile.BLOCKSIZE * tarfile.BLOCKSIZE + 2 * tarfile.BLOCKSIZE
    for cut in [*range(0, end, 331), *range(0, end, tarfile.BLOCKSIZE), end - 1]:
        archive.write_bytes(whole[:cut])
        assert_refused(archive, "is truncated or damaged")
    archive.write_bytes(whole[:end])
    extract(archive, folder / "out")
    assert content_of(folder / "out") == FILES


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar.xz", ".tar.bz2", ".zip"])
def test_a_compressed_archive_with_a_wrong_byte_never_unpacks_to_other_content(
    folder: Path, suffix: str
) -> None:
    archive = pack(folder / f"data{suffix}", FILES)
    whole = archive.read_bytes()
    # A zip's directory, at its end, has no checksum of its own.
    checked = whole.index(b"PK\x01\x02") if suffix == ".zip" else len(whole)
    for place in range(0, checked, 41):
        archive.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            extract(archive, folder / "out")
        except InputError as error:
            assert "is truncated or damaged" in str(error) or "cannot be unpacked" in str(error)  # noqa: PT017
            assert not (folder / "out").exists()
        else:
            assert content_of(folder / "out") == FILES
            shutil.rmtree(folder / "out")


def test_a_broken_header_within_a_tar_is_not_taken_for_its_end(folder: Path) -> None:
    archive = pack(folder / "data.tar", FILES)
    content = bytearray(archive.read_bytes())
    content[content.index(b"raw/deep/b.txt")] = 0x21
    archive.write_bytes(content)
    assert_refused(archive, "is truncated or damaged")


def test_a_header_that_declares_a_name_of_a_terabyte_is_damage(folder: Path) -> None:
    name = tarfile.TarInfo("long name follows")
    name.type, name.size = tarfile.GNUTYPE_LONGNAME, 2**40
    (folder / "data.tar").write_bytes(name.tobuf(tarfile.GNU_FORMAT) + bytes(2**16))
    assert_refused(folder / "data.tar", "is truncated or damaged", "a header of")


def test_a_negative_size_is_refused_and_not_followed_backwards(folder: Path) -> None:
    with tarred(folder / "data.tar") as tar:
        member = tarfile.TarInfo("loop")
        member.pax_headers = {"size": "-1024"}
        tar.addfile(member)
    assert_refused(folder / "data.tar", "'loop'", "negative size")


def test_a_header_that_is_no_number_is_damage(folder: Path) -> None:
    with tarred(folder / "data.tar") as tar:
        member = tarfile.TarInfo("sparse")
        member.pax_headers = {"GNU.sparse.map": "0,many"}
        tar.addfile(member)
    assert_refused(folder / "data.tar", "is truncated or damaged")


def test_a_page_in_place_of_an_archive_is_told_to_be_damaged(folder: Path) -> None:
    for suffix in SUFFIXES:
        archive = folder / f"data{suffix}"
        archive.write_text("<html>please log in</html>")
        assert_refused(archive, "is truncated or damaged")


@pytest.mark.parametrize("suffix", [".tar.xz", ".zip"])
def test_an_error_of_the_disk_stays_one_and_leaves_nothing(folder: Path, suffix: str) -> None:
    archive = pack(folder / f"data{suffix}", {"small.txt": b"1", "large.txt": bytes(2**20)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
    try:
        with pytest.raises(OSError, match="File too large") as failure:
            extract(archive, folder / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert failure.value.errno == errno.EFBIG
    assert list(folder.iterdir()) == [archive]
