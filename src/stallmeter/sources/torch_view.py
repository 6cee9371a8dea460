"""PyTorch's own view: its allocator, and how it is set to compute. Nothing here initialises CUDA or waits for it."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..machine.installed import torch_version
from ..records import AllocatorSample, OptimizerInfo

MAX_COMPILED = 10_000
"""Most modules that are asked whether they are compiled."""

FUSED = frozenset(("Adagrad", "Adam", "AdamW", "SGD"))
"""Optimizers of torch that can update many tensors in one call on a CPU, from `FUSES` on."""

HALF = ("bfloat16", "float16")
"""Types of 16 bits that weights may have."""

DOUBLE = ("float64", "complex128")
"""Types of 64 bits, and of two such numbers."""

FUSES = (2, 4)
"""Version of torch: https://github.com/pytorch/pytorch/releases/tag/v2.4.0, fused optimizers on the CPU."""


class AllocatorSource:
    """Samples the caching allocator of each CUDA device that this process has memory on.

    Args:
        modules: Where torch is looked for; it is never imported.
    """

    name = "allocator"

    def __init__(self, modules: Any = None) -> None:
        self._modules = sys.modules if modules is None else modules

    def sample(self, time_s: float) -> Sequence[AllocatorSample]:
        """Return one sample for each device in use: counters that the allocator keeps anyway.

        Args:
            time_s: Unix time of this poll.
        """
        cuda = getattr(self._modules.get("torch"), "cuda", None)
        if cuda is None or not cuda.is_initialized():
            return ()
        found = (_sample(time_s, index, _stats(cuda, index)) for index in range(cuda.device_count()))
        return [sample for sample in found if sample.reserved_peak_bytes]

    def close(self) -> None:
        """Nothing is held."""


def _stats(cuda: Any, index: int) -> Mapping[str, Any]:
    return cuda.memory_stats_as_nested_dict(index) or {}


def _sample(time_s: float, index: int, stats: Mapping[str, Any]) -> AllocatorSample:
    def of(name: str, which: str) -> int | None:
        value = stats.get(name, {}).get("all", {}).get(which)
        return None if value is None else int(value)

    return AllocatorSample(
        time_s=time_s,
        index=index,
        allocated_bytes=of("allocated_bytes", "current"),
        allocated_peak_bytes=of("allocated_bytes", "peak"),
        reserved_bytes=of("reserved_bytes", "current"),
        reserved_peak_bytes=of("reserved_bytes", "peak"),
        alloc_retries=stats.get("num_alloc_retries"),
        ooms=stats.get("num_ooms"),
    )


def numeric_facts(modules: Any = None) -> dict[str, Any] | None:
    """Return how PyTorch is set to compute in the calling thread; None when the program has not imported it.

    Returns:
        ``tf32_matmul`` and ``tf32_cudnn`` (may single-precision products use TF32), ``float32_matmul_precision``
        (``highest``, ``high`` or ``medium``) and ``autocast`` (dtype of an autocast context around all of it, or None).
    """
    torch = (sys.modules if modules is None else modules).get("torch")
    if torch is None or not hasattr(torch, "backends"):
        return None
    return {
        "tf32_matmul": _flag(lambda: torch.backends.cuda.matmul.allow_tf32),
        "tf32_cudnn": _flag(lambda: torch.backends.cudnn.allow_tf32),
        "float32_matmul_precision": _flag(lambda: torch.get_float32_matmul_precision()),
        "autocast": _flag(lambda: str(torch.get_autocast_gpu_dtype()) if torch.is_autocast_enabled() else None),
    }


def _flag(read: Any) -> Any:
    # PyTorch 2.9 has a second way to set these; once that is used, reading the first raises RuntimeError.
    try:
        return read()
    except (RuntimeError, AttributeError):
        return None


def model_facts(module: Any) -> dict[str, Any]:
    """Return what a model computes with.

    Args:
        module: The whole model, a ``torch.nn.Module``.

    Returns:
        ``parameters`` (their number), ``parameter_dtypes`` (number of parameters by dtype) and ``compiled``: ``whole``,
        ``parts`` or ``no``.
    """
    dtypes: Counter[str] = Counter()
    for parameter in module.parameters():
        if type(parameter).__name__ == "UninitializedParameter":  # of a lazy module: it has no size yet
            continue
        dtypes[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    return {"parameters": sum(dtypes.values()), "parameter_dtypes": dict(dtypes), "compiled": _compiled(module)}


def optimizer_info(optimizer: Any) -> OptimizerInfo | None:
    """Return how an optimizer is set up; None of one that has no groups of parameters. Of no tensor a value is read.

    Args:
        optimizer: A ``torch.optim.Optimizer``, or what a framework wraps around one.
    """
    own = getattr(optimizer, "optimizer", optimizer)
    kind, groups, defaults = type(own), getattr(own, "param_groups", None), getattr(own, "defaults", {})
    if not groups:
        return None
    parameters = [parameter for group in groups for parameter in group["params"]]
    of_torch = kind.__module__.startswith("torch.optim.") and kind.__name__ in FUSED and "fused" in defaults
    numbers = _numbers(parameters)
    half, half_share = _half(Counter({kind: number for (device, kind), number in numbers.items() if device == "cpu"}))
    suits = all(p.device.type == "cpu" and p.is_floating_point() for p in parameters)
    return OptimizerInfo(
        time_s=time.time(),
        kind=kind.__name__,
        tensors=len(parameters),
        fused=any(group.get("fused") for group in groups),
        may_fuse=of_torch and suits and not defaults.get("differentiable") and torch_version() >= FUSES,
        half=half,
        half_share=half_share,
        double_share=_share(numbers, *((device, kind) for device, kind in numbers if kind in DOUBLE)),
    )


def _numbers(parameters: Iterable[Any]) -> Counter[tuple[str, str]]:
    """Count numbers by the kind of their device and by their type, as far as parameters have any yet."""
    found: Counter[tuple[str, str]] = Counter()
    for parameter in parameters:
        if type(parameter).__name__ != "UninitializedParameter":
            found[parameter.device.type, str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    return found


def _half(numbers: Counter[str]) -> tuple[str, float]:
    """Return the type of 16 bits that most numbers have of those with one, and which part of all has it."""
    half = max(HALF, key=lambda kind: numbers[kind])
    return (half, _share(numbers, half)) if numbers[half] else ("", 0.0)


def _share(numbers: Counter[Any], *kinds: Any) -> float:
    some = sum(numbers[kind] for kind in kinds)
    return some / numbers.total() if some else 0.0


def _compiled(module: Any) -> str:
    # Lightning takes a compiled module apart and remembers that it was.
    if _is_compiled(module) or getattr(module, "_compiler_ctx", None) is not None:
        return "whole"
    inside = (part for part, _ in zip(module.modules(), range(MAX_COMPILED), strict=False))
    return "parts" if any(map(_is_compiled, inside)) else "no"


def _is_compiled(module: Any) -> bool:
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
