"""The visible GPUs, through a fake of the NVML binding; and the real binding where there is no driver."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace

import pytest

from stallmeter.engine.monitor import Monitor
from stallmeter.records import GpuSample
from stallmeter.sources.nvml import NvmlSource
from stallmeter.sources.nvml.metrics import throttle_reasons
from stallmeter.sources.nvml.processes import job_memory

from ..monitors import bare_run

NOT_SUPPORTED, UNKNOWN = 3, 999


class FakeNvmlError(Exception):
    def __init__(self, value=UNKNOWN):
        super().__init__(f"error {value}")
        self.value = value


class FakeGpu:
    def __init__(self, uuid, name="NVIDIA A100", instances=None, **ids):
        self.uuid = uuid
        self.name = name
        self.instances = instances
        self.ids = ids


class FakeNvml:
    """The few calls of pynvml that are used. ``broken`` maps the name of a call to the error that it raises."""

    NVMLError = FakeNvmlError
    NVML_ERROR_NOT_SUPPORTED = NOT_SUPPORTED
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    nvmlMemory_v2 = 0x02000028

    def __init__(self, *gpus, broken=None):
        self.gpus = gpus
        self.broken = broken or {}
        self.users = 0
        self.calls = []
        self.threads = set()

    def __getattribute__(self, name):
        if name.startswith("nvmlDevice") or name in {"nvmlInit", "nvmlShutdown"}:
            self.calls.append(name)
            self.threads.add(threading.current_thread().name)
            if name in self.broken:

                def fail(*args, **kwargs):
                    raise self.broken[name]

                return fail
        return object.__getattribute__(self, name)

    def nvmlInit(self):
        self.users += 1

    def nvmlShutdown(self):
        self.users -= 1

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        if self.gpus[index] is None:
            raise FakeNvmlError(4)
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, gpu):
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu):
        return gpu.name

    def nvmlDeviceGetMigMode(self, gpu):
        if gpu.instances is None:
            raise FakeNvmlError(NOT_SUPPORTED)
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu, index):
        if index >= len(gpu.instances) or gpu.instances[index] is None:
            raise FakeNvmlError(6)
        return gpu.instances[index]

    def nvmlDeviceGetGpuInstanceId(self, gpu):
        return gpu.ids["gi"]

    def nvmlDeviceGetComputeInstanceId(self, gpu):
        return gpu.ids["ci"]

    def nvmlDeviceGetUtilizationRates(self, gpu):
        if gpu.ids:
            raise FakeNvmlError(NOT_SUPPORTED)
        return SimpleNamespace(gpu=87, memory=41)

    def nvmlDeviceGetMemoryInfo(self, gpu, version=None):
        return SimpleNamespace(used=10_000_000_000 if version else 10_600_000_000, total=80_000_000_000)

    def nvmlDeviceGetPowerUsage(self, gpu):
        if gpu.ids:
            raise FakeNvmlError(NOT_SUPPORTED)
        return 251_500

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu):
        if gpu.ids:
            raise FakeNvmlError(NOT_SUPPORTED)
        return 400_000

    def nvmlDeviceGetTemperature(self, gpu, sensor):
        if gpu.ids:
            raise FakeNvmlError(NOT_SUPPORTED)
        return 63

    def nvmlDeviceGetTemperatureV(self, gpu, sensor):
        return 64

    def nvmlDeviceGetClockInfo(self, gpu, kind):
        if gpu.ids:
            raise FakeNvmlError(NOT_SUPPORTED)
        return {1: 1410, 2: 1593}[kind]

    def nvmlDeviceGetMaxClockInfo(self, gpu, kind):
        return 1980


def one_gpu(**broken):
    return FakeNvml(FakeGpu("GPU-aaaa-1"), broken=broken)


def mig_node():
    first = FakeGpu("GPU-aaaa-1")
    second = FakeGpu(
        "GPU-bbbb-2",
        instances=[
            FakeGpu("MIG-1111", "A100 MIG 1g.10gb", gi=7, ci=0),
            None,
            FakeGpu("MIG-2222", "A100 MIG 2g.20gb", gi=3, ci=0),
        ],
    )
    return FakeNvml(first, second)


METRICS = {
    "utilization_pct": 87.0,
    "memory_controller_pct": 41.0,
    "memory_used_bytes": 10_000_000_000,
    "memory_total_bytes": 80_000_000_000,
    "power_w": 251.5,
    "power_limit_w": 400.0,
    "temperature_c": 63.0,
    "sm_clock_mhz": 1410.0,
    "sm_clock_max_mhz": 1980.0,
    "memory_clock_mhz": 1593.0,
}


def opened(nvml, environ):
    source = NvmlSource(nvml, environ)
    source.open()
    return source


def gpu_samples(source, time_s=0.0):
    return [made for made in source.sample(time_s) if isinstance(made, GpuSample)]


def metrics_of(sample):
    return {name: getattr(sample, name) for name in METRICS}


def test_all_metrics_of_a_gpu():
    (sample,) = gpu_samples(NvmlSource(one_gpu(), {}), 12.5)
    assert (sample.time_s, sample.index, sample.uuid, sample.name) == (12.5, 0, "GPU-aaaa-1", "NVIDIA A100")
    assert metrics_of(sample) == METRICS


@pytest.mark.parametrize("error", [FakeNvmlError(NOT_SUPPORTED), FakeNvmlError(UNKNOWN), AttributeError("old binding")])
@pytest.mark.parametrize(
    ("call", "lost"),
    [
        ("nvmlDeviceGetUtilizationRates", {"utilization_pct", "memory_controller_pct"}),
        ("nvmlDeviceGetMemoryInfo", {"memory_used_bytes", "memory_total_bytes"}),
        ("nvmlDeviceGetPowerUsage", {"power_w"}),
        ("nvmlDeviceGetEnforcedPowerLimit", {"power_limit_w"}),
        ("nvmlDeviceGetClockInfo", {"sm_clock_mhz", "memory_clock_mhz"}),
        ("nvmlDeviceGetMaxClockInfo", {"sm_clock_max_mhz"}),
    ],
)
def test_each_metric_fails_alone(call, lost, error):
    (sample,) = gpu_samples(NvmlSource(one_gpu(**{call: error}), {}))
    assert metrics_of(sample) == METRICS | dict.fromkeys(lost)


def test_every_metric_failing_leaves_a_sample_of_none():
    calls = [name for name in dir(FakeNvml) if name.startswith("nvmlDeviceGet")]
    found = {"nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"}
    source = NvmlSource(one_gpu(**{call: FakeNvmlError() for call in calls if call not in found}), {})
    (sample,) = gpu_samples(source)
    assert metrics_of(sample) == dict.fromkeys(METRICS)
    assert (sample.uuid, sample.name) == (None, None)


def test_newer_temperature_call_where_the_old_one_is_gone():
    nvml = one_gpu(nvmlDeviceGetTemperature=FakeNvmlError(NOT_SUPPORTED))
    assert NvmlSource(nvml, {}).sample(0.0)[0].temperature_c == 64.0


def test_older_memory_call_where_the_new_one_is_missing():
    class OldDriver(FakeNvml):
        def nvmlDeviceGetMemoryInfo(self, gpu, version=None):
            if version:
                raise FakeNvmlError(self.NVML_ERROR_FUNCTION_NOT_FOUND)
            return super().nvmlDeviceGetMemoryInfo(gpu)

    (sample,) = gpu_samples(NvmlSource(OldDriver(FakeGpu("GPU-a")), {}))
    assert sample.memory_used_bytes == 10_600_000_000


def test_what_is_not_supported_is_asked_once_and_what_failed_is_asked_again():
    nvml = one_gpu(nvmlDeviceGetPowerUsage=FakeNvmlError(NOT_SUPPORTED), nvmlDeviceGetUtilizationRates=FakeNvmlError())
    source = NvmlSource(nvml, {})
    for number in range(3):
        source.sample(100.0 * number)
    assert nvml.calls.count("nvmlDeviceGetPowerUsage") == 1
    assert nvml.calls.count("nvmlDeviceGetUtilizationRates") == 3


UUIDS = ["GPU-aaaa-1", "GPU-aaab-2", "GPU-cccc-3"]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1, 2]),
        ("0,1,2", [0, 1, 2]),
        ("2,0", [2, 0]),
        (" 1, 2", [1, 2]),
        ("1gpu2,+2", [1, 2]),
        ("0,3,1", [0]),
        ("0,-1,1", [0]),
        ("1,1", []),
        ("0,1,0", []),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("none", []),
        ("99999999999999999999", []),
        ("GPU-cccc-3,GPU-aaaa-1", [2, 0]),
        ("GPU-c", [2]),
        ("GPU-aaaa", [0]),
        ("GPU-aaa", []),
        ("GPU-c,GPU-x,GPU-aaaa", [2]),
        ("GPU-c,0", [2]),
        ("GPU-c,", [2]),
        ("GPU-c,GPU-cccc", []),
        ("0,GPU-c", [0]),
        ("MIG-1", []),
    ],
)
def test_visible_devices_as_cuda_reads_them(visible, expected):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    source = NvmlSource(FakeNvml(*map(FakeGpu, UUIDS)), environ)
    samples = gpu_samples(source)
    assert [sample.uuid for sample in samples] == [UUIDS[index] for index in expected]
    assert [sample.index for sample in samples] == list(range(len(expected)))
    assert (source.reason is None) == bool(expected)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ["GPU-aaaa-1", "MIG-1111", "MIG-2222"]),
        ("1", ["MIG-1111", "MIG-2222"]),
        ("MIG-2222", ["MIG-2222"]),
        ("MIG-22", ["MIG-2222"]),
        ("MIG-GPU-bbbb-2/3/0", ["MIG-2222"]),
        ("MIG-GPU-bbbb-2/7/0,MIG-2222", ["MIG-1111", "MIG-2222"]),
        ("MIG-1111,0", ["MIG-1111"]),
        ("MIG-GPU-bbbb-2/1/0", []),
        ("GPU-bbbb", ["MIG-1111", "MIG-2222"]),
    ],
)
def test_mig_instances(visible, expected):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert [sample.uuid for sample in gpu_samples(NvmlSource(mig_node(), environ))] == expected


def test_a_mig_instance_has_its_own_memory_and_the_boards_temperature_and_clocks():
    (sample,) = gpu_samples(NvmlSource(mig_node(), {"CUDA_VISIBLE_DEVICES": "MIG-1111"}))
    foreign = ("utilization_pct", "memory_controller_pct", "power_w", "power_limit_w")
    assert metrics_of(sample) == METRICS | dict.fromkeys(foreign)
    assert sample.name == "A100 MIG 1g.10gb"


def test_several_mig_instances_are_noted():
    assert "one MIG instance" in (opened(mig_node(), {}).note or "")
    assert opened(mig_node(), {"CUDA_VISIBLE_DEVICES": "MIG-1111"}).note is None


def test_ordinals_among_different_gpus_are_noted_unless_cuda_counts_by_bus():
    node = (FakeGpu("GPU-a", "NVIDIA T4"), FakeGpu("GPU-b", "NVIDIA A100"))
    by_ordinal = {"CUDA_VISIBLE_DEVICES": "0"}
    assert "CUDA_DEVICE_ORDER" in (opened(FakeNvml(*node), by_ordinal).note or "")
    assert opened(FakeNvml(*node), by_ordinal | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}).note is None
    assert opened(FakeNvml(*node), {"CUDA_VISIBLE_DEVICES": "GPU-a"}).note is None


def test_a_gpu_that_may_not_be_opened_is_left_out():
    samples = gpu_samples(NvmlSource(FakeNvml(None, FakeGpu("GPU-b")), {}))
    assert [sample.uuid for sample in samples] == ["GPU-b"]


def test_old_bindings_give_bytes():
    source = NvmlSource(FakeNvml(FakeGpu(b"GPU-a", b"Tesla V100")), {"CUDA_VISIBLE_DEVICES": "GPU-a"})
    (sample,) = gpu_samples(source)
    assert (sample.uuid, sample.name) == ("GPU-a", "Tesla V100")


@pytest.mark.parametrize(
    ("nvml", "environ", "reason"),
    [
        (one_gpu(nvmlInit=FakeNvmlError(9)), {}, "error 9"),
        (FakeNvml(), {}, "no GPU"),
        (FakeNvml(FakeGpu("GPU-a", instances=[])), {}, "no MIG instance"),
        (one_gpu(), {"CUDA_VISIBLE_DEVICES": "7"}, "CUDA_VISIBLE_DEVICES='7'"),
    ],
)
def test_nothing_to_measure_has_a_reason_and_a_fix(nvml, environ, reason):
    source = NvmlSource(nvml, environ)
    assert list(source.sample(0.0)) == []
    assert reason in (source.reason or "")
    assert source.fix
    assert source.summary == "no device"
    assert list(source.sample(1.0)) == []
    assert nvml.calls.count("nvmlInit") == 1
    assert nvml.users == 0


def test_close_gives_nvml_back_once_and_ignores_a_lost_driver():
    nvml = one_gpu()
    source = opened(nvml, {})
    assert (nvml.users, source.summary) == (1, "NVIDIA A100")
    source.close()
    source.close()
    assert nvml.users == 0
    opened(one_gpu(nvmlShutdown=FakeNvmlError()), {}).close()
    NvmlSource(one_gpu(), {}).close()


def test_check_tells_of_a_driver_that_fails_after_its_start():
    source = NvmlSource(one_gpu(nvmlDeviceGetPowerUsage=FakeNvmlError(15)), {})
    source.check()
    assert "NVML started and then failed" in (source.reason or "")
    assert source.fix


def test_only_the_sampler_thread_asks_nvml(tmp_path):
    """Starting NVML may take seconds; the training thread does not wait for it, nor for any other call."""
    nvml = one_gpu()
    run = bare_run(tmp_path, interval_s=0.02, sources=[NvmlSource(nvml, {})])
    assert nvml.calls == []
    with Monitor.of(run.start()) as monitor:
        wait_until(lambda: monitor.window.gpu.samples)
        assert nvml.threads == {"stallmeter-sampler"}
    assert nvml.users == 0


def wait_until(ready):
    for _ in range(3000):
        if ready():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come to pass within 30 s")


class TestThrottleReasons:
    @pytest.mark.parametrize(
        ("mask", "names"),
        [
            (0, ()),
            (0x1, ("gpu_idle",)),
            (0x4, ("power_cap",)),
            (0x48, ("hw_slowdown", "hw_thermal")),
            (0xA0, ("sw_thermal", "power_brake")),
            (0x1 << 11, ("bit_11",)),
        ],
    )
    def test_named(self, mask, names):
        """The bits are those of nvml.h; one of a newer driver keeps its number."""
        assert throttle_reasons(mask) == names

    def test_the_bits_of_the_binding(self):
        """The binding knows the same names at the same places."""
        pynvml = pytest.importorskip("pynvml")
        assert throttle_reasons(pynvml.nvmlClocksEventReasonSwPowerCap) == ("power_cap",)
        assert throttle_reasons(pynvml.nvmlClocksEventReasonHwSlowdown) == ("hw_slowdown",)
        assert throttle_reasons(pynvml.nvmlClocksEventReasonSwThermalSlowdown) == ("sw_thermal",)
        assert throttle_reasons(pynvml.nvmlClocksEventReasonHwThermalSlowdown) == ("hw_thermal",)
        assert throttle_reasons(pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown) == ("power_brake",)


class TestProcesses:
    def test_memory(self):
        """Memory of others does not count, and none at all is not known rather than 0."""
        own = os.getpid()
        processes = [SimpleNamespace(pid=own, usedGpuMemory=5), SimpleNamespace(pid=own, usedGpuMemory=None)]
        assert job_memory([*processes, SimpleNamespace(pid=1, usedGpuMemory=7)]) == 5
        assert job_memory(processes[1:]) is None
        assert job_memory([]) is None


def test_the_real_binding_without_a_driver_degrades(monkeypatch):
    pynvml = pytest.importorskip("pynvml")

    def no_library(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "CDLL", no_library)
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    source = NvmlSource(pynvml, {})
    assert list(source.sample(0.0)) == []
    assert "Library Not Found" in (source.reason or "")
    source.close()


@pytest.mark.gpu
def test_the_real_driver():
    source = NvmlSource(environ={})
    samples = gpu_samples(source)
    if source.reason is not None:
        pytest.skip(f"no NVIDIA GPU: {source.reason}")
    sample = samples[0]
    source.close()
    assert sample.memory_total_bytes is not None
    assert sample.memory_total_bytes > 0
