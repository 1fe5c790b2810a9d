"""SeFT: a series as a set of observations, encoded one by one, weighed by attention, summed, classified.

Section 3 of the paper:

    s_j = [x(t_j), z_j, onehot(m_j)]                   an observation as a set element
    e_ji = [f'(S), s_j] W_i · Q_i / √d                 how much head i looks at it
    r_i = Σ_j softmax_j(e_ji) h(s_j)                   what head i sees
    logits = g([r_1 … r_m])

Statics enter as one more element, as in the paper's code, or go to g. A query takes the sums over what had
arrived by its time; between two queries observations are reduced at once, so work grows as O(N + Q), and
what is kept of a series while it streams does not grow.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import sqrt
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seft.data import ragged
from seft.data.batch import Batch, segment_of_row
from seft.data.schema import Schema
from seft.data.task import Task
from seft.models.base import Model, State
from seft.models.encoding import TimeEncoding
from seft.models.explanation import Explanation, rows_seen
from seft.models.hyperparameter import hyper
from seft.models.normaliser import Normaliser
from seft.models.pooling import Pooled, max_pool, softmax_pool, sum_pool


@dataclass(frozen=True, slots=True, kw_only=True)
class SeftConfig:
    """The paper's hyperparameters by the names of its appendix; where they are silent, fields of their own.

    phi is the paper's h, rho its g, psi its f'.
    """

    n_phi_layers: int = hyper(3, legal=(0, 20), search=(1, 2, 3, 4, 5))
    phi_width: int = hyper(64, legal=(1, 8192), search=(16, 32, 64, 128, 256, 512))
    phi_dropout: float = hyper(0.1, legal=(0.0, 0.95), search=(0.0, 0.1, 0.2, 0.3))
    latent_width: int = hyper(64, legal=(1, 8192), search=(32, 64, 128, 256, 512, 1024, 2048))
    n_rho_layers: int = hyper(2, legal=(0, 20), search=(1, 2, 3, 4, 5))
    rho_width: int = hyper(128, legal=(1, 8192), search=(16, 32, 64, 128, 256, 512))
    rho_dropout: float = hyper(0.1, legal=(0.0, 0.95), search=(0.0, 0.1, 0.2, 0.3))
    n_psi_layers: int = hyper(2, legal=(0, 20))
    psi_width: int = hyper(64, legal=(1, 8192))
    psi_latent_width: int = hyper(128, legal=(1, 8192))
    psi_final_layer: bool = hyper(True)  # one more layer after the mean: the released code has it
    n_heads: int = hyper(4, legal=(1, 256))
    dot_prod_dim: int = hyper(128, legal=(1, 8192))
    attn_dropout: float = hyper(0.1, legal=(0.0, 0.95), search=(0.0, 0.1, 0.25, 0.5))
    n_positional_dims: int = hyper(8, legal=(2, 1024), search=(4, 8, 16))
    # Hours; None: what the training times say.
    max_timescale: float | None = hyper(None, legal=(1e-9, 1e9), search=(10.0, 100.0, 1000.0))
    min_timescale: float | None = hyper(None, legal=(1e-9, 1e9))  # 1 hour in the paper
    timescale_both_ends: bool = hyper(True)  # the released code; the paper's formula leaves the largest out
    aggregation: Literal["attention", "mean", "sum", "max"] = "attention"
    # What f' sees of the set. With `set`, all that the query sees: linear keys then make it one constant for
    # all observations, which the softmax takes out again, so it is not computed. With `arrived`, what had
    # arrived with the observation's own moment, as the released code has it online: another function.
    keys: Literal["set", "arrived"] = "arrived"
    statics: Literal["element", "rho"] = "element"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeftState(State):
    """A series so far: the pooled elements, and the sum that the mean of f' is taken of."""

    level: Tensor  # (B, H)
    value: Tensor  # (B, H, latent)
    summary: Tensor  # (B, psi_latent) Σ psi(s_j)
    count: Tensor  # (B,) float32, how many elements that is
    static: Tensor  # (B, S) normalised, where g takes them; else (B, 0)


