"""The cases: one planted fault each, at three intensities, and shapes with nothing planted.

Sizes are for two CPUs, to which every case is pinned, so that they mean the same on any machine; besides its device a
step costs some 3 ms. Faults stay faults when a seed varies all costs. A fault's truth is the one change that would win
most of the time back; where two changes would, the case says which both are right.
"""

from __future__ import annotations

from collections.abc import Sequence

from .case import HEALTHY, MORE_WORKERS, Case
from .shape import Shape

CPUS = 2
"""CPUs that a case may use."""

MILLI = 1e-3


def _steps(seconds: float, step_s: float) -> int:
    return max(20, round(seconds / step_s))


def _no_workers(item_ms: float, device_ms: float, *, cpu: bool) -> Shape:
    item = item_ms * MILLI
    return Shape(
        device_s=device_ms * MILLI,
        item_cpu_s=item if cpu else 0.0,
        item_wait_s=0.0 if cpu else item,
        steps=_steps(5, 8 * item + device_ms * MILLI),
    )


def _cpu_workers(workers: int, item_ms: float, device_ms: float) -> Shape:
    """Workers that compute; a batch of 8 takes them ``8 * item_ms`` of CPU time."""
    batch = 8 * item_ms * MILLI
    step = max(device_ms * MILLI, batch / min(workers, CPUS))
    return Shape(device_s=device_ms * MILLI, workers=workers, item_cpu_s=item_ms * MILLI, steps=_steps(5.5, step))


def _waiting_workers(workers: int, item_ms: float, device_ms: float) -> Shape:
    """Workers that wait for storage."""
    step = max(device_ms * MILLI, 8 * item_ms * MILLI / workers)
    return Shape(device_s=device_ms * MILLI, workers=workers, item_wait_s=item_ms * MILLI, steps=_steps(5.5, step))


def _store(workers: int, kilobytes: float, megabytes_per_s: float, device_ms: float) -> Shape:
    step = max(device_ms * MILLI, 8 * kilobytes * 1e3 / (megabytes_per_s * 1e6))
    return Shape(
        device_s=device_ms * MILLI,
        workers=workers,
        item_bytes=int(kilobytes * 1e3),
        store_bytes_per_s=megabytes_per_s * 1e6,
        steps=_steps(5.5, step),
    )


def _slow_batches(every: int, slow_ms: float, device_ms: float, *, cpu: bool = False) -> Shape:
    """One item in ``every`` batches takes ``slow_ms``; the others 1.5 ms a batch."""
    slow = slow_ms * MILLI
    return Shape(
        device_s=device_ms * MILLI,
        workers=3,
        item_wait_s=0.2 * MILLI,
        slow_every=8 * every,
        slow_item_s=0.0 if cpu else slow,
        slow_item_cpu_s=slow if cpu else 0.0,
        steps=_steps(6, device_ms * MILLI + 0.7 * slow / every),
    )


def _handoff(tensors: int, making_ms: float, device_ms: float) -> Shape:
    """Batches of many small tensors, which take 0.15 to 0.2 ms each to hand over and ``making_ms`` to make.

    Made in the loop they would cost no less than the hand-over: workers are right, the form of the batch is not.
    """
    return Shape(
        device_s=device_ms * MILLI,
        workers=2,
        tensors=tensors,
        item_wait_s=making_ms * MILLI,
        steps=_steps(5, (device_ms + 0.17 * tensors) * MILLI),
    )


def _neighbour(neighbours: int, item_ms: float, device_ms: float) -> Shape:
    """Two workers that keep up with the device when the CPUs are theirs; each CPU has them and half the neighbours."""
    step = 8 * item_ms * MILLI * (1 + neighbours / CPUS) / CPUS
    return Shape(
        device_s=device_ms * MILLI,
        workers=2,
        item_cpu_s=item_ms * MILLI,
        neighbours=neighbours,
        steps=_steps(6, step),
    )


