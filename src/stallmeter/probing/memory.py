"""Memory that did not suffice, and how much it was."""

from __future__ import annotations

import gc


def is_out_of_memory(exc: BaseException) -> bool:
    """Whether the memory of a device or of the host was too small."""
    text = str(exc).lower()
    return (
        isinstance(exc, MemoryError)
        or type(exc).__name__ == "OutOfMemoryError"
        or any(words in text for words in ("out of memory", "can't allocate memory", "not enough memory"))
    )


def reset_peak_memory() -> None:
    """Forget how much memory the CUDA device needed so far."""
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def peak_memory_bytes() -> int | None:
    """Return the most memory that was allocated on the CUDA device since the last reset; None without one."""
    import torch

    return int(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() and torch.cuda.is_initialized() else None


def release_memory() -> None:
    """Give back what nobody holds any more."""
    import torch

    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
