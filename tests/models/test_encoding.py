import math

import pytest
import torch

from seft.models.encoding import TimeEncoding


@pytest.mark.parametrize(
    ("dims", "both_ends", "scales"),
    [
        (4, True, [1.0, 100.0]),  # the released code with the paper's values for PhysioNet 2012
        (8, True, [1.0, 100 ** (1 / 3), 100 ** (2 / 3), 100.0]),
        (2, True, [1.0]),
        (4, False, [1.0, 10.0]),  # the paper's formula: t^(2k/τ), k < τ/2
        (8, False, [1.0, 100**0.25, 10.0, 100**0.75]),
    ],
)
def test_times_are_sines_and_then_cosines_of_each_scale(
    dims: int, both_ends: bool, scales: list[float]
) -> None:
    encoding = TimeEncoding(dims, 1.0, 100.0, both_ends)
    times = [0.0, 0.25, 47.0, -3.0]
    expected = [
        [*(math.sin(t / scale) for scale in scales), *(math.cos(t / scale) for scale in scales)]
        for t in times
    ]
    torch.testing.assert_close(encoding(torch.tensor(times)), torch.tensor(expected), rtol=1e-5, atol=1e-5)
