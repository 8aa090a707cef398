"""Start-up: importing the library and listing families, medians over fresh processes.

python -m benchmarks.startup
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

RESULTS = Path(__file__).parent / "results" / "startup.json"


def import_seconds() -> float:
    """Cumulative import time of rm_plugins, as the interpreter reports it."""
    command = [sys.executable, "-X", "importtime", "-c", "import rm_plugins"]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    line = next(line for line in report.splitlines() if line.rstrip().endswith("| rm_plugins"))
    return int(line.split("|")[1]) / 1e6


def list_seconds() -> float:
    """Wall time of the whole `rm-plugins list` process."""
    command = shutil.which("rm-plugins", path=str(Path(sys.executable).parent)) or "rm-plugins"
    started = time.perf_counter()
    subprocess.run([command, "list"], capture_output=True, check=True)
    return time.perf_counter() - started


def repeat(measure: Callable[[], float], times: int = 9) -> float:
    """Median in milliseconds."""
    return round(1000 * median(measure() for _ in range(times)), 1)


def main() -> None:
    """Measures and writes the JSON that the README shows."""
    rows = [
        {"what": "import rm_plugins", "milliseconds": repeat(import_seconds), "limit": 100},
        {"what": "rm-plugins list", "milliseconds": repeat(list_seconds), "limit": 700},
    ]
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    sys.stdout.write(RESULTS.read_text())


if __name__ == "__main__":
    main()
