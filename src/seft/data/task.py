"""What is predicted: the kind of answer, its loss, the name of its metric."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["binary", "multiclass", "multilabel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A value kept with the dataset; nothing about the task is ever guessed from a shape.

    `classes` are (negative, positive) of a binary task, the classes of a multiclass one, and the labels
    of a multilabel one.
    """

    kind: Kind
    classes: tuple[str, ...]
    metric: str  # the metric that training stops on and searches by
    utility: bool = False  # whether the utility of the 2019 challenge is declared for it

    @property
    def outputs(self) -> int:
        """C, the number of logits a query."""
        return 1 if self.kind == "binary" else len(self.classes)

    @property
    def label_columns(self) -> tuple[str, ...]:
        """Its columns in the table of queries: one a label of a multilabel task, else one."""
        if self.kind == "multilabel":
            return tuple(f"label_{name}" for name in self.classes)
        return ("label",)

    def encode(self, label: NDArray[np.float32]) -> NDArray[np.float32]:
        """(Q, L) label columns as stored to (Q, C): a class number becomes its one-hot row."""
        if self.kind != "multiclass":
            return label
        scored = ~np.isnan(label[:, 0])
        encoded = np.full((len(label), self.outputs), np.nan, np.float32)
        encoded[scored] = np.eye(self.outputs, dtype=np.float32)[label[scored, 0].astype(np.int64)]
        return encoded

    def positives(self, label: NDArray[np.float32]) -> dict[str, int]:
        """How many of the (Q, L) stored labels are of each class, the negative one of two left out."""
        if self.kind == "multiclass":
            classes = label[~np.isnan(label[:, 0]), 0].astype(np.int64)
            counts = np.bincount(classes, minlength=len(self.classes))
            return dict(zip(self.classes, counts.tolist(), strict=True))
        names = self.classes[1:] if self.kind == "binary" else self.classes
        return dict(zip(names, (label == 1).sum(0).tolist(), strict=True))

    def loss(
        self, logits: "Tensor", label: "Tensor", class_weights: "Tensor | None" = None
    ) -> tuple["Tensor", "Tensor"]:
        """(Q, C) logits and labels to the sum of the losses and the number of scored labels.

        Their quotient is the loss; kept apart so that several processes can add both up first.
        `class_weights`, one a class, multiply the losses of the labels of that class.
        """
        # Not at the top: preparing needs tasks, but not the second that importing torch takes.
        from torch.nn import functional

        if self.kind == "multiclass":
            scored = ~label.isnan().any(1)
            target = label[scored]
            loss = functional.cross_entropy(logits[scored], target, reduction="none")
            weight = None if class_weights is None else target @ class_weights
        else:
            scored = ~label.isnan()
            target = label[scored]
            loss = functional.binary_cross_entropy_with_logits(logits[scored], target, reduction="none")
            weight = None if class_weights is None else class_weights[target.long()]
        return (loss if weight is None else loss * weight).sum(), scored.sum()

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"classes": list(self.classes)}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "Task":
        return cls(**(record | {"classes": tuple(record["classes"])}))