class Seft(Model):
    """Set functions with attention, the paper's own model."""

    Config: ClassVar[type[SeftConfig]] = SeftConfig
    causal: ClassVar[bool] = True
    constant_state: ClassVar[bool] = True

    def __init__(self, config: SeftConfig, schema: Schema, task: Task) -> None:
        super().__init__(config, schema, task)
        self.config: SeftConfig = config
        self._attends = config.aggregation == "attention"
        self._summarises = self._attends and config.keys == "arrived"
        heads = config.n_heads if self._attends else 1
        statics = len(schema.static_columns)
        element = config.n_positional_dims + 1 + schema.modalities
        self.normaliser = Normaliser(schema)
        self.time = TimeEncoding(
            config.n_positional_dims,
            config.min_timescale or 1.0,
            config.max_timescale or 100.0,
            config.timescale_both_ends,
        )
        self.phi = nn.Sequential(
            *_hidden(element, config.n_phi_layers, config.phi_width, config.phi_dropout),
            *_hidden(config.phi_width if config.n_phi_layers else element, 1, config.latent_width),
        )
        self._has_static_element = config.statics == "element" and statics > 0
        if self._has_static_element:
            self.static_element = nn.Sequential(
                _linear(statics, config.phi_width, "linear"),
                nn.ReLU(),
                _linear(config.phi_width, element, "linear"),
            )
        if self._attends:
            summary = config.psi_latent_width if self._summarises else 0
            self.key = nn.Parameter(torch.empty(element + summary, heads, config.dot_prod_dim))
            bound = sqrt(6 / (element + config.psi_latent_width))  # He, of the paper's [f'(S), s_j]
            nn.init.uniform_(self.key, -bound, bound)
            self.query = nn.Parameter(torch.zeros(heads, config.dot_prod_dim))
        if self._summarises:
            self.psi = nn.Sequential(
                *_hidden(element, config.n_psi_layers, config.psi_width),
                *_hidden(config.psi_width if config.n_psi_layers else element, 1, config.psi_latent_width),
            )
            final = _hidden(config.psi_latent_width, 1, config.psi_latent_width)
            self.psi_final = nn.Sequential(*(final if config.psi_final_layer else ()))
        pooled = heads * config.latent_width + (0 if self._has_static_element else statics)
        self.rho = nn.Sequential(
            *_hidden(pooled, config.n_rho_layers, config.rho_width, config.rho_dropout),
            _linear(config.rho_width if config.n_rho_layers else pooled, task.outputs, "linear"),
        )

    # --- before the first step -----------------------------------------------------------------------

    def adapt(self, batches: Iterable[Batch]) -> None:
        times = _TimesSeen()
        self.normaliser.adapt(times.watch(batch) for batch in batches)
        low, high = times.scales()
        self.time.set_scales(self.config.min_timescale or low, self.config.max_timescale or high)

    # --- explaining ----------------------------------------------------------------------------------

    def explain(self, batch: Batch, query: int, orders: int = 64, seed: int = 0) -> Explanation:
        """Shapley values, and the attention that each head gives to each observation."""
        made = super().explain(batch, query, orders, seed)
        return replace(made, attention=self.attention(batch, query)) if self._attends else made

    @torch.no_grad()
    def attention(self, batch: Batch, query: int) -> Tensor:
        """(N, H) what each head gives to each row that the query sees; the rest goes to the statics."""
        rows = rows_seen(batch, query)
        series = int(segment_of_row(batch.query_offsets)[query])
        state = self.start(batch.static)
        element = self._elements(batch)
        summary, _ = self._summaries(state, batch, element)
        logits = self._logits(element, summary)[rows]
        return torch.cat([state.level[series][None], logits]).softmax(0)[1:]

    # --- answering -----------------------------------------------------------------------------------

    def forward(self, batch: Batch) -> Tensor:
        intervals = ragged.between_queries(batch.offsets, batch.query_visible, batch.query_offsets)
        state = self.start(batch.static)
        pooled, _ = self._pool(state, batch, intervals)
        return self._read_out(pooled.value, state.static[segment_of_row(batch.query_offsets)])

    def start(self, static: Tensor) -> SeftState:
        config, count = self.config, static.shape[0]
        known = self.normaliser.static(static)
        heads = config.n_heads if self._attends else 1
        summary = config.psi_latent_width if self._summarises else 0
        nothing = known.new_full((count, heads), -torch.inf)
        if not self._has_static_element:
            return SeftState(
                level=nothing,
                value=known.new_zeros(count, heads, config.latent_width),
                summary=known.new_zeros(count, summary),
                count=known.new_zeros(count),
                static=known,
            )
        element = self.static_element(known)
        summed = self.psi(element) if self._summarises else known.new_zeros(count, 0)
        level = self._drop(self._logits(element, summed)) if self._attends else torch.zeros_like(nothing)
        value = self.phi(element)[:, None].expand(-1, heads, -1)
        return SeftState(
            level=level,
            value=torch.where((level == -torch.inf)[..., None], 0, value),
            summary=summed,
            count=known.new_ones(count),
            static=known[:, :0],
        )

    def step(self, state: State, new: Batch) -> tuple[SeftState, Tensor]:
        assert isinstance(state, SeftState)
        # One query more a series, which sees all of `new` and is asked what to carry on.
        shift = torch.arange(len(new) + 1, device=new.offsets.device)
        series = segment_of_row(new.query_offsets)
        asked = torch.arange(new.queries, device=series.device) + series
        last = new.query_offsets[1:] + shift[:-1]
        visible = new.offsets.new_empty(new.queries + len(new))
        visible.index_copy_(0, asked, new.query_visible).index_copy_(0, last, new.offsets.diff())
        intervals = ragged.between_queries(new.offsets, visible, new.query_offsets + shift)
        pooled, summed = self._pool(state, new, intervals)
        carried = SeftState(
            level=pooled.level[last],
            value=pooled.value[last],
            summary=summed,
            count=state.count + new.offsets.diff(),
            static=state.static,
        )
        return carried, self._read_out(pooled.value[asked], state.static[series])

    def _pool(self, state: SeftState, batch: Batch, intervals: ragged.Intervals) -> tuple[Pooled, Tensor]:
        """What each query has seen, and each series' sum for f' after all of the batch."""
        element = self._elements(batch)
        values = self.phi(element)
        carry = Pooled(state.level, state.value)
        if self.config.aggregation == "sum":
            return sum_pool(values, intervals, carry), state.summary
        if self.config.aggregation == "max":
            return max_pool(values, intervals, carry), state.summary
        if self.config.aggregation == "mean":
            logits = values.new_zeros(values.shape[0], 1)
            return softmax_pool(logits, values, intervals, carry), state.summary
        summary, summed = self._summaries(state, batch, element)
        logits = self._drop(self._logits(element, summary))
        return softmax_pool(logits, values, intervals, carry), summed

    def _elements(self, batch: Batch) -> Tensor:
        """(N, element): [sin, cos, value, one-hot modality]."""
        modality = F.one_hot(batch.modality.long(), self.schema.modalities)
        value = self.normaliser.value(batch)
        return torch.cat([self.time(batch.time), value[:, None], modality.to(value.dtype)], dim=1)

    def _summaries(self, state: SeftState, batch: Batch, element: Tensor) -> tuple[Tensor, Tensor]:
        """(N, psi_latent) the mean that f' takes, over what had arrived with each row's moment."""
        if not self._summarises:
            return element[:, :0], state.summary
        rows = segment_of_row(batch.offsets)
        last = torch.ones_like(rows, dtype=torch.bool)
        last[:-1] = (rows[1:] != rows[:-1]) | (batch.moment[1:] != batch.moment[:-1])
        end = last.nonzero()[:, 0]  # the last row of each moment
        series = rows[end]
        moments = F.pad(torch.bincount(series, minlength=len(batch)).cumsum(0), (1, 0))
        seen = end + 1 - batch.offsets[series]
        arrived = ragged.cumulative_sum(
            self.psi(element), ragged.between_queries(batch.offsets, seen, moments)
        )
        arrived = ragged.segment_repeat(state.summary, moments) + arrived
        mean = arrived / (state.count[series] + seen)[:, None]
        summed = state.summary.clone()
        present = batch.offsets.diff() > 0
        summed[present] = arrived[moments[1:][present] - 1]
        return ragged.segment_repeat(mean, F.pad(end + 1, (1, 0))), summed

    def _logits(self, element: Tensor, summary: Tensor) -> Tensor:
        """e_ji = [f', s_j] W_i · Q_i / √d; W and Q meet first, for neither depends on j."""
        weight = torch.einsum("ehd,hd->eh", self.key, self.query) / sqrt(self.config.dot_prod_dim)
        width = element.shape[1]
        logits = element @ weight[:width]
        return logits + self.psi_final(summary) @ weight[width:] if self._summarises else logits

    def _drop(self, logits: Tensor) -> Tensor:
        """Attention dropout removes elements from the softmax of a head; nothing is rescaled."""
        if not self.training or self.config.attn_dropout == 0:
            return logits
        dropped = torch.rand_like(logits) < self.config.attn_dropout
        return logits.masked_fill(dropped, -torch.inf)

    def _read_out(self, pooled: Tensor, static: Tensor) -> Tensor:
        """(Q, H, latent), (Q, S) -> (Q, C)"""
        logits: Tensor = self.rho(torch.cat([pooled.flatten(1), static], dim=1))
        return logits


