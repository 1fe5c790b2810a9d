from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seft.error import InputError
from seft.training import checkpoint
from tests.disk import small_disk


@given(st.dictionaries(st.sampled_from(["a", "b.c"]), st.integers(0, 5), min_size=1), st.integers(0, 9))
def test_what_is_saved_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, sizes: dict[str, int], epoch: int
) -> None:
    file = tmp_path_factory.mktemp("checkpoint") / "c.safetensors"
    parts = {part: {name: torch.randn(size, 2) for name, size in sizes.items()} for part in ("model", "best")}
    checkpoint.save(file, parts, {"epoch": epoch, "best": -float("inf")})
    loaded, state = checkpoint.load(file)
    assert state == {"epoch": epoch, "best": -float("inf")}
    for part, tensors in parts.items():
        assert loaded[part].keys() == tensors.keys()
        assert all(torch.equal(loaded[part][name], tensor) for name, tensor in tensors.items())


def test_an_optimizer_goes_on_from_its_tensors() -> None:
    def train(layer: torch.nn.Linear, optimizer: torch.optim.Optimizer, steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            layer(torch.ones(1, 2)).sum().backward()
            optimizer.step()

    torch.manual_seed(0)
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    train(layer, optimizer, 3)
    copy = torch.nn.Linear(2, 2)
    copy.load_state_dict(layer.state_dict())
    again = torch.optim.AdamW(copy.parameters(), lr=0.1)
    checkpoint.restore_optimizer(again, checkpoint.optimizer_tensors(optimizer))
    train(layer, optimizer, 3)
    train(copy, again, 3)
    assert torch.equal(copy.weight, layer.weight)


def test_on_a_full_disk_the_checkpoint_before_survives(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        file = disk / "c.safetensors"
        checkpoint.save(file, {"model": {"w": torch.ones(1000)}}, {"epoch": 1})
        with pytest.raises(OSError, match="No space left on device"):
            checkpoint.save(file, {"model": {"w": torch.ones(1_000_000)}}, {"epoch": 2})
        parts, state = checkpoint.load(file)
        assert (state["epoch"], parts["model"]["w"].sum().item()) == (1, 1000)
        assert [path.name for path in disk.iterdir()] == ["c.safetensors"]


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "])
def test_a_damaged_checkpoint_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=r"c.safetensors: is damaged .*remove it to start the run over"):
        checkpoint.load(tmp_path / "c.safetensors")
