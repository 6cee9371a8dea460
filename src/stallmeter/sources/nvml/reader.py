"""Reads one device: each metric on its own, as often as it is worth, and never again what it cannot give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...records import GpuSample
from .codes import ErrorCodes, ErrorScope
from .devices import GpuDevice
from .gpm import Gpm
from .metrics import METRICS, Metric

GPM_NAME = "activity of SMs, Tensor Cores and memory"


class DeviceLostError(Exception):
    """The device is gone; the driver still answers for others."""


class DeviceReader:
    """Makes the samples of one device.

    Args:
        nvml: The pynvml module, or what stands in for it, initialised.
        codes: Its errors.
        device: What to read.
        index: Its position among the visible devices.
    """

    def __init__(self, nvml: Any, codes: ErrorCodes, device: GpuDevice, index: int) -> None:
        self.device = device
        self.index = index
        self._nvml = nvml
        self._codes = codes
        self._chosen = dict.fromkeys(METRICS, 0)
        self._read_s: dict[Metric, float] = {}
        self._dropped: dict[str, str] = {}
        self._gpm: Gpm | None = None
        self._started = False

    @property
    def dropped(self) -> Mapping[str, str]:
        """What this device will not be asked again: metric to reason, both in words."""
        return self._dropped

    def read(self, time_s: float) -> GpuSample:
        """Return a sample; what could not be read is None.

        Args:
            time_s: Unix time.

        Raises:
            DeviceLostError: The device is gone.
            NVMLError: The driver is gone.
        """
        counters = self._read_gpm(time_s)
        fields: dict[str, Any] = {}
        for metric in METRICS:
            if not (metric.in_gpm and self._gpm is not None) and self._is_due(metric, time_s):
                fields.update(self._read_metric(metric))
        fields = {**counters, **fields}
        device = self.device
        return GpuSample(time_s=time_s, index=self.index, uuid=device.uuid or None, name=device.name, **fields)

    def close(self) -> None:
        """Give back what reading needs."""
        gpm, self._gpm = self._gpm, None
        if gpm is not None:
            gpm.close()

    def _is_due(self, metric: Metric, time_s: float) -> bool:
        last_s = self._read_s.get(metric)
        if last_s is not None and 0 <= time_s - last_s < metric.every_s - 0.5:
            return False
        self._read_s[metric] = time_s
        return True

    def _read_metric(self, metric: Metric) -> dict[str, Any]:
        handle = self.device.board if metric.board else self.device.handle
        while metric.name not in self._dropped:
            read = metric.reads[self._chosen[metric]]
            last = self._chosen[metric] + 1 == len(metric.reads)
            found = self._try(metric.name if last else None, lambda read=read: read(self._nvml, handle))  # type: ignore[misc]
            if found is not None:
                return found
            self._chosen[metric] += not last
        return {}

    def _read_gpm(self, time_s: float) -> dict[str, Any]:
        if not self._started:
            self._started = True
            self._try(GPM_NAME, self._open_gpm)
        gpm = self._gpm
        found = {} if gpm is None else self._try(GPM_NAME, lambda: gpm.read(time_s))
        if found is None:
            self.close()
        return found or {}

    def _open_gpm(self) -> dict[str, Any]:
        gpm = Gpm(self._nvml, self.device)
        if gpm.supported:
            self._gpm = gpm
        else:
            self._dropped[GPM_NAME] = "not supported"
        return {}

    def _try(self, name: str | None, call: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """Call NVML: nothing found when it fails this time, None when it always will.

        Args:
            name: What is then dropped; None when there is another way to read it.
            call: What to call.
        """
        try:
            return call()
        except self._codes.caught as exc:
            loss = self._codes.loss(exc)
            if loss is ErrorScope.DRIVER:
                raise
            if loss is ErrorScope.DEVICE:
                raise DeviceLostError(str(exc)) from exc
            if loss is ErrorScope.MOMENT:
                return {}
            if name is not None:
                self._dropped[name] = self._codes.why(exc)
            return None  # the caller asks another way, or never again
