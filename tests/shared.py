"""Real recordings that tests measure against; where they are absent those tests skip and say so."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def shared_data(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"needs the real recordings: {name} is not in ../shared/data")
    return path
