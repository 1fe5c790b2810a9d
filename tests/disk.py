"""A disk that is soon full."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MNT_DETACH = 2


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 300 KB at `folder`; the test skips where the machine does not let us mount one."""
    libc = ctypes.CDLL(None, use_errno=True)
    folder.mkdir()
    if os.geteuid() != 0 or libc.mount(b"none", bytes(folder), b"tmpfs", 0, b"size=300k") != 0:
        pytest.skip("needs the right to mount a small file system")
    try:
        yield folder
    finally:
        # Detached at once, also while a file of it is still mapped into memory; nothing stays mounted.
        assert libc.umount2(bytes(folder), MNT_DETACH) == 0
