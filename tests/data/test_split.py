import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seft.data.split import FRACTIONS, PaperSplit, split
from seft.error import InputError

groups = st.lists(st.integers(0, 15), min_size=1, max_size=60)


@given(groups, st.integers(0, 9))
def test_a_group_is_never_torn_apart(groups: list[int], seed: int) -> None:
    names = [f"p{group}" for group in groups]
    assigned = split(names, [0] * len(names), seed=seed)
    for name in set(names):
        assert len({part for part, other in zip(assigned, names, strict=True) if other == name}) == 1


@given(groups, st.randoms())
def test_the_order_of_the_rows_does_not_matter(groups: list[int], random: object) -> None:
    names = [f"p{group}" for group in groups]
    strata = [group % 3 for group in groups]
    before = dict(zip(names, split(names, strata), strict=True))
    order = np.random.default_rng(0).permutation(len(names))
    after = split([names[i] for i in order], [strata[i] for i in order])
    assert all(before[names[i]] == part for i, part in zip(order, after, strict=True))


def test_each_stratum_is_divided_by_the_fractions() -> None:
    strata = np.repeat([0, 1], [900, 100])
    assigned = split([f"p{i}" for i in range(1000)], strata)
    for stratum, total in ((0, 900), (1, 100)):
        for name, fraction in FRACTIONS.items():
            assert abs((assigned[strata == stratum] == name).sum() - fraction * total) <= 1


def test_many_small_strata_fill_every_split() -> None:
    assigned = split([f"p{i}" for i in range(300)], np.repeat(np.arange(150), 2))
    assert {name: int((assigned == name).sum()) for name in FRACTIONS} == {
        "train": 192,
        "val": 48,
        "test": 60,
    }


def test_another_seed_is_another_split() -> None:
    names = [f"p{i}" for i in range(50)]
    assert split(names, [0] * 50, seed=1).tolist() == split(names, [0] * 50, seed=1).tolist()
    assert split(names, [0] * 50, seed=1).tolist() != split(names, [0] * 50, seed=2).tolist()


def test_the_papers_split_notices_other_labels() -> None:
    paper = PaperSplit(series=100, seed=1, sha256="0" * 64)
    labels = {f"s{i}": i % 2 for i in range(100)}
    with pytest.raises(InputError, match="not those of the paper"):
        paper.assign(labels)
    with pytest.raises(InputError, match="all 100 stays and 99 are here"):
        paper.assign(dict(list(labels.items())[1:]))
