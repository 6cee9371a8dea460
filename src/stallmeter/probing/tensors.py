"""One tensor of any layout, kept and put back in place, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import SettingError

NOT_INITIALISED = "a parameter of the module is not initialised yet; send one batch through it first"


def keep_tensor(tensor: Any) -> tuple[list[Any], Callable[[], None]]:
    """Keep what a tensor holds, its gradient left out.

    Returns:
        Tensors that it is made of, to be kept themselves, and what puts it back once these are.

    Raises:
        SettingError: It is not initialised, or of a kind that cannot be kept.
    """
    from torch.nn.parameter import is_lazy

    if is_lazy(tensor):
        raise SettingError(NOT_INITIALISED)
    try:
        if hasattr(tensor, "__tensor_flatten__"):
            return _keep_wrapper(tensor)
        data = tensor.detach()
        if data.is_nested:
            return [data.values()], lambda: setattr(tensor, "data", data)
        return [], _keep_dense(tensor, data) if _is_dense(data) else _keep_opaque(tensor, data)
    except (RuntimeError, TypeError, AttributeError) as exc:
        raise SettingError(
            f"a {type(tensor).__name__} of the training could not be put back after the probe "
            f"({str(exc).partition('.')[0]}); leave it out with restore="
        ) from exc


def _keep_wrapper(tensor: Any) -> tuple[list[Any], Callable[[], None]]:
    """Keep a tensor that is Python's around others: jagged, distributed."""
    names, _ = tensor.__tensor_flatten__()
    inner = {name: getattr(tensor, name) for name in names}

    def undo() -> None:
        for name, part in inner.items():
            if getattr(tensor, name) is not part:
                setattr(tensor, name, part)

    return list(inner.values()), undo


def _is_dense(data: Any) -> bool:
    import torch

    return bool(data.layout is torch.strided and not data.is_quantized)


def _keep_dense(tensor: Any, data: Any) -> Callable[[], None]:
    memory = None if data.is_meta else _without_repeats(data)
    values = None if memory is None else memory.to("cpu", copy=True)

    def undo() -> None:
        if _place(tensor) != _place(data):
            tensor.data = data
        # Written only where it differs: in memory that is shared or mapped for reading, a write costs or fails.
        if memory is not None and not _same_bits(memory.cpu(), values):
            _write(memory, values)

    return undo


def _keep_opaque(tensor: Any, data: Any) -> Callable[[], None]:
    """Keep what has no memory of its own to look at: sparse, quantized, MKL-DNN."""
    values = data.clone()

    def undo() -> None:
        import torch

        tensor.data = data
        # ``zero_`` of a compressed tensor drops its places, in its detached twin as well.
        compressed = tensor.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
        if compressed and tensor.values().shape != values.values().shape:
            tensor.resize_as_sparse_(values)
        tensor.copy_(values)

    return undo


def _place(tensor: Any) -> tuple[object, ...]:
    if not _is_dense(tensor):
        return (tensor.layout,)
    return (tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride())


def _without_repeats(data: Any) -> Any:
    """Return a view that holds each element once: expanded tensors cannot be written to."""
    if not data.numel():
        return data
    for dim, (size, stride) in enumerate(zip(data.shape, data.stride(), strict=True)):
        if stride == 0 and size > 1:
            data = data.narrow(dim, 0, 1)
    span = 1 + sum((size - 1) * stride for size, stride in zip(data.shape, data.stride(), strict=True))
    return data if data.numel() <= span else data.as_strided((span,), (1,))


def _same_bits(now: Any, before: Any) -> bool:
    """Compare without arithmetic, in which NaN is no NaN and 0 is -0."""
    import torch

    plain = [each.resolve_conj().resolve_neg().contiguous() for each in (now, before)]
    flat = [each.as_strided((each.numel(),), (1,)).view(torch.uint8) for each in plain]
    return bool(torch.equal(*flat))


def _write(memory: Any, values: Any) -> None:
    import torch

    if memory.is_inference():
        with torch.inference_mode():
            memory.copy_(values)
    else:
        memory.copy_(values)
