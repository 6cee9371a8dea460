"""Python imports this at its start where ``stallmeter run`` has put this folder into ``PYTHONPATH``.

It stands in the place of another ``sitecustomize``, which is run first.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _next() -> None:
    """Take this folder from the path, and become the ``sitecustomize`` that would have been found without it."""
    here = os.path.realpath(os.path.dirname(__file__))  # noqa: PTH120 - in every process: pathlib takes 5 ms to import
    sys.path[:] = [entry for entry in sys.path if not entry or os.path.realpath(entry) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


try:
    _next()
finally:
    if os.environ.get("STALLMETER", "0") not in ("", "0"):
        try:
            from stallmeter.zero_code.startup import begin_if_asked
        except ImportError:  # another interpreter than the one that stallmeter is installed for
            pass
        else:
            begin_if_asked()
