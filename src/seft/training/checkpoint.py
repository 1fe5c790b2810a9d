"""All of a training that must survive a kill, in one file that is replaced at once."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor
from torch.optim import Optimizer

from seft.error import InputError

Tensors = dict[str, Tensor]


def save(path: Path, parts: dict[str, Tensors], state: dict[str, Any]) -> None:
    """Named groups of tensors and plain JSON; the file before stays until this one is whole."""
    tensors = {f"{part}/{name}": t for part, group in parts.items() for name, t in group.items()}
    whole = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    unfinished = path.with_suffix(".writing")
    try:
        # Not save_file, whose error on a full disk is its own kind and not the system's.
        unfinished.write_bytes(serialise(whole, metadata={"state": json.dumps(state)}))
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def load(path: Path) -> tuple[dict[str, Tensors], dict[str, Any]]:
    """What `save` wrote."""
    parts: dict[str, Tensors] = {}
    try:
        with safe_open(path, framework="pt") as file:
            state = json.loads(file.metadata()["state"])
            for key in file.keys():  # noqa: SIM118, it is no mapping
                part, name = key.split("/", 1)
                parts.setdefault(part, {})[name] = file.get_tensor(key)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: is damaged ({error}); remove it to start the run over") from None
    return parts, state


def optimizer_tensors(optimizer: Optimizer) -> Tensors:
    """The optimizer's running means, by number of the parameter."""
    found: Tensors = {}
    for number, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            found[f"{number}.{name}"] = torch.as_tensor(value)
    return found


def restore_optimizer(optimizer: Optimizer, tensors: Tensors) -> None:
    state: dict[int, Tensors] = {}
    for key, value in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
