"""Files of ours are opened as Python opens them, also where the program has put something in the place of `open`.

A test or a file system in memory may patch it while our threads read: it would see files that the program never
opened, count them, and hand us what is not there. What psutil reads for us goes through what stands there: the package
is the program's as well.
"""

from __future__ import annotations

import io

OPEN = io.open
"""Python's own, as it was when we were imported."""
