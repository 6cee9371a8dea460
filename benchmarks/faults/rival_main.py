"""A run as a plain script, for a rival's launcher takes a path, not a module; its argument is the request's path."""

from __future__ import annotations

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from benchmarks.faults import child

    request = json.loads(Path(sys.argv[1]).read_text())
    child.write(child.run(request), Path(request["result"]))
