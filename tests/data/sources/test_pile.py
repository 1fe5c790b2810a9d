from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seft.data.sources import pile
from seft.data.sources.pile import find_folder, in_parallel, piles, stay_files
from seft.error import InputError

HEADER = b"a,b\n"


@given(
    st.lists(st.lists(st.sampled_from(["1,2", "33,4", ""]), max_size=5), max_size=8),
    st.booleans(),
    st.integers(1, 30),
)
def test_piles_hold_the_lines_of_all_files_in_order(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[str]], line_feed: bool, limit: int
) -> None:
    folder = tmp_path_factory.mktemp("pile")
    paths = []
    for number, lines in enumerate(files):
        paths.append(folder / f"{number}.txt")
        text = "\n".join(["a,b", *lines])
        paths[-1].write_text(text + "\n" if line_feed or not lines else text)
    made = list(piles(paths, HEADER, limit))
    expected = [line for path in paths for line in path.read_text().splitlines()[1:]]
    assert [line for part in made for line in part.text.decode().splitlines()] == expected
    assert [path for part in made for path in part.paths] == paths
    counts = [count for part in made for count in part.line_counts()]
    assert counts == [len(path.read_text().splitlines()) - 1 for path in paths]
    assert [line for part in made for _, _, line in part.lines()] == expected
    for part in made:
        assert len(part.paths) == 1 or len(part.text) - (part.ends[-1] - part.ends[-2]) < limit


@pytest.mark.parametrize("content", [b"", b"a", b"a,b", b"a,c\n1,2\n", b"\xef\xbb\xbfa,b\n"])
def test_a_file_with_another_header_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "good.txt").write_bytes(HEADER + b"1,2\n")
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(InputError, match=r"bad.txt: begins with b'.*must begin with the line 'a,b'"):
        list(piles([tmp_path / "good.txt", tmp_path / "bad.txt"], HEADER))


def test_a_file_that_is_far_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pile, "LARGEST", 100)
    (tmp_path / "fits.txt").write_bytes(HEADER + b"1" * 99)
    assert len(next(piles([tmp_path / "fits.txt"], HEADER)).text) == 100
    (tmp_path / "large.txt").write_bytes(HEADER + b"1" * 100)
    with pytest.raises(InputError, match=r"large.txt: is larger than 100 bytes"):
        list(piles([tmp_path / "large.txt"], HEADER))


def test_work_in_parallel_gives_its_results_in_order_and_its_errors(tmp_path: Path) -> None:
    paths = []
    for number in range(7):
        paths.append(tmp_path / f"{number}.txt")
        paths[-1].write_bytes(HEADER + b"%d\n" % number)
    assert list(in_parallel(lambda part: part.text, piles(paths, HEADER, 1))) == [
        b"%d\n" % number for number in range(7)
    ]

    def fail(part: pile.Pile) -> None:
        raise InputError(f"at {part.paths[0].name}")

    with pytest.raises(InputError, match=r"at 0.txt"):
        list(in_parallel(fail, piles(paths, HEADER, 1)))


def test_files_are_listed_by_name_and_folders_found_one_level_down(tmp_path: Path) -> None:
    (tmp_path / "outer" / "set-a").mkdir(parents=True)
    for name in ("b.txt", "a.txt", "c.csv"):
        (tmp_path / "outer" / "set-a" / name).write_text("")
    found = find_folder(tmp_path, "set-a")
    assert found == tmp_path / "outer" / "set-a"
    assert [path.name for path in stay_files(found, ".txt")] == ["a.txt", "b.txt"]
    assert find_folder(tmp_path / "outer", "set-a") == found
    assert find_folder(tmp_path, "set-b") is None
