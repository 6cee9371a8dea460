"""Python imports this at its start where ``stallmeter run`` has put this folder into ``PYTHONPATH``.

It stands in the place of another ``sitecustomize``, which is run first. Programs of other interpreters meet it, too: it
is written so that Python 2.7 can read it, and begins nothing where stallmeter itself could not be read.
"""

import os
import sys


def _next():
    # type: () -> None
    """Take this folder from the path, and become the ``sitecustomize`` that would have been found without it."""
    here = os.path.realpath(os.path.dirname(__file__))  # noqa: PTH120 - in every process: pathlib takes 5 ms to import
    sys.path[:] = [entry for entry in sys.path if not entry or os.path.realpath(entry) != here]
    if sys.version_info < (3, 5):  # noqa: UP036 - see above
        import imp

        try:  # noqa: SIM105
            imp.load_module("sitecustomize", *imp.find_module("sitecustomize", sys.path))
        except ImportError:
            pass
        return
    import importlib.machinery
    import importlib.util

    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


try:
    _next()
finally:
    if sys.version_info >= (3, 10) and os.environ.get("STALLMETER", "0") not in ("", "0"):
        try:
            from stallmeter.zero_code.startup import begin_if_asked
        except ImportError:  # another interpreter than the one that stallmeter is installed for
            pass
        else:
            begin_if_asked()