FAULTS: tuple[Case, ...] = (
    Case(
        id="no-workers-cpu",
        truth="no-workers",
        what="no workers; items cost CPU time in the loop",
        shapes=(
            _no_workers(0.8, 20, cpu=True),
            _no_workers(2.0, 15, cpu=True),
            _no_workers(4.0, 12, cpu=True),
        ),
    ),
    Case(
        id="no-workers-io",
        truth="no-workers",
        what="no workers; items wait for storage in the loop",
        shapes=(
            _no_workers(0.8, 20, cpu=False),
            _no_workers(2.0, 15, cpu=False),
            _no_workers(5.0, 12, cpu=False),
        ),
    ),
    Case(
        id="too-few-workers",
        truth="too-few-workers",
        what="one worker busy with its CPU while the other CPU is free",
        shapes=(_cpu_workers(1, 3.6, 14), _cpu_workers(1, 4.5, 14), _cpu_workers(1, 5.5, 14)),
    ),
    Case(
        id="prep-stall",
        truth="prep-stall",
        what="as many workers as CPUs, all busy",
        shapes=(_cpu_workers(2, 5.5, 9), _cpu_workers(2, 7.0, 8), _cpu_workers(2, 9.0, 6)),
        forbidden_advice=(MORE_WORKERS,),
    ),
    Case(
        id="prep-stall-crowded",
        truth="prep-stall",
        what="more busy workers than CPUs",
        shapes=(_cpu_workers(3, 5.5, 9), _cpu_workers(4, 6.5, 8), _cpu_workers(6, 7.0, 6)),
        also_allowed=frozenset({"cpu-saturated"}),
        forbidden_advice=(MORE_WORKERS,),
    ),
    Case(
        id="fetch-stall-latency",
        truth="fetch-stall",
        what="workers wait for a storage that answers late",
        shapes=(_waiting_workers(2, 5.5, 9), _waiting_workers(2, 7.0, 8), _waiting_workers(3, 12.0, 8)),
    ),
    Case(
        id="fetch-stall-bandwidth",
        truth="fetch-stall",
        what="workers read from an HTTP store that delivers slowly, however many ask",
        shapes=(_store(2, 60, 18, 9), _store(2, 80, 16, 10), _store(3, 100, 16, 8)),
        also_allowed=frozenset({"network-saturated"}),
    ),
    Case(
        id="worker-startup-spawn",
        truth="worker-startup",
        what="spawned workers, started anew in each short epoch",
        shapes=tuple(
            Shape(
                device_s=15 * MILLI,
                workers=2,
                start_method="spawn",
                item_cpu_s=0.2 * MILLI,
                epochs=epochs,
                steps=steps,
            )
            for epochs, steps in ((3, 130), (3, 80), (4, 50))
        ),
        forbidden_advice=(MORE_WORKERS,),
        says=("persistent_workers",),
    ),
    Case(
        id="worker-startup-init",
        truth="worker-startup",
        what="forked workers whose worker_init_fn takes long, in each short epoch",
        shapes=tuple(
            Shape(
                device_s=15 * MILLI,
                workers=2,
                item_cpu_s=0.2 * MILLI,
                worker_init_s=init,
                epochs=epochs,
                steps=60,
            )
            for init, epochs in ((0.35, 5), (0.6, 5), (1.2, 4))
        ),
        forbidden_advice=(MORE_WORKERS,),
        says=("persistent_workers",),
    ),
    Case(
        id="worker-startup-fork",
        truth="worker-startup",
        what="every fork waits in a handler, as for the pending request of a tracker's client",
        shapes=tuple(
            Shape(
                device_s=15 * MILLI,
                workers=2,
                item_cpu_s=0.2 * MILLI,
                fork_wait_s=fork,
                epochs=epochs,
                steps=60,
            )
            for fork, epochs in ((0.2, 5), (0.35, 5), (0.7, 4))
        ),
        forbidden_advice=(MORE_WORKERS,),
        says=(r"\bfork",),
    ),
    Case(
        id="slow-batches",
        truth="slow-batches",
        what="one item in many is slow and holds up the batches behind it",
        shapes=(
            _slow_batches(20, 250, 10),
            _slow_batches(25, 400, 8),
            _slow_batches(25, 500, 10, cpu=True),
        ),
    ),
    Case(
        id="batch-handoff",
        truth="batch-handoff",
        what="batches of many small tensors, quick to make and slow to hand over",
        shapes=(_handoff(100, 24, 20), _handoff(200, 45, 15), _handoff(320, 75, 15)),
        forbidden_advice=(MORE_WORKERS,),
    ),
    Case(
        id="too-many-workers",
        truth="too-many-workers",
        what="four workers for tiny items in memory",
        shapes=tuple(
            Shape(device_s=device * MILLI, workers=4, steps=_steps(5, (device + 2) * MILLI)) for device in (5, 3, 1.5)
        ),
        forbidden_advice=(MORE_WORKERS,),
    ),
    Case(
        id="slow-callback",
        truth="slow-callback",
        what="a callback takes its time in each batch",
        shapes=tuple(
            Shape(device_s=15 * MILLI, callback_s=cost * MILLI, steps=_steps(5, (15 + cost) * MILLI))
            for cost in (4, 10, 30)
        ),
        culprit="ActivationHistograms",
    ),
    Case(
        id="slow-callback-hook",
        truth="slow-callback",
        what="the module's own on_train_batch_end computes in each batch",
        shapes=tuple(
            Shape(device_s=15 * MILLI, hook_cpu_s=cost * MILLI, steps=_steps(5, (15 + cost) * MILLI))
            for cost in (4, 10, 30)
        ),
        culprit="on_train_batch_end",
    ),
    Case(
        id="slow-logging",
        truth="slow-logging",
        what="a logger that is written to often answers slowly",
        shapes=tuple(
            Shape(
                device_s=15 * MILLI,
                logger_s=cost * MILLI,
                log_every=every,
                steps=_steps(5, (15 + cost / every) * MILLI),
            )
            for cost, every in ((20, 5), (15, 2), (20, 1))
        ),
        culprit="RemoteLogger",
    ),
    Case(
        id="checkpoint-stall",
        truth="checkpoint-stall",
        what="a checkpoint every few steps to a slow storage",
        shapes=tuple(
            Shape(
                device_s=15 * MILLI,
                save_every=every,
                save_s=cost * MILLI,
                weights_bytes=weights,
                steps=_steps(6, (15 + cost / every) * MILLI),
            )
            for every, cost, weights in ((50, 150, 8_000_000), (25, 250, 4_000_000), (20, 600, 1_000_000))
        ),
    ),
    Case(
        id="validation-heavy",
        truth="validation-heavy",
        what="validation takes a large part of the run",
        shapes=tuple(
            Shape(
                device_s=15 * MILLI,
                epochs=epochs,
                steps=steps,
                validate_every=every,
                validate_steps=count,
                validate_s=15 * MILLI,
            )
            for epochs, steps, every, count in ((2, 100, 50, 35), (3, 60, 60, 60), (1, 100, 10, 20))
        ),
    ),
    Case(
        id="noisy-neighbour",
        truth="noisy-neighbour",
        what="processes outside the job take the CPUs that its workers need",
        shapes=(_neighbour(3, 3.0, 16), _neighbour(4, 3.0, 16), _neighbour(6, 3.5, 18)),
        also_allowed=frozenset({"cpu-saturated"}),
        forbidden_advice=(MORE_WORKERS,),
    ),
    Case(
        id="slow-start",
        truth="slow-start",
        what="long preparation before the first step of a short run",
        shapes=(
            Shape(device_s=15 * MILLI, setup_s=3.0, steps=200),
            Shape(device_s=15 * MILLI, prepare_s=5.0, steps=200),
            Shape(device_s=15 * MILLI, setup_s=4.0, prepare_s=4.0, steps=150),
        ),
    ),
    Case(
        id="host-memory-growth",
        truth="host-memory-growth",
        what="memory is kept with every step, or with every item",
        shapes=(
            Shape(device_s=20 * MILLI, leak_bytes=600_000, steps=400),
            Shape(device_s=20 * MILLI, leak_bytes=1_500_000, steps=400),
            Shape(device_s=20 * MILLI, workers=2, item_cpu_s=0.2 * MILLI, leak_item_bytes=150_000, steps=400),
        ),
        accept=frozenset({"compute-bound"}),
        required=frozenset({"host-memory-growth"}),
    ),
    Case(
        id="step-outliers",
        truth="step-outliers",
        what="rare, long pauses in the step, as of a garbage collector",
        shapes=tuple(
            Shape(
                device_s=12 * MILLI,
                pause_every=every,
                pause_s=cost * MILLI,
                steps=_steps(6, (12 + cost / every) * MILLI),
            )
            for every, cost in ((50, 250), (40, 400), (60, 1200))
        ),
    ),
)

