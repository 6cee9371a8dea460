"""`run_case` as a plain script: a rival's launcher takes a path, not a module."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from benchmarks.faults.run_case import main

    main()