class _TimesSeen:
    """What the training times say of their own scale."""

    def __init__(self) -> None:
        self._last: list[Tensor] = []
        self._gaps: list[Tensor] = []

    def watch(self, batch: Batch) -> Batch:
        rows = segment_of_row(batch.offsets)
        gap = batch.time.diff()[rows[1:] == rows[:-1]]
        self._gaps.append(gap[gap > 0].cpu())
        last = batch.offsets[1:][batch.offsets.diff() > 0] - 1
        self._last.append(batch.time[last].cpu())
        return batch

    def scales(self) -> tuple[float, float]:
        """From the usual gap between two moments to the length of a long series."""
        gaps, last = torch.cat(self._gaps), torch.cat(self._last)
        if not len(gaps):
            return 1.0, 100.0
        low = float(gaps.double().median())
        high = float(last.double().clamp(min=0).quantile(0.95)) if len(last) else 0.0
        return low, max(high, 10 * low)


def _hidden(width_in: int, layers: int, width: int, dropout: float = 0.0) -> Iterable[nn.Module]:
    """Layers of Linear, ReLU and, if any, Dropout."""
    for a, b in pairwise([width_in, *[width] * layers]):
        yield _linear(a, b, "relu")
        yield nn.ReLU()
        if dropout:
            yield nn.Dropout(dropout)


def _linear(width_in: int, width: int, follows: Literal["relu", "linear"]) -> nn.Linear:
    """He's initialisation before a ReLU, Glorot's elsewhere, biases 0: as the released code has it."""
    layer = nn.Linear(width_in, width)
    if follows == "relu":
        nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    else:
        nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