HEALTHY_SHAPES: tuple[Case, ...] = (
    Case(
        id="tiny-data",
        truth=HEALTHY,
        what="tiny items made in the loop: 0 workers are best",
        shapes=tuple(Shape(device_s=device * MILLI, steps=_steps(5, device * MILLI)) for device in (5, 10, 20)),
    ),
    Case(
        id="heavy-compute",
        truth=HEALTHY,
        what="the device is slower than two workers",
        shapes=tuple(_cpu_workers(2, item, device) for item, device in ((1.0, 40), (2.0, 50), (0.5, 80))),
    ),
    Case(
        id="accumulation",
        truth=HEALTHY,
        what="gradients are accumulated over several batches",
        shapes=tuple(
            Shape(
                device_s=device * MILLI,
                workers=2,
                item_cpu_s=0.4 * MILLI,
                accumulate=count,
                steps=_steps(5, device * MILLI),
            )
            for device, count in ((30, 4), (40, 8), (25, 2))
        ),
    ),
    Case(
        id="few-long-epochs",
        truth=HEALTHY,
        what="workers start anew in two or three long epochs",
        shapes=tuple(
            Shape(device_s=30 * MILLI, workers=2, item_cpu_s=0.5 * MILLI, epochs=epochs, steps=steps)
            for epochs, steps in ((2, 110), (3, 75), (2, 90))
        ),
    ),
    Case(
        id="iterable",
        truth=HEALTHY,
        what="an iterable dataset with workers enough",
        shapes=tuple(
            Shape(
                device_s=device * MILLI,
                workers=2,
                iterable=True,
                item_cpu_s=item * MILLI,
                steps=_steps(5, device * MILLI),
            )
            for device, item in ((30, 0.5), (40, 1.0), (60, 2.0))
        ),
    ),
    Case(
        id="modest-validation",
        truth=HEALTHY,
        what="validation takes under a tenth of the run",
        shapes=tuple(
            Shape(
                device_s=20 * MILLI,
                epochs=epochs,
                steps=120,
                validate_every=120,
                validate_steps=count,
                validate_s=15 * MILLI,
            )
            for epochs, count in ((2, 6), (2, 9), (3, 8))
        ),
    ),
    Case(
        id="ordinary-extras",
        truth=HEALTHY,
        what="a quick logger, a light callback and a small checkpoint an epoch",
        shapes=tuple(
            Shape(
                device_s=device * MILLI,
                workers=2,
                item_cpu_s=0.5 * MILLI,
                epochs=2,
                steps=steps,
                callback_s=0.1 * MILLI,
                logger_s=2 * MILLI,
                log_every=25,
                save_every=steps,
                save_s=20 * MILLI,
                weights_bytes=1_000_000,
            )
            for device, steps in ((25, 100), (30, 90), (40, 70))
        ),
    ),
    Case(
        id="busy-neighbour",
        truth=HEALTHY,
        what="busy processes outside the job, which needs little of the CPUs",
        shapes=tuple(
            Shape(
                device_s=device * MILLI,
                workers=2,
                item_cpu_s=item * MILLI,
                neighbours=count,
                steps=_steps(5, device * MILLI),
            )
            for device, item, count in ((40, 0.2, 1), (50, 0.5, 2), (60, 0.3, 3))
        ),
        allowed_if_slowed=frozenset({"noisy-neighbour"}),
    ),
)

CASES: tuple[Case, ...] = (*FAULTS, *HEALTHY_SHAPES)


def choose(ids: Sequence[str] | None) -> tuple[Case, ...]:
    """Return the cases of these ids or truths; all of them for None.

    Raises:
        SystemExit: There is no such case.
    """
    if not ids:
        return CASES
    unknown = [i for i in ids if not any(i in (c.id, c.truth) for c in CASES)]
    if unknown:
        raise SystemExit(f"no such case: {', '.join(unknown)}; there are {', '.join(c.id for c in CASES)}")
    return tuple(c for c in CASES if c.id in ids or c.truth in ids)


def case_of(case_id: str) -> Case:
    """Return the case of an id."""
    return next(c for c in CASES if c.id == case_id)
