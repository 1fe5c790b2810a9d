"""Times as sines and cosines of several wavelengths."""

import torch
from torch import Tensor, nn


class TimeEncoding(nn.Module):
    """t -> [sin(t / T_k), cos(t / T_k)], k < dims / 2, with scales T_k in a geometric progression.

    As the paper has it, T_k = low (high / low)^(2k / dims), the largest scale left out; with `both_ends`
    as its released code has it, evenly from low to high.
    """

    scale: Tensor

    def __init__(self, dims: int, low: float, high: float, both_ends: bool) -> None:
        super().__init__()
        self._dims, self._both_ends = dims, both_ends
        self.register_buffer("scale", torch.ones(dims // 2))
        self.set_scales(low, high)

    def set_scales(self, low: float, high: float) -> None:
        """Hours; the wavelengths are 2π times the scales."""
        half = self._dims // 2
        if self._both_ends:
            exponent = torch.linspace(0, 1, half, dtype=torch.float64)
        else:
            exponent = torch.arange(half, dtype=torch.float64) * 2 / self._dims
        self.scale.copy_(low * (high / low) ** exponent)

    def forward(self, time: Tensor) -> Tensor:
        """(N,) -> (N, dims)"""
        angle = time[:, None] / self.scale
        return torch.cat([angle.sin(), angle.cos()], dim=1)
