"""Which series train, which choose, which judge: by group, stratified, deterministic."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seft.error import InputError

FRACTIONS: Mapping[str, float] = {"train": 0.64, "val": 0.16, "test": 0.2}  # the paper's: 80/20, twice


def split(
    groups: Sequence[str] | NDArray[np.str_],
    strata: Sequence[int] | NDArray[np.int64],
    *,
    seed: int = 0,
    fractions: Mapping[str, float] = FRACTIONS,
) -> NDArray[np.str_]:
    """(B,) the split of each series; series of one group stay together.

    A group counts to the largest stratum among its series. The answer depends on the names of the groups
    and the seed alone, not on the order of the rows.
    """
    if seed < 0:
        raise InputError(f"--seed is {seed}; it must not be negative")
    name, group = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
    stratum = np.full(len(name), np.iinfo(np.int64).min)
    np.maximum.at(stratum, group, np.asarray(strata, dtype=np.int64))
    order = np.random.default_rng(seed).permutation(len(name))
    order = order[np.argsort(stratum[order], kind="stable")]
    splits = np.array(list(fractions))
    assigned = np.empty(len(name), dtype=splits.dtype)
    # One stratum after the other, each group to the split that is furthest behind its share: every stretch
    # of the order is divided by the fractions, so strata are, and small ones do not all round the same way.
    share = np.array(list(fractions.values())) / sum(fractions.values())
    behind = np.zeros(len(splits))
    for member in order.tolist():
        behind += share
        chosen = int(behind.argmax())
        behind[chosen] -= 1
        assigned[member] = splits[chosen]
    return assigned[group]


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperSplit:
    """The paper's split of a PhysioNet challenge: a stratified fifth for the test, then for validation.

    It is drawn anew and not shipped. The order of the series and the legacy generator are part of its
    definition: with them, the authors' seed gives the authors' lists, to the last name.
    """

    series: int  # how many there are
    seed: int
    sha256: str  # of the sorted lines 'NAME SPLIT'

    def assign(self, labels: Mapping[str, int], own_seed: int | None = None) -> dict[str, str]:
        """The split of each series; `own_seed` asks for a split of our own, of whatever is there."""
        strata = np.array(list(labels.values()))
        if own_seed is not None:
            return dict(zip(labels, split(list(labels), strata, seed=own_seed).tolist(), strict=True))
        if len(labels) != self.series:
            raise InputError(
                f"the paper's split is one of all {self.series:,} stays and {len(labels):,} are here; "
                "add the others, or pass --splits own for a split of these"
            )
        assigned = dict(zip(labels, self._draw(strata).tolist(), strict=True))
        lines = "\n".join(f"{name} {part}" for name, part in sorted(assigned.items()))
        if hashlib.sha256(lines.encode()).hexdigest() != self.sha256:
            raise InputError(
                "the stays or their labels are not those of the paper, so its split cannot be drawn; "
                "fetch the files again, or pass --splits own"
            )
        return assigned

    def _draw(self, strata: NDArray[np.int64]) -> NDArray[np.str_]:
        # Not at the top: it takes a second to import, and only the two challenges need it.
        from sklearn.model_selection import train_test_split

        generator = np.random.RandomState(self.seed)
        everyone = np.arange(len(strata))
        rest, test = train_test_split(everyone, stratify=strata, test_size=0.2, random_state=generator)
        train, val = train_test_split(rest, stratify=strata[rest], test_size=0.2, random_state=generator)
        assigned = np.empty(len(strata), dtype="<U5")
        for name, rows in (("train", train), ("val", val), ("test", test)):
            assigned[rows] = name
        return assigned
