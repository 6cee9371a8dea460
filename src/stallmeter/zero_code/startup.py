"""At the start of an interpreter: wait for the program to import what makes batches, and wrap it then.

Only the standard library is used, and nothing of the program's is imported: what it does not import is not wrapped.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ..engine.environment import is_asked, keep
from ..machine import binding

ITERATED = {
    "torch.utils.data.dataloader": ("DataLoader",),
    "torchdata.stateful_dataloader.stateful_dataloader": ("StatefulDataLoader",),
    # Its loaders are none of torch's, but make torch's iterators.
    "fastai.data.load": ("DataLoader",),
    # They ask the loader inside for one batch more than they have handed out: what the loop waits for is theirs.
    "accelerate.data_loader": ("DataLoaderShard", "DataLoaderDispatcher", "SkipDataLoader"),
}
"""Classes whose ``__iter__`` is wrapped, by the module that defines them."""

PIPELINES = {
    # What follows a WebLoader makes other batches of its loader's.
    "webdataset.pipeline": ("DataPipeline",),
    "torchdata.nodes.loader": ("Loader",),
    "grain._src.python.data_loader": ("DataLoader",),
    "grain._src.python.dataset.dataset": ("WithOptionsIterDataset",),
    "grain._src.python.dataset.transformations.batch": ("BatchIterDataset",),
    "grain._src.python.dataset.transformations.map": ("MapIterDataset",),
    "grain._src.python.dataset.transformations.prefetch": ("PrefetchIterDataset", "ThreadPrefetchIterDataset"),
    "grain._src.python.dataset.transformations.process_prefetch": ("ProcessPrefetchIterDataset",),
    "spdl.dataloader._dataloader": ("DataLoader",),
    "spdl.dataloader._pytorch_dataloader": ("PyTorchDataLoader",),
    "spdl.pipeline._pipeline": ("Pipeline",),
    "nvidia.dali.plugin.base_iterator": ("_DaliBaseIterator",),
    "ray.data.iterator": ("_IterableFromIterator",),
    # Batches without a loader.
    "datasets.arrow_dataset": ("Dataset.iter",),
    "datasets.iterable_dataset": ("IterableDataset.iter",),
}
"""The same of what is made of each other: what its own package iterates is a part of another one. A method may be named
that begins an iteration in the place of ``__iter__``."""

FRAMEWORKS = (
    "transformers.trainer",
    "keras.src.backend.torch.trainer",
    "keras.src.backend.tensorflow.trainer",
    "keras.src.backend.jax.trainer",
    "ignite.engine.engine",
)
"""Modules of frameworks that `frameworks` knows more of."""

OPTIMIZER = "torch.optim.optimizer"
"""Module of the class that each optimizer of torch is one of: from the first one on their steps are heard of."""

CALLING = ("torch.serialization", "accelerate.accelerator", "lightning.fabric.fabric", "lightning_fabric.fabric")
"""Modules with functions whose time `named` books under their names."""

WRAPPED = frozenset((*ITERATED, *PIPELINES, *FRAMEWORKS, *CALLING, OPTIMIZER))


def begin_if_asked() -> None:
    """Begin where the environment asks for it."""
    if is_asked():
        keep()
        binding.keep()
        begin()


def begin() -> None:
    """Wrap what stands in the modules of `WRAPPED` when they are imported, or at once where they have been."""
    from .patches import wrap

    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    for name in WRAPPED:
        module = sys.modules.get(name)
        if module is not None:
            wrap(module)


def end() -> None:
    """Wrap nothing any more, and take back what was wrapped."""
    from .patches import unwrap

    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    unwrap()


class _Finder:
    """Finds what the other finders find, and has the classes wrapped once their module has been executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in WRAPPED:
            return None
        for finder in sys.meta_path:
            if isinstance(finder, _Finder) or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
                return spec
        return None


class _Loader:
    """The loader of one module, for as long as it takes to execute it."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        spec.loader = self._own
        try:
            created: ModuleType | None = self._own.create_module(spec)
        finally:
            spec.loader = self  # type: ignore[assignment]
        return created

    def exec_module(self, module: ModuleType) -> None:
        from ..timing.tracebacks import let_out
        from .harmless import harmless
        from .patches import wrap

        module.__loader__ = self._own
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        try:
            self._own.exec_module(module)
        except BaseException as exc:
            let_out(exc)
            raise
        harmless(partial(wrap, module))
