"""Device time of the training steps, from CUDA events: nothing is synchronised, nothing initialises CUDA.

PyTorch on ROCm has the same interface. On other accelerators (MPS, XPU) and without one nothing is measured.
"""

from __future__ import annotations

import ctypes
import math
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..records import DeviceStep, Event
from ..timing.clock import StepClock
from ..timing.device import DeviceTimeline

TIMED_STEPS_PER_S = 100
"""Up to this rate every step is timed, above it an even sample: an event costs the training thread 1 to 2 µs."""

THREAD_LOCAL = 1
"""CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: captures of other threads do not forbid this one to ask events."""


class CudaDevice:
    """Makes CUDA events and records them on the stream that the training queues its work on.

    Args:
        torch: The module.
    """

    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda
        self._raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self._stream: Any = None
        self._raw: int | None = None
        self._capturing = self._cuda.is_current_stream_capturing
        self._elsewhere = False
        self.index: int | None = None
        """Number of the device; None until the training thread was here."""
        self.thread: int | None = None
        """Identity of the training thread."""

    def event(self) -> Any:
        """Make an event."""
        return self._cuda.Event(enable_timing=True)

    def capturing(self) -> bool:
        """Whether the stream of the training thread, which calls this, is being captured into a graph."""
        if self.index is None:
            self._choose()
        if self._elsewhere:  # asking would make a context on the current device, which nobody uses
            with self._cuda.device(self.index):
                return bool(self._capturing())
        return bool(self._capturing())

    def _choose(self) -> None:
        self.index = busy_device(self._cuda)
        self._elsewhere = self.index != self._cuda.current_device()
        self.thread = threading.get_ident()

    def record(self, event: Any) -> None:
        """Record it on the current stream of the training thread, which calls this after `capturing`."""
        raw = None if self._raw_stream is None else self._raw_stream(self.index)
        if raw is None or raw != self._raw:
            self._stream, self._raw = self._cuda.current_stream(self.index), raw
        event.record(self._stream)


def busy_device(cuda: Any) -> int:
    """Return the device that the calling thread trains on.

    That is its current device, unless nothing lives there and something does on exactly one other: a plain loop may
    use ``cuda:1`` without ever choosing it. Reads counters of the allocator only.
    """
    current = int(cuda.current_device())
    used = [index for index in range(cuda.device_count()) if cuda.memory_allocated(index)]
    return used[0] if len(used) == 1 and current not in used else current


class CudaSource:
    """Starts to time the device when the program has put something there, and hands out what was timed.

    Args:
        clock: Whose steps are timed.
        modules: Where torch is looked for; it is never imported.
    """

    name = "cuda"
    overflows = True

    def __init__(self, clock: StepClock, modules: Any = None) -> None:
        self._clock = clock
        self._modules = sys.modules if modules is None else modules
        self._device: CudaDevice | None = None
        self._timeline: DeviceTimeline | None = None
        self._exchange: Any = None
        self._device_of: Any = None
        self._off = False
        self._last: tuple[int, float] | None = None
        self._begin(0.0)

    def sample(self, time_s: float) -> Sequence[DeviceStep | Event]:
        """Return the steps that the device has finished since the last call.

        Args:
            time_s: Unix time of this poll.
        """
        if self._off:
            return ()
        if self._timeline is None:
            return self._begin(time_s)
        self._adapt_stride(time_s)
        device = self._device
        if device is None or device.index is None or (device.thread == threading.get_ident() and device.capturing()):
            return self._check(time_s)
        try:
            with self._device_of(device.index), _capture_mode(self._exchange, THREAD_LOCAL):
                return [*self._timeline.resolve(), *self._check(time_s)]
        except RuntimeError:
            self.close()
            raise

    def close(self) -> None:
        """Time no more. Events that the device has not reached are let go."""
        self._off = True
        if self._timeline is not None and self._clock.ledger.device is self._timeline:
            self._clock.ledger.device = None

    def _begin(self, time_s: float) -> Sequence[Event]:
        torch = self._modules.get("torch")
        cuda = getattr(torch, "cuda", None)
        if cuda is None or not cuda.is_initialized():
            return ()
        if not any(cuda.memory_allocated(index) for index in range(cuda.device_count())):
            return ()
        self._exchange = capture_mode_exchange(torch)
        if self._exchange is None:
            self._off = True
            return (Event(time_s=time_s, name="device timing not used", detail="the driver has no capture mode"),)
        self._device = CudaDevice(torch)
        self._timeline = DeviceTimeline(self._device)
        self._device_of = cuda.device
        self._clock.ledger.device = self._timeline
        return ()

    def _check(self, time_s: float) -> Sequence[Event]:
        failure = self._timeline.failure if self._timeline is not None else None
        if failure is None:
            return ()
        self.close()
        return (Event(time_s=time_s, name="device timing switched off", detail=failure.splitlines()[0][:300]),)

    def _adapt_stride(self, time_s: float) -> None:
        """Time fewer steps when they come fast."""
        index, last = self._clock.index, self._last
        self._last = (index, time_s)
        if last is not None and time_s > last[1] and self._timeline is not None:
            rate = (index - last[0]) / (time_s - last[1])
            self._timeline.stride = max(1, math.ceil(rate / TIMED_STEPS_PER_S))


def capture_mode_exchange(torch: Any) -> Any:
    """Return the driver's function that swaps the calling thread's capture mode; None when there is none.

    While one thread captures a graph in the default, global mode, CUDA forbids all others to ask an event, and asking
    one would spoil the capture. NCCL's watchdog in PyTorch swaps its mode for the same reason.
    """
    hip = getattr(getattr(torch, "version", None), "hip", None)
    name = "hipThreadExchangeStreamCaptureMode" if hip else "cuThreadExchangeStreamCaptureMode"
    libraries = ("libamdhip64.so", "libamdhip64.so.6") if hip else ("libcuda.so.1", "nvcuda.dll")
    for library in libraries:
        try:
            function = getattr(ctypes.CDLL(library), name)
        except (OSError, AttributeError):
            continue
        function.argtypes = [ctypes.POINTER(ctypes.c_int)]
        function.restype = ctypes.c_int
        return function
    return None


@contextmanager
def _capture_mode(exchange: Any, mode: int) -> Iterator[None]:
    swapped = ctypes.c_int(mode)
    exchange(ctypes.byref(swapped))
    try:
        yield
    finally:
        exchange(ctypes.byref(swapped))
