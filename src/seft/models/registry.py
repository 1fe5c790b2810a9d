"""The models by their names; a name is that of the file. Imported when asked for."""

from difflib import get_close_matches
from importlib import import_module

from seft.error import InputError
from seft.models.base import Model

MODELS = {"seft": "Seft"}


def model_class(name: str) -> type[Model]:
    """The class of a model."""
    if name not in MODELS:
        near = get_close_matches(name, MODELS, n=3) or list(MODELS)
        raise InputError(f"there is no model {name!r}; did you mean {' or '.join(near)}?")
    found: type[Model] = getattr(import_module(f"seft.models.{name}"), MODELS[name])
    return found
