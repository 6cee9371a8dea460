"""What the job may use, read from recorded /proc and /sys trees."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.machine.budget import (
    Budget,
    CgroupFiles,
    MemoryUse,
    ThrottleCounters,
    count_ranks_on_node,
    cpu_affinity,
    read_budget,
    read_shm,
)

DATA = Path(__file__).parents[1] / "data"
GIB = 1 << 30


@pytest.mark.parametrize(
    ("tree", "version", "quota_cpus", "memory_limit_bytes"),
    [
        ("cgroup1_docker", 1, 2.5, 8 * GIB),
        ("cgroup1_slurm", 1, None, 32 * GIB),
        ("cgroup2_kubernetes", 2, 4.5, 16 * GIB),
        ("cgroup2_namespaced", 2, 0.5, 1 * GIB),
        ("cgroup2_unlimited", 2, None, 32780000 * 1024),
        ("cgroup_hybrid", 1, 3.0, 16384000 * 1024),
    ],
)
def test_budget_of_recorded_machines(tree, version, quota_cpus, memory_limit_bytes):
    budget = read_budget(DATA / tree, {}, host_cpus=64, affinity=range(32))
    assert budget == Budget(
        host_cpus=64,
        affinity_cpus=32,
        quota_cpus=quota_cpus,
        memory_limit_bytes=memory_limit_bytes,
        cgroup_version=version,
    )
    assert budget.usable_cpus == (quota_cpus or 32.0)


@pytest.mark.parametrize(
    ("tree", "throttling", "memory"),
    [
        ("cgroup1_docker", ThrottleCounters(5120, 312, 45_678_901_234), MemoryUse(8 * GIB, 2147483648 - 805306368)),
        # The job's limit binds, not the equal one of the step below it.
        ("cgroup1_slurm", None, MemoryUse(32 * GIB, 20 * GIB - GIB)),
        # The pod's limits are tighter than the container's, and its counters include the siblings.
        ("cgroup2_kubernetes", ThrottleCounters(1000, 250, 12_500_000_000), MemoryUse(16 * GIB, 4_000_000_000)),
        # More reclaimable cache than use: the two files are not read at the same moment.
        ("cgroup2_namespaced", ThrottleCounters(40, 39, 1_900_000_000), MemoryUse(GIB, 0)),
        ("cgroup2_unlimited", None, None),
        ("cgroup_hybrid", ThrottleCounters(10, 0, 0), None),
    ],
)
def test_counters_of_the_tightest_level(tree, throttling, memory):
    files = CgroupFiles.find(DATA / tree)
    assert files.read_throttling() == throttling
    assert files.read_memory() == memory


def test_counters_are_read_anew_each_time(tmp_path):
    root = shutil.copytree(DATA / "cgroup2_namespaced", tmp_path / "root")
    files = CgroupFiles.find(root)
    (root / "sys/fs/cgroup/cpu.stat").write_text("nr_periods 41\nnr_throttled 40\nthrottled_usec 2000000\n")
    (root / "sys/fs/cgroup/memory.current").write_text("1000000000\n")
    assert files.read_throttling() == ThrottleCounters(41, 40, 2_000_000_000)
    assert files.read_memory() == MemoryUse(GIB, 100_000_000)


@pytest.mark.parametrize("missing", ["cpu.stat", "memory.current", "cpu.max", "memory.max", "memory.stat"])
def test_a_missing_file_costs_only_what_it_said(tmp_path, missing):
    root = shutil.copytree(DATA / "cgroup2_namespaced", tmp_path / "root")
    (root / "sys/fs/cgroup" / missing).unlink()
    files = CgroupFiles.find(root)
    assert (files.read_throttling() is None) == missing.startswith("cpu")
    assert (files.read_memory() is None) == (missing in {"memory.current", "memory.max"})
    assert (files.quota_cpus is None) == (missing == "cpu.max")


def test_counters_without_throttled_time_are_not_taken_for_zero(tmp_path):
    root = shutil.copytree(DATA / "cgroup2_namespaced", tmp_path / "root")
    (root / "sys/fs/cgroup/cpu.stat").write_text("nr_periods 41\nnr_throttled 40\n")
    assert CgroupFiles.find(root).read_throttling() is None


def test_a_container_that_sees_the_hosts_path_uses_its_own_mount(tmp_path):
    root = shutil.copytree(DATA / "cgroup2_namespaced", tmp_path / "root")
    (root / "proc/self/cgroup").write_text("0::/kubepods/burstable/pod7/abc\n")
    assert CgroupFiles.find(root).quota_cpus == 0.5


def test_a_cgroup_outside_the_namespace_has_no_known_limit(tmp_path):
    root = shutil.copytree(DATA / "cgroup2_namespaced", tmp_path / "root")
    (root / "proc/self/cgroup").write_text("0::/../other\n")
    assert CgroupFiles.find(root) == CgroupFiles()


@pytest.mark.parametrize("text", ["max 100000", "0 100000", "100000 0", "nonsense", "", "1 2 3"])
def test_no_quota(tmp_path, text):
    root = shutil.copytree(DATA / "cgroup2_namespaced", tmp_path / "root")
    (root / "sys/fs/cgroup/cpu.max").write_text(text)
    assert CgroupFiles.find(root).quota_cpus is None


def test_without_cgroups_the_host_is_the_budget(tmp_path):
    budget = read_budget(tmp_path, {}, host_cpus=8)
    assert (budget.cgroup_version, budget.quota_cpus, budget.shm_bytes) == (None, None, None)
    assert CgroupFiles.find(tmp_path) == CgroupFiles()


def test_without_affinity_the_host_counts(monkeypatch):
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    budget = read_budget(DATA / "cgroup2_unlimited", {}, host_cpus=8)
    assert cpu_affinity() is None
    assert (budget.affinity_cpus, budget.usable_cpus) == (None, 8.0)


def test_without_sysconf_and_statvfs_memory_is_unknown(monkeypatch, tmp_path):
    monkeypatch.delattr("os.sysconf", raising=False)
    monkeypatch.delattr("os.statvfs", raising=False)
    budget = read_budget(tmp_path, {}, host_cpus=8)
    assert (budget.memory_limit_bytes, budget.shm_bytes, read_shm()) == (None, None, None)


def test_shm_is_measured_where_it_is_mounted(tmp_path):
    (tmp_path / "dev/shm").mkdir(parents=True)
    shm = read_shm(tmp_path)
    assert shm is not None
    assert shm[0] >= shm[1] > 0


@pytest.mark.parametrize(
    ("environ", "ranks"),
    [
        ({}, 1),
        ({"LOCAL_WORLD_SIZE": "4", "SLURM_NTASKS_PER_NODE": "1"}, 4),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "8", "SLURM_TASKS_PER_NODE": "1"}, 8),
        ({"MPI_LOCALNRANKS": "2"}, 2),
        ({"SLURM_STEP_ID": "0", "SLURM_NTASKS_PER_NODE": "2"}, 2),
        ({"SLURM_STEP_ID": "0", "SLURM_TASKS_PER_NODE": "2(x3),1"}, 2),
        ({"SLURM_STEP_ID": "0", "SLURM_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "2"}, 2),
        ({"SLURM_STEP_ID": "0", "SLURM_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "3"}, 1),
        ({"SLURM_STEP_ID": "0", "SLURM_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "9"}, 2),
        # a batch script that starts the program without srun: one process
        ({"SLURM_PROCID": "0", "SLURM_NTASKS_PER_NODE": "8", "SLURM_TASKS_PER_NODE": "8"}, 1),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_TASKS_PER_NODE": "8(x2)"}, 1),
        ({"LOCAL_WORLD_SIZE": "0"}, 1),
        ({"LOCAL_WORLD_SIZE": "many", "SLURM_TASKS_PER_NODE": "2(x"}, 1),
    ],
)
def test_ranks_on_node(environ, ranks):
    assert count_ranks_on_node(environ) == ranks


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({}, None),
        ({"LOCAL_RANK": "3", "SLURM_LOCALID": "0", "SLURM_STEP_ID": "0"}, 3),
        ({"SLURM_LOCALID": "2", "SLURM_STEP_ID": "0"}, 2),
        ({"SLURM_LOCALID": "0"}, None),
        ({"MPI_LOCALRANKID": "x"}, None),
    ],
)
def test_local_rank(environ, rank):
    assert read_budget(DATA / "cgroup1_docker", environ).local_rank == rank


@pytest.mark.parametrize(("others", "quota", "taken"), [(12.0, 2.0, 0.0), (63.0, 2.0, 1.0), (12.0, None, 12.0)])
def test_a_quota_leaves_cpus_to_others(others, quota, taken):
    """Of 64 CPUs the job may keep two busy: twelve that others use are none of its own."""
    assert Budget(host_cpus=64, affinity_cpus=64, quota_cpus=quota).in_the_way(others) == taken


def test_ranks_share_affinity_and_quota():
    assert Budget(host_cpus=64, affinity_cpus=32, quota_cpus=24.0, ranks_on_node=4).cpus_per_rank == 6.0
    assert Budget(host_cpus=64, affinity_cpus=16, quota_cpus=24.0, ranks_on_node=4).cpus_per_rank == 4.0


def test_a_rank_that_srun_bound_does_not_share_its_affinity():
    slurm = {"SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_CPU_BIND_LIST": "0x000F,0x00F0,0x0F00,0xF000"}
    bound = read_budget(DATA / "cgroup1_slurm", slurm, host_cpus=16, affinity=range(4))
    assert (bound.ranks_on_node, bound.cpus_per_rank) == (4, 4.0)
    same_mask = slurm | {"SLURM_CPU_BIND_LIST": "0xFFFF"}
    shared = read_budget(DATA / "cgroup1_slurm", same_mask, host_cpus=16, affinity=range(16))
    assert shared.cpus_per_rank == 4.0


@pytest.mark.parametrize(("environ", "given", "ranks"), [({}, 2, 2), ({"LOCAL_WORLD_SIZE": "4"}, 1, 4), ({}, 1, 1)])
def test_framework_and_launcher_each_know_of_ranks(environ, given, ranks):
    """Under Ray each rank's Trainer has one device; what Lightning starts itself no launcher has counted."""
    step = {"SLURM_STEP_TASKS_PER_NODE": "1"}
    assert read_budget(DATA / "cgroup1_docker", step | environ, ranks_on_node=given).ranks_on_node == ranks


@given(
    host=st.integers(1, 512),
    affinity=st.integers(1, 512),
    quota=st.one_of(st.none(), st.floats(0.01, 512)),
    ranks=st.integers(1, 16),
    bound=st.booleans(),
)
def test_no_rank_gets_more_than_the_job(host, affinity, quota, ranks, bound):
    budget = Budget(host_cpus=host, affinity_cpus=affinity, quota_cpus=quota, ranks_on_node=ranks, bound_per_rank=bound)
    assert 0 < budget.cpus_per_rank <= budget.usable_cpus <= affinity


def test_this_machine_has_a_budget():
    budget = read_budget()
    assert 0 < budget.usable_cpus <= budget.host_cpus
    assert budget.memory_limit_bytes is None or budget.memory_limit_bytes > 0
