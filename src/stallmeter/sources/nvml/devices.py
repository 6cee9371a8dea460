"""The GPUs and MIG instances that CUDA shows to this process."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .codes import ErrorCodes


@dataclass(frozen=True, slots=True, eq=False)
class GpuDevice:
    """A GPU, or one MIG instance of it."""

    handle: Any
    board: Any
    """Handle of the GPU that carries it."""
    uuid: str
    """Empty when NVML does not say."""
    name: str | None
    legacy_uuid: str = ""
    """How CUDA called a MIG instance before driver 470: ``MIG-<GPU uuid>/<GPU instance>/<compute instance>``."""
    gpu_instance: int | None = None
    """Number of the MIG instance's GPU instance; None for a whole GPU."""


@dataclass(frozen=True, slots=True)
class Board:
    """A physical GPU."""

    gpu: GpuDevice
    instances: tuple[GpuDevice, ...] | None
    """Its MIG instances; None when MIG mode is off."""

    @property
    def devices(self) -> tuple[GpuDevice, ...]:
        """What CUDA can run on: in MIG mode the instances, never the GPU itself."""
        return (self.gpu,) if self.instances is None else self.instances


class DeviceFinder:
    """Asks NVML what there is. A device that does not answer is left out.

    Args:
        nvml: The pynvml module, or what stands in for it, initialised.
        codes: Its errors.
    """

    def __init__(self, nvml: Any, codes: ErrorCodes) -> None:
        self._nvml = nvml
        self._codes = codes

    def boards(self) -> list[Board]:
        """Return all GPUs that this process may open, in NVML's order: by PCI bus."""
        boards = []
        for index in range(self.ask("nvmlDeviceGetCount") or 0):
            handle = self.ask("nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                gpu = GpuDevice(handle, handle, self._uuid(handle), self.text("nvmlDeviceGetName", handle))
                # (current, pending) where the GPU knows MIG
                mig_mode = self.ask("nvmlDeviceGetMigMode", handle)
                boards.append(Board(gpu, self._instances(gpu) if mig_mode and mig_mode[0] else None))
        return boards

    def text(self, call: str, *args: Any) -> str | None:
        """Ask for a text; None when that fails."""
        value = self.ask(call, *args)
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def ask(self, call: str, *args: Any) -> Any:
        """Call NVML; None when that fails."""
        try:
            return getattr(self._nvml, call)(*args)
        except self._codes.caught:
            return None

    def _instances(self, gpu: GpuDevice) -> tuple[GpuDevice, ...]:
        found = []
        for index in range(self.ask("nvmlDeviceGetMaxMigDeviceCount", gpu.handle) or 0):
            handle = self.ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu.handle, index)
            if handle is not None:
                gpu_instance = self.ask("nvmlDeviceGetGpuInstanceId", handle)
                compute_instance = self.ask("nvmlDeviceGetComputeInstanceId", handle)
                legacy_uuid = f"MIG-{gpu.uuid}/{gpu_instance}/{compute_instance}"
                name = self.text("nvmlDeviceGetName", handle)
                found.append(GpuDevice(handle, gpu.handle, self._uuid(handle), name, legacy_uuid, gpu_instance))
        return tuple(found)

    def _uuid(self, handle: Any) -> str:
        return self.text("nvmlDeviceGetUUID", handle) or ""


def visible_devices(visible: str | None, boards: Sequence[Board]) -> tuple[GpuDevice, ...]:
    """Choose devices as CUDA does: stop at the first invalid entry, and show nothing when one is repeated.

    Args:
        visible: Value of CUDA_VISIBLE_DEVICES: ordinals, or GPU or MIG UUIDs, abbreviated or not; None when unset.
        boards: All GPUs, in NVML's order.
    """
    if visible is None:
        return tuple(device for board in boards for device in board.devices)
    chosen: list[GpuDevice] = []
    for entry in visible.split(","):
        # CUDA reads all entries as the kind that the first one is.
        if visible.startswith("MIG-"):
            found = _by_uuid(entry, "MIG-", [device for board in boards for device in board.instances or ()])
        elif visible.startswith("GPU-"):
            found = _by_uuid(entry, "GPU-", [board.gpu for board in boards])
            found = next((board.devices for board in boards if board.gpu in found), ())
        else:
            found = _by_ordinal(entry, boards)
        if not found:
            break
        if found[0] in chosen:
            return ()
        chosen += found
    return tuple(chosen)


def _by_uuid(entry: str, prefix: str, devices: Sequence[GpuDevice]) -> tuple[GpuDevice, ...]:
    """Find the one device whose UUID begins with ``entry``; none when several do."""
    if not entry.startswith(prefix):
        return ()
    found = tuple(device for device in devices if device.uuid.startswith(entry) or device.legacy_uuid == entry)
    return found if len(found) == 1 else ()


def _by_ordinal(entry: str, boards: Sequence[Board]) -> tuple[GpuDevice, ...]:
    # As strtoul does: "1gpu" is 1, "-1" and "NoDevFiles" are none.
    match = re.match(r"\s*\+?(\d{1,9})", entry)
    return boards[int(match[1])].devices if match and int(match[1]) < len(boards) else ()


def why_uncertain(
    visible: str | None, boards: Sequence[Board], devices: Sequence[GpuDevice], order: str | None
) -> str | None:
    """Say what may be wrong about the choice; None when nothing is.

    Args:
        visible: Value of CUDA_VISIBLE_DEVICES.
        boards: All GPUs.
        devices: Those chosen.
        order: Value of CUDA_DEVICE_ORDER; CUDA's default is the fastest first, by a measure that it keeps to itself.
    """
    if len(devices) > 1 and any(device.handle is not device.board for device in devices):
        return (
            "CUDA gives a process one MIG instance only: set CUDA_VISIBLE_DEVICES to the UUID of the one that is used"
        )
    by_ordinal = visible is not None and not visible.startswith(("GPU-", "MIG-"))
    if by_ordinal and order != "PCI_BUS_ID" and len({board.gpu.name for board in boards}) > 1:
        return "GPUs differ and CUDA numbers them fastest first, NVML by bus: set CUDA_DEVICE_ORDER=PCI_BUS_ID"
    return None
