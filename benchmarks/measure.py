"""How everything here is measured: interleaved, several times, with its spread, on a named machine."""

import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import seft

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"


@dataclass(frozen=True, slots=True)
class Seconds:
    """Repeated timings of one thing."""

    taken: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.taken)

    @property
    def spread(self) -> float:
        """Half the range between the quartiles, as a share of the median."""
        low, _, high = statistics.quantiles(self.taken, n=4, method="inclusive")
        return (high - low) / 2 / self.median


def interleaved(things: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Seconds]:
    """Time all of them in turn, round after round, so that a slow minute hits each alike; one warm-up."""
    taken: dict[str, list[float]] = {name: [] for name in things}
    for number in range(rounds + 1):
        for name, thing in things.items():
            begin = time.perf_counter()
            thing()
            if number:
                taken[name].append(time.perf_counter() - begin)
    return {name: Seconds(tuple(values)) for name, values in taken.items()}


def ratio(slow: Seconds, fast: Seconds) -> tuple[float, str]:
    """How many times faster, round by round: the median, and the range from worst to best."""
    ratios = [a / b for a, b in zip(slow.taken, fast.taken, strict=True)]
    return statistics.median(ratios), f"{min(ratios):.1f} … {max(ratios):.1f}"


def peak_memory(arguments: list[str]) -> float:
    """The most memory that a command held, in bytes, from the kernel's own count."""
    process = subprocess.Popen(arguments)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, arguments)
    return usage.ru_maxrss * 1024.0


def machine() -> str:
    """What stands above every table of figures."""
    names = re.findall(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    cpu = names[0] if names else platform.processor()
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    return (
        f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"seft {seft.__version__} at {commit or 'no commit'}"
    )
