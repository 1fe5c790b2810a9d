"""Values and statics brought to a common scale by statistics of the training series alone."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from seft.data.batch import Batch
from seft.data.schema import Schema


class Normaliser(nn.Module):
    """(x - mean) / sd of each modality and of each numeric static; unknown becomes 0, the mean.

    One-hot columns stay as they are. A modality that never varies is only centred.
    """

    mean: Tensor
    sd: Tensor
    static_mean: Tensor
    static_sd: Tensor

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        self._numeric = [not static.levels for static in schema.statics for _ in static.columns]
        self.register_buffer("mean", torch.zeros(schema.modalities))
        self.register_buffer("sd", torch.ones(schema.modalities))
        self.register_buffer("static_mean", torch.zeros(len(self._numeric)))
        self.register_buffer("static_sd", torch.ones(len(self._numeric)))

    def adapt(self, batches: Iterable[Batch]) -> None:
        """One pass: counts, sums and squares in float64, about the first value so that none cancels."""
        values = _Moments(len(self.mean))
        statics = _Moments(len(self.static_mean))
        for batch in batches:
            values.add(batch.modality.long(), batch.value)
            column = torch.arange(batch.static.shape[1], device=batch.static.device).expand_as(batch.static)
            known = ~batch.static.isnan()
            statics.add(column[known], batch.static[known])
        self.mean.copy_(values.mean())
        self.sd.copy_(values.sd())
        numeric = torch.tensor(self._numeric, dtype=torch.bool, device=self.mean.device)
        self.static_mean.copy_(torch.where(numeric, statics.mean().to(self.mean), 0))
        self.static_sd.copy_(torch.where(numeric, statics.sd().to(self.sd), 1))

    def value(self, batch: Batch) -> Tensor:
        """(N,)"""
        modality = batch.modality.long()
        return (batch.value - self.mean[modality]) / self.sd[modality]

    def static(self, static: Tensor) -> Tensor:
        """(B, S) -> (B, S)"""
        return ((static - self.static_mean) / self.static_sd).nan_to_num(0.0)


class _Moments:
    """Running count, mean and spread of several columns (Chan's way of joining parts)."""

    def __init__(self, columns: int) -> None:
        self._count = torch.zeros(columns, dtype=torch.float64)
        self._mean = torch.zeros(columns, dtype=torch.float64)
        self._square = torch.zeros(columns, dtype=torch.float64)

    def add(self, column: Tensor, value: Tensor) -> None:
        column, value = column.cpu(), value.cpu().double()
        count = torch.bincount(column, minlength=len(self._count)).double()
        total = torch.bincount(column, weights=value, minlength=len(self._count))
        mean = total / count.clamp(min=1)
        square = torch.bincount(column, weights=(value - mean[column]) ** 2, minlength=len(self._count))
        both = (self._count + count).clamp(min=1)
        apart = mean - self._mean
        self._square += square + apart**2 * self._count * count / both
        self._mean += apart * count / both
        self._count += count

    def mean(self) -> Tensor:
        return self._mean

    def sd(self) -> Tensor:
        """With n - 1, as the paper's code has it; 1 where a column varies by no more than rounding."""
        sd = (self._square / (self._count - 1).clamp(min=1)).sqrt()
        return torch.where(sd > 1e-6 * self._mean.abs().clamp(min=1e-6), sd, 1.0)
