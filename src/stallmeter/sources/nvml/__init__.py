"""The visible NVIDIA GPUs and MIG instances, through NVML."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...machine.installed import installed
from ...records import Event, GpuSample
from .codes import ErrorCodes
from .devices import DeviceFinder, GpuDevice, visible_devices, why_uncertain
from .reader import DeviceLostError, DeviceReader

if TYPE_CHECKING:
    import pynvml
else:
    pynvml = installed("pynvml", "nvidia-ml-py")

ENOUGH_DROPS = 20
"""Devices named one by one in the event about what is not measured."""


class NvmlSource:
    """Samples the GPUs that CUDA shows to this process.

    Nothing is loaded or asked before the first sample, which the sampler thread takes: starting NVML can take seconds
    where the driver is not kept loaded. A missing driver or GPU is no error: `reason` then says why nothing is
    measured, and `sample` returns nothing.
    """

    name = "nvml"

    def __init__(self, nvml: Any = pynvml, environ: Mapping[str, str] | None = None) -> None:
        """Remember what to ask.

        Args:
            nvml: The pynvml module, or what stands in for it.
            environ: Where CUDA_VISIBLE_DEVICES is looked up; the process's own environment by default.
        """
        self.reason: str | None = None
        """Why nothing is measured; None when it is."""
        self.fix = ""
        """What to do about `reason`."""
        self.note: str | None = None
        """What may be wrong about the choice of devices."""
        self.driver: str | None = None
        """Version of the driver; None when it does not say."""
        self._nvml = nvml
        self._environ = environ
        self._codes = ErrorCodes(nvml)
        self._readers: tuple[DeviceReader, ...] = ()
        self._opened = False
        self._started = False
        self._told: dict[int, int] = {}

    @property
    def summary(self) -> str:
        """What is measured, in words."""
        devices = ", ".join(reader.device.name or "unnamed device" for reader in self._readers) or "no device"
        return f"{devices}; driver {self.driver}" if self.driver and self._readers else devices

    @property
    def not_measured(self) -> Mapping[str, str]:
        """What at least one device cannot give: metric to reason, both in words. Known after the first sample."""
        return {name: why for reader in self._readers for name, why in reader.dropped.items()}

    def open(self) -> None:
        """Start NVML and find the visible devices; only the first call does."""
        if self._opened:
            return
        self._opened = True
        try:
            self._nvml.nvmlInit()
        except (self._nvml.NVMLError, OSError) as exc:
            self.reason = f"NVML did not start: {exc}"
            self.fix = "install the NVIDIA driver; in a container, pass the GPUs in (docker run --gpus all)"
            return
        self._started = True
        devices = self._choose(os.environ if self._environ is None else self._environ)
        self._readers = tuple(
            DeviceReader(self._nvml, self._codes, device, index) for index, device in enumerate(devices)
        )
        if not self._readers:
            self.close()

    def sample(self, time_s: float) -> Sequence[GpuSample | Event]:
        """Return one GpuSample for each visible device; what a device does not support is None.

        What turns out not to be measured, and a device that is lost, come once as events beside the samples.

        Args:
            time_s: Unix time of this poll.

        Raises:
            NVMLError: The driver is gone.
            DeviceLostError: The last device is gone.
        """
        first = not self._opened
        self.open()
        found: list[GpuSample | Event] = []
        if first and self.note is not None:
            found.append(Event(time_s=time_s, name="visible GPUs", detail=self.note))
        found.extend(self._read(reader, time_s) for reader in self._readers)
        return found + self._drops(time_s)

    def check(self) -> None:
        """Read every device once, so that `reason`, `summary` and `not_measured` tell all that there is to tell."""
        try:
            self.sample(time.time())
        except (self._nvml.NVMLError, DeviceLostError) as exc:
            self.reason = f"NVML started and then failed: {exc}"
            self.fix = "look at nvidia-smi and the kernel's log (dmesg); the GPU may have to be reset"

    def close(self) -> None:
        """Give NVML back. It counts its users: another library's use of it goes on."""
        readers, self._readers = self._readers, ()
        for reader in readers:
            reader.close()
        if self._started:
            self._started = False
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def _read(self, reader: DeviceReader, time_s: float) -> GpuSample | Event:
        try:
            return reader.read(time_s)
        except DeviceLostError as exc:
            reader.close()
            self._readers = tuple(other for other in self._readers if other is not reader)
            if not self._readers:
                raise
            return Event(time_s=time_s, name=f"GPU {reader.index} switched off", detail=str(exc))

    def _drops(self, time_s: float) -> list[Event]:
        """Name what was dropped since the last sample, devices with the same losses together."""
        by_loss: dict[str, list[int]] = {}
        for reader in self._readers:
            dropped = list(reader.dropped.items())
            new = dropped[self._told.get(reader.index, 0) :]
            self._told[reader.index] = len(dropped)
            if new:
                by_loss.setdefault(_in_words(new), []).append(reader.index)
        return [
            Event(time_s=time_s, name=f"not measured on GPU {', '.join(map(str, indexes[:ENOUGH_DROPS]))}", detail=loss)
            for loss, indexes in by_loss.items()
        ]

    def _choose(self, environ: Mapping[str, str]) -> tuple[GpuDevice, ...]:
        finder = DeviceFinder(self._nvml, self._codes)
        self.driver = finder.text("nvmlSystemGetDriverVersion")
        visible = environ.get("CUDA_VISIBLE_DEVICES")
        boards = finder.boards()
        devices = visible_devices(visible, boards)
        if devices:
            self.note = why_uncertain(visible, boards, devices, environ.get("CUDA_DEVICE_ORDER"))
        elif not boards:
            self.reason = "NVML found no GPU"
            self.fix = "ask for a GPU where you start the job; in a container, pass the GPUs in"
        elif visible is None:
            self.reason = "the GPU is in MIG mode and has no MIG instance"
            self.fix = "create an instance (nvidia-smi mig -cgi … -C) or switch MIG mode off"
        else:
            self.reason = f"CUDA_VISIBLE_DEVICES={visible!r} shows none of the {len(boards)} GPUs"
            self.fix = "unset CUDA_VISIBLE_DEVICES, or list GPUs that exist"
        return devices


def _in_words(dropped: Sequence[tuple[str, str]]) -> str:
    by_reason: dict[str, list[str]] = {}
    for name, why in dropped:
        by_reason.setdefault(why, []).append(name)
    return "; ".join(f"{', '.join(names)} ({why})" for why, names in by_reason.items())
