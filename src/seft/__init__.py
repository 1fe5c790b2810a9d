"""Set functions for time series that are irregular and unaligned. Research software, not a medical device."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from seft.error import InputError

if TYPE_CHECKING:
    from seft.data.batch import Batch
    from seft.data.dataset import Dataset
    from seft.data.dataset import open_dataset as open  # noqa: A004, seft.open reads as it should
    from seft.estimator import Classifier, series
    from seft.models.predictor import Predictor
    from seft.training.run import load

__version__ = "0.1.0"

__all__ = ["Batch", "Classifier", "Dataset", "InputError", "Predictor", "load", "open", "series"]

# Where the names live that are imported when first asked for: torch takes a second, and preparing data or
# asking for help needs none of it.
_HOMES = {
    "Batch": ("seft.data.batch", "Batch"),
    "Classifier": ("seft.estimator", "Classifier"),
    "Dataset": ("seft.data.dataset", "Dataset"),
    "Predictor": ("seft.models.predictor", "Predictor"),
    "load": ("seft.training.run", "load"),
    "open": ("seft.data.dataset", "open_dataset"),
    "series": ("seft.estimator", "series"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'seft' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)
