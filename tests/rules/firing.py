"""For each rule a window in which it fires."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from stallmeter.records import SyncCalls, WorkerBatch
from stallmeter.window import Window

from . import (
    test_accelerator_unused,
    test_bound_process,
    test_cold_cache,
    test_debug_mode,
    test_dense_embeddings,
    test_double_precision,
    test_dropped_gradients,
    test_fixed_features,
    test_float64_operations,
    test_gc_pauses,
    test_gpu_memory_growth,
    test_gpu_memory_near_limit,
    test_gpu_throttled,
    test_half_precision_on_cpu,
    test_host_memory_growth,
    test_host_memory_near_limit,
    test_ignored_labels,
    test_launch_bound,
    test_low_gpu_memory_use,
    test_low_utilization,
    test_made_weights,
    test_mixed_precision_off,
    test_no_step_ends,
    test_open_files_growth,
    test_padded_batches,
    test_recompiles,
    test_recomputed_activations,
    test_repeated_backward,
    test_repeated_derivatives,
    test_same_result,
    test_shm_near_limit,
    test_slow_function,
    test_slow_optimizer,
    test_slow_start,
    test_small_batches,
    test_step_outliers,
    test_step_time_drift,
    test_subnormal_numbers,
    test_too_few_threads,
    test_too_many_threads,
    test_transfer_bound,
    test_unused_gradients,
    test_validation_heavy,
    test_weight_penalty,
    test_worker_startup,
)
from .test_input_family import CASES
from .test_pipelines import CASES as PIPELINES
from .test_pipelines import pipeline
from .waiting import waiting
from .windows import START_S, batches, hosts, loader, run, traffic

SYNCS = SyncCalls(time_s=START_S, first_step=5, steps=2, calls={"model.py:31 in forward": 6})


def _busy() -> Window:
    cpus = hosts(20, lambda i: {"usable_cpus": 4.0, "job_cpus": 4.0, "others_cpus": 0.0})
    return run(loader(), *batches(), *cpus, data_wait=30.0)


def _blocked() -> Window:
    return run(loader(), *batches(cpu_s=0.03), *hosts(20, lambda i: {"cpu_iowait_pct": 35.0}), data_wait=30.0)


def _idle() -> Window:
    """Four workers, two of which have nothing to read."""
    made = [WorkerBatch(worker=i % 2, time_s=START_S + i, wall_s=0.01, cpu_s=0.01, run_queue_s=0.0) for i in range(60)]
    return run(loader(4), *made)


FIRING: dict[str, Callable[[], Window]] = {
    **{rule: partial(waiting, **case) for rule, case in CASES.items()},
    "accelerator-unused": lambda: run(*test_accelerator_unused.used(0.0), facts={"accelerator": "CPUAccelerator"}),
    "bound-process": test_bound_process.bound,
    "checkpoint-stall": lambda: run(loader(), checkpoint=20.0),
    "lock-contention": lambda: pipeline(**PIPELINES["threads in Python"][1]),
    "cold-cache": lambda: test_cold_cache.epochs(0.2, 0.005, 0.005, service_s=(0.4, 0.05), read_bytes=5_000_000),
    "compute-bound": lambda: run(loader()),
    "cpu-saturated": _busy,
    "debug-mode": lambda: test_debug_mode.debugged(98.0, noting=0.2),
    "dense-embeddings": test_dense_embeddings.dense,
    "ignored-labels": test_ignored_labels.scored,
    "float64-operations": test_float64_operations.wide,
    "made-weights": test_made_weights.made,
    "fixed-features": test_fixed_features.fixed,
    "repeated-backward": test_repeated_backward.repeated,
    "same-result": test_same_result.same,
    "small-batches": test_small_batches.sized,
    "dropped-gradients": test_dropped_gradients.in_turn,
    "gc-pauses": lambda: test_gc_pauses.paused(12.0, loader()),
    "gpu-memory-growth": lambda: test_gpu_memory_growth.grown(lambda i: 10.0 * i),
    "gpu-memory-near-limit": lambda: test_gpu_memory_near_limit.filled(15.0),
    "gpu-throttled": lambda: test_gpu_throttled.throttled(20, "sw_thermal"),
    "double-precision": test_double_precision.doubled,
    "half-precision-on-cpu": test_half_precision_on_cpu.emulated,
    "host-memory-growth": lambda: test_host_memory_growth.grown(lambda i: 4.0 * i),
    "host-memory-near-limit": lambda: test_host_memory_near_limit.peak(93.0),
    "host-sync": lambda: test_launch_bound.launching(60.0, 1.0, SYNCS),
    "idle-workers": _idle,
    "io-wait-high": _blocked,
    "launch-bound": lambda: test_launch_bound.launching(60.0, 1.0, SyncCalls(time_s=START_S, first_step=5, steps=2)),
    "low-gpu-memory-use": lambda: test_low_gpu_memory_use.free(4.0, loader()),
    "low-utilization": test_low_utilization.machine,
    "mixed-precision-off": test_mixed_precision_off.computing,
    "network-saturated": lambda: run(loader(), *batches(cpu_s=0.03), *traffic([8e7] * 30, [0.0] * 30), data_wait=30.0),
    "open-files-growth": lambda: test_open_files_growth.opened(lambda i: 60 + 10 * i),
    "recompiles": test_recompiles.compiled,
    "recomputed-activations": test_recomputed_activations.checkpointed,
    "repeated-derivatives": test_repeated_derivatives.asked,
    "padded-batches": test_padded_batches.padded,
    "subnormal-numbers": test_subnormal_numbers.filtered,
    "shm-near-limit": lambda: test_shm_near_limit.shared(50, batch_mb=19.0),
    "slow-callback": lambda: run(loader(), callbacks={"Ema": 20.0}),
    "no-step-ends": lambda: test_no_step_ends.stood(40.0),
    "slow-function": lambda: test_slow_function.each(test_slow_function.look(0.5)),
    "slow-logging": lambda: run(loader(), logging={"MLFlowLogger": 20.0}),
    "slow-optimizer": test_slow_optimizer.updating,
    "unused-gradients": test_unused_gradients.in_vain,
    "slow-start": lambda: test_slow_start.started(40.0),
    "step-outliers": lambda: test_step_outliers.pauses(50),
    "step-time-drift": test_step_time_drift.slower,
    "too-few-threads": test_too_few_threads.idling,
    "too-many-threads": test_too_many_threads.crowded,
    "transfer-bound": lambda: test_transfer_bound.copying(0.025),
    "unpinned-memory": lambda: test_transfer_bound.copying(0.025, pinned=False),
    "validation-heavy": lambda: test_validation_heavy.part(30.0),
    "weight-penalty": test_weight_penalty.penalised,
    "worker-startup": test_worker_startup.epochs,
}
"""By id of the rule. A rule that is not here is not tested: `test_abstain` fails for it."""
