"""The visible GPUs through the real binding and a stub of NVML's library: structs, error codes, a driver that dies."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pynvml = pytest.importorskip("pynvml")

FOLDER = Path(__file__).parents[1] / "nvml_stub"

VALUES = {
    "gpu_util": 87,
    "mem_util": 41,
    "mem_total": 80_000_000_000,
    "mem_reserved": 600_000_000,
    "mem_used": 10_000_000_000,
    "power": 251_500,
    "power_limit": 400_000,
    "temperature": 63,
    "slowdown": 92,
    "margin": 29,
    "sm_clock": 1410,
    "sm_clock_max": 1980,
    "mem_clock": 1593,
    "mem_clock_max": 2619,
    "reasons": 0x4 | 0x20,
    "pcie_tx": 1200,
    "pcie_rx": 3400,
    "width": 8,
    "width_max": 16,
    "generation": 4,
    "generation_max": 5,
    "ecc_corrected": 17,
    "ecc_uncorrected": 2,
    "major": 8,
    "minor": 6,
}
GPM = {
    "gpm": 1,
    "gpm_graphics": 91.5,
    "gpm_sm": 71.25,
    "gpm_occupancy": 33.5,
    "gpm_tensor": 42.75,
    "gpm_dram": 55.5,
    "gpm_tx": 2,
    "gpm_rx": 3,
}
MEASURED = {
    "utilization_pct": 87.0,
    "memory_controller_pct": 41.0,
    "memory_used_bytes": 10_000_000_000,
    "memory_total_bytes": 80_000_000_000,
    "power_w": 251.5,
    "power_limit_w": 400.0,
    "temperature_c": 63.0,
    "temperature_limit_c": 92.0,
    "sm_clock_mhz": 1410.0,
    "sm_clock_max_mhz": 1980.0,
    "memory_clock_mhz": 1593.0,
    "memory_clock_max_mhz": 2619.0,
    "throttle_reasons": ["power_cap", "sw_thermal"],
    "pcie_tx_bytes_per_s": 1_200_000.0,
    "pcie_rx_bytes_per_s": 3_400_000.0,
    "pcie_width": 8,
    "pcie_width_max": 16,
    "pcie_generation": 4,
    "pcie_generation_max": 5,
    "ecc_corrected": 17,
    "ecc_uncorrected": 2,
    "compute_capability": 8.6,
}
ACTIVITY = {
    "sm_active_pct": 71.25,
    "sm_occupancy_pct": 33.5,
    "tensor_active_pct": 42.75,
    "dram_active_pct": 55.5,
    "pcie_tx_bytes_per_s": 2 * 2**20,
    "pcie_rx_bytes_per_s": 3 * 2**20,
}
LOST_BY = {
    "nvmlDeviceGetUtilizationRates": {"utilization_pct", "memory_controller_pct"},
    "nvmlDeviceGetMemoryInfo_v2": set(),
    "nvmlDeviceGetPowerUsage": {"power_w"},
    "nvmlDeviceGetEnforcedPowerLimit": {"power_limit_w"},
    "nvmlDeviceGetTemperature": set(),
    "nvmlDeviceGetTemperatureThreshold": set(),
    "nvmlDeviceGetClockInfo": {"sm_clock_mhz", "memory_clock_mhz"},
    "nvmlDeviceGetMaxClockInfo": {"sm_clock_max_mhz", "memory_clock_max_mhz"},
    "nvmlDeviceGetCurrentClocksEventReasons": set(),
    "nvmlDeviceGetPcieThroughput": {"pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"},
    "nvmlDeviceGetCurrPcieLinkWidth": {"pcie_width", "pcie_generation"},
    "nvmlDeviceGetCurrPcieLinkGeneration": {"pcie_width", "pcie_generation"},
    "nvmlDeviceGetMaxPcieLinkWidth": {"pcie_width_max", "pcie_generation_max"},
    "nvmlDeviceGetMaxPcieLinkGeneration": {"pcie_width_max", "pcie_generation_max"},
    "nvmlDeviceGetTotalEccErrors": {"ecc_corrected", "ecc_uncorrected"},
    "nvmlDeviceGetCudaComputeCapability": {"compute_capability"},
    "nvmlDeviceGetComputeRunningProcesses_v3": set(),
}
"""What a device does not give when a call fails for good; nothing where there is another way to ask."""
ALTERNATIVES = {
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetTemperatureThreshold",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetComputeRunningProcesses_v3",
}
SECOND_WAYS = {
    "nvmlDeviceGetTemperature": ("nvmlDeviceGetTemperatureV", {"temperature_c"}),
    "nvmlDeviceGetTemperatureThreshold": ("nvmlDeviceGetMarginTemperature", {"temperature_limit_c"}),
    "nvmlDeviceGetComputeRunningProcesses_v3": ("nvmlDeviceGetComputeRunningProcesses_v2", {"job_memory_bytes"}),
}
"""What is asked instead, and what is lost where the binding is too old to know it."""
OUTDATED = {call for call, (other, _) in SECOND_WAYS.items() if not hasattr(pynvml, other)}
LOST_BY |= {call: SECOND_WAYS[call][1] for call in OUTDATED}
ALTERNATIVES -= OUTDATED

DRIVER_GONE = {1: "Uninitialized", 9: "DriverNotLoaded", 12: "LibraryNotFound", 18: "LibRmVersionMismatch"}
DEVICE_GONE = (15, 16, 28)
FOR_GOOD = {
    2: "not supported",
    3: "not supported",
    4: "not permitted",
    13: "unknown to this driver",
    22: "not supported",
    25: "unknown to this driver",
    26: "not supported",
}
FOR_NOW = (5, 6, 7, 8, 10, 11, 14, 17, 19, 20, 21, 23, 24, 27, 29, 30, 999)


def build(folder, *flags):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler (cc, gcc or clang) to build the NVML stub with")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, *flags, "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, FOLDER / "nvml_stub.c"],
        check=True,
        timeout=120,
    )
    return folder


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """Folder of the stub."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_library(tmp_path_factory):
    """Folder of the stub as a driver before 510."""
    return build(tmp_path_factory.mktemp("old_nvml"), "-DOLD_DRIVER")


