from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seft.data.batch import Batch
from seft.data.dataset import Dataset
from seft.data.loader import Held, balanced, balanced_steps, capped, in_order, owned, share, shuffled
from seft.error import InputError
from tests.data.example import write

seeds = st.integers(0, 5)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write(tmp_path_factory.mktemp("loader") / "d", shards=4, series=15)


@given(count=st.integers(0, 40), size=st.integers(1, 12), seed=seeds, epoch=seeds)
def test_a_shuffled_epoch_has_every_row_once(count: int, size: int, seed: int, epoch: int) -> None:
    rows = np.arange(100, 100 + count)
    plan = shuffled(rows, size, seed=seed, epoch=epoch)
    assert sorted(np.concatenate([*plan, []]).tolist()) == rows.tolist()
    assert all(len(part) == size for part in plan[:-1])


@given(counts=st.lists(st.integers(0, 30), max_size=40), most=st.integers(1, 60), seed=seeds, epoch=seeds)
def test_a_capped_batch_exceeds_its_cap_only_as_a_single_series(
    counts: list[int], most: int, seed: int, epoch: int
) -> None:
    rows = np.arange(len(counts))
    plan = capped(rows, np.array(counts, dtype=np.int64), most, seed=seed, epoch=epoch)
    assert sorted(np.concatenate([*plan, []]).tolist()) == rows.tolist()
    for part in plan:
        assert len(part) == 1 or sum(counts[row] for row in part) <= most
    for part, following in pairwise(plan):
        assert sum(counts[row] for row in part) + counts[following[0]] > most, "batches are as full as can be"


@given(
    classes=st.lists(st.integers(-1, 2), min_size=6, max_size=60).filter(
        lambda classes: len({value for value in classes if value >= 0}) >= 2
    ),
    size=st.integers(3, 20),
    seed=seeds,
)
def test_balanced_batches_have_equal_shares_of_the_classes(classes: list[int], size: int, seed: int) -> None:
    rows = np.arange(len(classes)) * 7
    plan = balanced(rows, np.array(classes), size, seed=seed, epoch=0)
    counts = [classes.count(value) for value in sorted(set(classes) - {-1})]
    assert len(plan) == balanced_steps(counts, size)
    drawn: dict[int, list[int]] = {}
    for part in plan:
        of_class = np.bincount([classes[row // 7] for row in part], minlength=3)
        present = of_class[[value for value in range(3) if value in classes]]
        assert len(part) == size
        assert present.max() - present.min() <= 1
        for row in part.tolist():
            drawn.setdefault(classes[row // 7], []).append(row)
    for value, members in drawn.items():
        repeats = np.bincount(np.array(members) // 7, minlength=len(classes))[np.array(classes) == value]
        assert repeats.max() - repeats.min() <= 1, "each class is gone through before it is repeated"


def test_the_papers_steps_an_epoch() -> None:
    assert balanced_steps([7671 - 1093, 1093], 512) == 13
    assert balanced_steps([25_813 - 1877, 1877], 64) == 176


@pytest.mark.parametrize(("kinds", "size"), [(2, 3), (3, 4), (3, 64)])
def test_over_an_epoch_no_class_is_favoured(kinds: int, size: int) -> None:
    classes = np.arange(600) % kinds
    plan = balanced(np.arange(600), classes, size, seed=0, epoch=0)
    totals = np.bincount(classes[np.concatenate(plan)], minlength=kinds)
    assert totals.max() - totals.min() <= kinds


def test_a_balanced_batch_must_hold_every_class() -> None:
    with pytest.raises(InputError, match="a balanced batch of 2 cannot hold each of the 3 classes"):
        balanced(np.arange(9), np.arange(9) % 3, 2, seed=0, epoch=0)


def test_balancing_needs_two_classes() -> None:
    with pytest.raises(InputError, match="two classes at least"):
        balanced(np.arange(4), np.array([1, 1, -1, 1]), 2, seed=0, epoch=0)


def test_plans_depend_on_seed_and_epoch_alone() -> None:
    rows, classes, counts = np.arange(50), np.arange(50) % 2, np.arange(50)

    def plans(seed: int, epoch: int) -> list[list[int]]:
        made = (
            shuffled(rows, 8, seed=seed, epoch=epoch),
            capped(rows, counts, 90, seed=seed, epoch=epoch),
            balanced(rows, classes, 8, seed=seed, epoch=epoch),
        )
        return [np.concatenate(plan).tolist() for plan in made]

    assert plans(3, 4) == plans(3, 4)
    for one, other in ((plans(3, 4), plans(3, 5)), (plans(3, 4), plans(4, 4))):
        assert all(a != b for a, b in zip(one, other, strict=True))


@given(world=st.integers(1, 5), seed=seeds)
def test_all_ranks_together_have_the_plan(world: int, seed: int) -> None:
    plan = shuffled(np.arange(33), 10, seed=seed, epoch=0)
    shares = [share(plan, rank, world) for rank in range(world)]
    for number, part in enumerate(plan):
        together = [row for of_rank in shares for row in of_rank[number].tolist()]
        assert sorted(together) == sorted(part.tolist())


@pytest.mark.parametrize("world", [1, 2, 3, 6])
def test_every_shard_has_one_owner(dataset: Dataset, world: int) -> None:
    parts = [owned(dataset, rank, world) for rank in range(world)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(60))
    first = np.concatenate(([0], np.cumsum(dataset.rows("series"))))
    for part in parts:
        for shard in set((np.searchsorted(first, part, side="right") - 1).tolist()):
            assert set(range(first[shard], first[shard + 1])) <= set(part.tolist())


@given(rows=st.lists(st.sampled_from(range(0, 60, 3)), max_size=10))
def test_a_held_dataset_gives_the_batches_of_the_mapped_one(dataset: Dataset, rows: list[int]) -> None:
    held = Held(dataset, dataset.split("train"), "cpu")
    asked = np.array(rows, dtype=np.int64)
    one, other = held.batch(asked), dataset.batch(asked)
    for name in Batch.__slots__:
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=0, atol=0, equal_nan=True)


def test_a_held_dataset_refuses_series_that_it_does_not_hold(dataset: Dataset) -> None:
    with pytest.raises(KeyError, match="row 1 is not among"):
        Held(dataset, dataset.split("train"), "cpu").batch(np.array([0, 1]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_dataset_held_on_the_accelerator_gives_the_same_batches(dataset: Dataset) -> None:
    rows = dataset.split("train")
    held = Held(dataset, rows, "cuda")
    for part in in_order(rows, 7):
        for name in Batch.__slots__:
            one, other = getattr(held.batch(part), name), getattr(dataset.batch(part), name)
            assert one.is_cuda
            torch.testing.assert_close(one.cpu(), other, rtol=0, atol=0, equal_nan=True)


def test_order_is_kept_for_predicting(tmp_path: Path) -> None:
    assert [part.tolist() for part in in_order(np.arange(5), 2)] == [[0, 1], [2, 3], [4]]
