"""The num_workers model on what was measured while training and loader ran together."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..errors import SettingError
from ..machine.budget import read_budget
from ..records.diagnosis import WorkerAdvice
from ..window import Window
from ..workers import BatchShape, Limits, LoaderCosts, advise, costs_from, limits_from, predict_step_time_s


@dataclass(frozen=True, slots=True)
class LoaderModel:
    """The num_workers model on what was measured together."""

    costs: LoaderCosts
    limits: Limits
    advice: WorkerAdvice

    def step_time_s(self, workers: int) -> float:
        """Predict the step with so many workers."""
        return predict_step_time_s(self.costs, self.limits, workers)

    def with_batch(self, times: float, work_s: float) -> float:
        """Predict the step with larger batches and the present number of workers.

        Args:
            times: How many times larger; making one is taken to cost as many times more.
            work_s: A step on such a batch when data are free.
        """
        costs = self.costs
        larger = replace(
            costs,
            work_s=work_s,
            service_s=times * costs.service_s,
            cpu_s=times * costs.cpu_s,
            shared_memory_s=times * costs.shared_memory_s,
            loop_cpu_s=times * costs.loop_cpu_s,
            neighbour_wait_s=times * costs.neighbour_wait_s,
            own_wait_s=times * costs.own_wait_s,
        )
        return predict_step_time_s(larger, self.limits, costs.current)


def model_of(window: Window, shape: BatchShape, device_s: float | None) -> LoaderModel | None:
    """Feed the model.

    Args:
        window: Of the run, watched from inside its loader's workers.
        shape: Of a batch.
        device_s: Time of a step on a device when data are free. The host's clock does not see what a device is still
            busy with; None where the host is the device.

    Returns:
        None when too few batches or steps were measured.
    """
    current = window.loader.num_workers
    if current is None:
        return None
    steps = [step for step in window.steps.steady if not step.epoch_start]
    since_s = steps[0].time_s if steps else math.inf
    host = [sample for sample in window.host.samples.items if sample.time_s >= since_s] or window.host.samples.items
    budget = read_budget()
    try:
        costs = costs_from(
            window.workers.batches.items,
            steps,
            current=current,
            loader=window.loader.info,
            host=host,
            budget=budget,
            batch=shape,
            device_s=device_s,
        )
        limits = limits_from(
            host,
            budget=budget,
            memory=window.workers.memory.items,
            loader=window.loader.info,
            batch_bytes=shape.bytes,
        )
    except SettingError:  # what was measured makes no sense, for example after the system clock was set back
        return None
    return None if costs is None else LoaderModel(costs, limits, advise(costs, limits))