def environment(library):
    return os.environ | {"LD_LIBRARY_PATH": str(library)}


def run(library, *cases):
    """Results of some cases, all in one child process."""
    done = subprocess.run(
        [sys.executable, FOLDER / "child.py"],
        input=json.dumps([case if isinstance(case, dict) else {"scenario": case} for case in cases]),
        capture_output=True,
        text=True,
        env=environment(library),
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def gpu(uuid="GPU-aaaa-1", name="NVIDIA-A10", *lines, **values):
    """The statements of one GPU that measures everything but GPM."""
    known = (VALUES | values).items()
    return "\n".join([f"gpu {uuid} {name}", *(f"set {key} {value}" for key, value in known), *lines]) + "\n"


def samples(result, number=0):
    return [r for r in result["rounds"][number] if r["kind"] == "gpu"]


def events(result):
    return [(r["name"], r["detail"]) for taken in result["rounds"] for r in taken if r["kind"] == "event"]


def metrics_of(sample):
    return {k: v for k, v in sample.items() if k not in ("kind", "time_s", "index", "uuid", "name")}


NO_GPM = ("not measured on GPU 0", "activity of SMs, Tensor Cores and memory (not supported)")


def test_every_metric(library):
    """Each value arrives in its field and unit, through the real structs."""
    (seen,) = run(library, gpu("GPU-aaaa-1", "NVIDIA-A10", "process SELF 7000000000", "process 1 9000000000"))
    (sample,) = samples(seen)
    assert metrics_of(sample) == MEASURED | {"job_memory_bytes": 7_000_000_000}
    assert (sample["index"], sample["uuid"], sample["name"]) == (0, "GPU-aaaa-1", "NVIDIA-A10")
    assert seen["summary"] == "NVIDIA-A10; driver 570.00"
    assert events(seen) == [NO_GPM]
    assert (seen["error"], seen["users"]) == (None, 0)


def test_what_a_sample_costs(library):
    """Eight calls a second and device; what is slow or static is asked rarely."""
    times = [100.0 + i for i in range(61)]
    (seen,) = run(library, {"scenario": gpu(), "times": times})
    often = {
        "nvmlDeviceGetUtilizationRates": 1,
        "nvmlDeviceGetMemoryInfo_v2": 1,
        "nvmlDeviceGetPowerUsage": 1,
        "nvmlDeviceGetEnforcedPowerLimit": 1,
        "nvmlDeviceGetTemperature": 1,
        "nvmlDeviceGetClockInfo": 2,
        "nvmlDeviceGetCurrentClocksEventReasons": 1,
    }
    rarely = {"nvmlDeviceGetPcieThroughput": 14, "nvmlDeviceGetTotalEccErrors": 14}
    static = {"nvmlDeviceGetMaxClockInfo": 4, "nvmlDeviceGetCudaComputeCapability": 2}
    expected = {name: 61 * count for name, count in often.items()} | rarely | static | {"nvmlInitWithFlags": 1}
    assert {name: seen["calls"][name] for name in expected} == expected
    assert sum(seen["calls"].values()) < 61 * 10
    assert [len(metrics_of(taken[0])) for taken in seen["rounds"]] == [
        len(MEASURED) if i in (0, 60) else 16 if i % 10 == 0 else 10 for i in range(61)
    ]


def test_a_clock_set_back_asks_again(library):
    (seen,) = run(library, {"scenario": gpu(), "times": [100.0, 50.0]})
    assert metrics_of(samples(seen, 1)[0]) == MEASURED


@pytest.mark.parametrize("code", [*FOR_GOOD, *FOR_NOW])
def test_each_error_of_each_call(library, code):
    """A call that fails costs its own fields; for good it is dropped and named once, else it is asked again."""
    times = [100.0, 200.0, 300.0]
    healthy = gpu("GPU-aaaa-1", "NVIDIA-A10", "process SELF 7000000000")
    seen = run(library, *({"scenario": f"{healthy}error {call} {code}", "times": times} for call in LOST_BY))
    for (call, lost), result in zip(LOST_BY.items(), seen, strict=True):
        final = code in FOR_GOOD
        for number in range(3):
            (sample,) = samples(result, number)
            gone = {*MEASURED, "job_memory_bytes"} - set(metrics_of(sample))
            assert gone == (lost if final else gone), call
            if not final:
                assert gone, call
        told = [event for event in events(result) if event != NO_GPM]
        if not final:
            assert told == [], call
            assert result["calls"][call] >= 3, call
        elif call in ALTERNATIVES:
            assert result["calls"][call] == 1, call
            assert told == [], call
        else:
            (event,) = told
            assert ("needs a newer nvidia-ml-py" if call in OUTDATED else FOR_GOOD[code]) in event[1]
            assert result["not_measured"].keys() > set()
            assert result["calls"][call] <= 4, call
        assert (result["error"], result["users"]) == (None, 0), call


@pytest.mark.parametrize(("code", "name"), DRIVER_GONE.items())
@pytest.mark.parametrize("call", ["nvmlDeviceGetUtilizationRates", "nvmlDeviceGetTotalEccErrors", "nvmlGpmSampleGet"])
def test_a_driver_that_is_gone_ends_the_source(library, code, name, call):
    """The error rises, so that the monitor names the source once and switches it off."""
    scenario = gpu(**GPM) + f"error {call} {code} 2\n"
    (seen,) = run(library, {"scenario": scenario, "times": [100.0 + 20 * i for i in range(9)]})
    assert 1 <= len(seen["rounds"]) <= 2
    assert seen["error"][0] == f"NVMLError_{name}"


@pytest.mark.parametrize("after", [*range(0, 48, 5), 60, 75, 90])
def test_a_driver_that_dies_at_any_call(library, after):
    """Wherever it dies: in the start it is a reason, later an error; nothing hangs, and close is quiet."""
    scenario = f"{gpu(**GPM)}die 9 {after}\n"
    (seen,) = run(library, {"scenario": scenario, "times": [100.0 + i for i in range(30)]})
    if seen["error"] is None:
        assert "no GPU" in seen["reason"] or "Driver Not Loaded" in seen["reason"]
        assert seen["rounds"] == [[]] * 30
    else:
        assert seen["error"] == ["NVMLError_DriverNotLoaded", "Driver Not Loaded"]
        assert all(metrics_of(sample) for number in range(len(seen["rounds"])) for sample in samples(seen, number))
    assert sum(seen["calls"].values()) >= after


@pytest.mark.parametrize("code", DEVICE_GONE)
def test_a_gpu_that_is_lost_is_switched_off_alone(library, code):
    """The other one is measured on, under its own index."""
    scenario = gpu("GPU-a", "A") + gpu("GPU-b", "B") + f"error nvmlDeviceGetPowerUsage {code} 2 GPU-a\n"
    (seen,) = run(library, {"scenario": scenario, "times": [100.0, 101.0, 102.0, 103.0]})
    uuids = [[sample["uuid"] for sample in samples(seen, number)] for number in range(4)]
    assert uuids == [["GPU-a", "GPU-b"], ["GPU-b"], ["GPU-b"], ["GPU-b"]]
    assert [sample["index"] for sample in samples(seen, 3)] == [1]
    assert [name for name, _ in events(seen)].count("GPU 0 switched off") == 1
    assert (seen["error"], seen["users"]) == (None, 0)


def test_the_last_gpu_that_is_lost_ends_the_source(library):
    scenario = gpu() + "error nvmlDeviceGetPowerUsage 15 1\n"
    (seen,) = run(library, {"scenario": scenario, "times": [100.0, 101.0, 102.0]})
    assert seen["error"] == ["DeviceLostError", "GPU is lost"]
    assert len(seen["rounds"]) == 1


class TestGpm:
    TIMES = (100.0, 101.0, 102.0)

    def test_activity(self, library):
        """Means between two samples; the first one has nothing to compare with. PCIe traffic then costs no 20 ms."""
        (seen,) = run(library, {"scenario": gpu(**GPM), "times": self.TIMES})
        slow = {"pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"}
        assert metrics_of(samples(seen)[0]) == {k: v for k, v in MEASURED.items() if k not in slow}
        for number in (1, 2):
            found = metrics_of(samples(seen, number)[0])
            assert {name: found[name] for name in ACTIVITY} == ACTIVITY
            assert found["utilization_pct"] == 87.0
        assert "nvmlDeviceGetPcieThroughput" not in seen["calls"]
        assert seen["calls"]["nvmlGpmSampleGet"] == 3
        assert (seen["calls"]["nvmlGpmSampleAlloc"], seen["buffers"], events(seen)) == (2, 0, [])

    def test_too_soon(self, library):
        """NVML wants 100 ms between two samples."""
        (seen,) = run(library, {"scenario": gpu(**GPM), "times": [100.0, 100.05, 100.2]})
        assert "sm_active_pct" not in samples(seen, 1)[0]
        assert samples(seen, 2)[0]["sm_active_pct"] == 71.25
        assert seen["calls"]["nvmlGpmSampleGet"] == 2

    def test_a_metric_that_it_lacks(self, library):
        """Each counter has its own return code."""
        scenario = gpu(**{k: v for k, v in GPM.items() if k != "gpm_tensor"})
        (seen,) = run(library, {"scenario": scenario, "times": self.TIMES})
        found = metrics_of(samples(seen, 1)[0])
        assert {name: found.get(name) for name in ACTIVITY} == ACTIVITY | {"tensor_active_pct": None}

    @pytest.mark.parametrize("value", ["nan", "inf"])
    def test_no_number(self, library, value):
        (seen,) = run(library, {"scenario": gpu(**GPM | {"gpm_sm": value}), "times": self.TIMES})
        found = metrics_of(samples(seen, 1)[0])
        assert {name: found.get(name) for name in ACTIVITY} == ACTIVITY | {"sm_active_pct": None}

    @pytest.mark.parametrize(
        "call", ["nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmMetricsGet"]
    )
    @pytest.mark.parametrize(("code", "why"), [(3, "not supported"), (4, "not permitted"), (13, "unknown")])
    def test_refused(self, library, call, code, why):
        """It is dropped with its reason, everything else stays, and PCIe traffic is read the slow way."""
        scenario = f"{gpu(**GPM)}error {call} {code}\n"
        (seen,) = run(library, {"scenario": scenario, "times": [100.0, 101.0, 120.0]})
        (event,) = events(seen)
        assert f"activity of SMs, Tensor Cores and memory ({why}" in event[1]
        assert samples(seen, 2)[0]["pcie_rx_bytes_per_s"] == 3_400_000.0
        assert not {*ACTIVITY} & {*samples(seen, 1)[0]} - {"pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"}
        assert seen["calls"][call] == 1
        assert (seen["error"], seen["buffers"]) == (None, 0)

    @pytest.mark.parametrize("call", ["nvmlGpmSampleGet", "nvmlGpmMetricsGet"])
    def test_a_failure_in_between(self, library, call):
        """It comes back, once there are two samples in a row again."""
        times = [100.0 + i for i in range(5)]
        scenarios = [gpu(**GPM), f"{gpu(**GPM)}error {call} 999 2\n"]
        healthy, seen = run(library, *({"scenario": scenario, "times": times} for scenario in scenarios))
        assert ["sm_active_pct" in samples(healthy, n)[0] for n in range(5)] == [False, True, True, True, True]
        assert "sm_active_pct" in samples(seen, 1)[0]
        assert "sm_active_pct" not in samples(seen, 4)[0]
        assert seen["calls"][call] >= 4
        assert (seen["error"], events(seen), seen["buffers"]) == (None, [], 0)


MIG = (
    gpu("GPU-aaaa-1", "NVIDIA-A10")
    + gpu("GPU-bbbb-2", "NVIDIA-H100", "mode mig", gpm=1)
    + "mig MIG-1111 H100-MIG-1g.10gb 7 0\nset mem_total 10000000000\nset mem_used 3000000000\nset mem_reserved 1\n"
    + "".join(f"set {key} {value}\n" for key, value in GPM.items())
    + "mig MIG-2222 H100-MIG-2g.20gb 3 0\nset mem_total 20000000000\nset mem_used 1\nset mem_reserved 1\n"
)


class TestVisibleDevices:
    @pytest.mark.parametrize(
        ("visible", "expected"),
        [
            (None, ["GPU-aaaa-1", "MIG-1111", "MIG-2222"]),
            ("", []),
            ("1", ["MIG-1111", "MIG-2222"]),
            ("0", ["GPU-aaaa-1"]),
            ("GPU-aaaa", ["GPU-aaaa-1"]),
            ("MIG-22", ["MIG-2222"]),
            ("MIG-GPU-bbbb-2/3/0", ["MIG-2222"]),
            ("-1", []),
        ],
    )
    def test_chosen(self, library, visible, expected):
        environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        (seen,) = run(library, {"scenario": MIG, "environ": environ})
        assert [sample["uuid"] for sample in samples(seen)] == expected
        assert (seen["reason"] is None) == bool(expected)
        assert seen["users"] == 0

    def test_a_mig_instance(self, library):
        """Its own memory and counters, the GPU's temperature and clocks; its utilization comes from GPM."""
        case = {"scenario": MIG, "environ": {"CUDA_VISIBLE_DEVICES": "MIG-1111"}, "times": [100.0, 101.0]}
        (seen,) = run(library, case)
        first, second = (metrics_of(samples(seen, number)[0]) for number in (0, 1))
        foreign = {"utilization_pct", "memory_controller_pct", "power_w", "power_limit_w"}
        slow = {"pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"}
        own = {"memory_used_bytes": 3_000_000_000, "memory_total_bytes": 10_000_000_000}
        assert first == {k: v for k, v in MEASURED.items() if k not in foreign | slow} | own
        assert {name: second[name] for name in ACTIVITY} == ACTIVITY
        assert second["utilization_pct"] == 91.5
        assert "nvmlGpmSampleGet" not in seen["calls"]
        assert seen["not_measured"] == dict.fromkeys(("utilization", "power", "power limit"), "not supported")

    def test_devices_with_the_same_losses_are_named_together(self, library):
        scenario = gpu("GPU-a", "A") + gpu("GPU-b", "B") + gpu("GPU-c", "C", **GPM)
        (seen,) = run(library, scenario)
        assert events(seen) == [("not measured on GPU 0, 1", NO_GPM[1])]

    def test_a_doubt_about_the_choice_is_told_once(self, library):
        scenario = gpu("GPU-a", "A", **GPM) + gpu("GPU-b", "B", **GPM)
        case = {"scenario": scenario, "times": [100.0, 101.0], "environ": {"CUDA_VISIBLE_DEVICES": "1"}}
        ordered = {**case, "environ": {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}}
        seen, sure = run(library, case, ordered)
        assert [name for name, _ in events(seen)] == ["visible GPUs"]
        assert events(sure) == []

    def test_a_gpu_that_may_not_be_opened_is_not_counted(self, library):
        """As CUDA does not count it: the first that may be opened is number 0."""
        scenario = gpu("GPU-a", "A") + gpu("GPU-b", "B") + "error nvmlDeviceGetHandleByIndex_v2 4\n"
        (seen,) = run(library, scenario)
        assert seen["reason"] == "NVML found no GPU"


@pytest.mark.skipif(bool(OUTDATED), reason="this binding knows the newer calls only")
def test_an_old_driver(old_library):
    """What drivers before 510 lack is asked the old way; GPM is unknown to them."""
    (seen,) = run(old_library, {"scenario": gpu("GPU-a", "T4", "process SELF 5"), "times": [100.0, 101.0]})
    assert metrics_of(samples(seen)[0]) == MEASURED | {"memory_used_bytes": 10_600_000_000, "job_memory_bytes": 5}
    assert events(seen) == [
        ("not measured on GPU 0", "activity of SMs, Tensor Cores and memory (unknown to this driver)")
    ]


@pytest.mark.parametrize("code", [1, 2, 4, 9, 12, 15, 18, 999])
def test_nvml_that_does_not_start(library, code):
    """It is no error: most machines have no GPU."""
    (seen,) = run(library, {"scenario": gpu() + f"error nvmlInitWithFlags {code}\n", "times": [100.0, 101.0]})
    assert "NVML did not start" in seen["reason"]
    assert seen["fix"]
    assert (seen["rounds"], seen["error"], seen["calls"]) == ([[], []], None, {"nvmlInitWithFlags": 1})


class TestProcesses:
    def test_only_this_job_counts(self, library):
        """Memory that NVML does not tell counts as nothing; a job without any is not measured."""
        other = gpu("GPU-a", "A", "process 1 9000000000", **GPM)
        untold = gpu("GPU-a", "A", "process SELF -1", **GPM)
        both = gpu("GPU-a", "A", "process SELF 5", "process SELF -1", "process 1 7", **GPM)
        first, second, third = run(library, other, untold, both)
        assert "job_memory_bytes" not in samples(first)[0]
        assert "job_memory_bytes" not in samples(second)[0]
        assert samples(third)[0]["job_memory_bytes"] == 5


RUN = """
import json, sys, time
from pathlib import Path
from stallmeter import Monitor
from stallmeter.engine import wiring
from stallmeter.sources.nvml import NvmlSource

wiring.start_drawing = lambda: None
bare = {"hardware": False, "workers": False, "rules": (), "trackers": None, "console": False}
with Monitor(directory=Path(sys.argv[1]), interval_s=0.02, sources=[NvmlSource()], **bare) as monitor:
    done = 0
    deadline = time.monotonic() + 60
    for batch in monitor.watch(range(100_000)):
        time.sleep(0.002)
        done += 1
        named = any("switched off" in event.name for event in monitor.window.events)
        if time.monotonic() > deadline or (named and done > 300):
            break
off = [event.name for event in monitor.window.events if "switched off" in event.name]
print(json.dumps({"steps": done, "recorded": monitor.window.ledger.record.steps, "off": off,
                  "samples": sum(len(gpu.items) for gpu in monitor.window.gpu.samples.values())}))
"""


def test_a_driver_that_dies_in_mid_run(library, tmp_path):
    """Training goes on, the source is named once and given up in the end; what was measured until then is kept."""
    scenario = tmp_path / "scenario.txt"
    scenario.write_text(gpu(**GPM) + "die 9 120\n", encoding="ascii")
    done = subprocess.run(
        [sys.executable, "-c", RUN, tmp_path / "runs"],
        env=environment(library) | {"NVML_STUB": str(scenario), "CUDA_VISIBLE_DEVICES": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["steps"] > 300
    assert seen["recorded"] in (seen["steps"], seen["steps"] - 1)
    assert seen["off"] == ["source nvml switched off"]
    assert seen["samples"] >= 2
    assert done.stderr.count("source nvml failed and is tried again; training goes on") == 1


def test_doctor(library, tmp_path):
    """`stallmeter doctor` names the driver, the GPU, and what is not measured and why."""
    scenario = tmp_path / "scenario.txt"
    scenario.write_text(gpu() + "error nvmlDeviceGetTotalEccErrors 4\n", encoding="ascii")
    done = subprocess.run(
        [sys.executable, "-m", "stallmeter", "doctor"],
        env=environment(library) | {"NVML_STUB": str(scenario), "CUDA_VISIBLE_DEVICES": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "ok nvml NVIDIA-A10; driver 570.00" in lines
    assert "- nvml, not permitted ECC errors" in lines
    assert "- nvml, not supported activity of SMs, Tensor Cores and memory" in lines


def test_nothing_else_is_asked_in_the_training_thread(library, tmp_path):
    """Making the source loads no library: the sampler thread starts NVML."""
    code = (
        "import pynvml; from stallmeter.sources.nvml import NvmlSource; source = NvmlSource(); source.close();"
        "print(pynvml.nvmlLib is None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(library), capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "True"
