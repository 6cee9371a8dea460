"""The recommended ``num_workers``: from records to costs (`costs`), to step times (`model`), to words (`advice`)."""

from __future__ import annotations

from .advice import advise, expected, limited, loop_threads
from .costs import BatchShape, EpochStart, available_cpus, batch_shape, costs_from, limits_from
from .fewer import fewer_workers, savings
from .model import (
    HANDOVER_S,
    NEAR_BEST,
    NOISE,
    Forecast,
    Limits,
    LoaderCosts,
    OperatingPoint,
    PrefetchAdvice,
    advise_prefetch,
    best_workers,
    predict_step_time_s,
    worker_cap,
)
from .plan import with_threads

__all__ = [
    "HANDOVER_S",
    "NEAR_BEST",
    "NOISE",
    "BatchShape",
    "EpochStart",
    "Forecast",
    "Limits",
    "LoaderCosts",
    "OperatingPoint",
    "PrefetchAdvice",
    "advise",
    "advise_prefetch",
    "available_cpus",
    "batch_shape",
    "best_workers",
    "costs_from",
    "expected",
    "fewer_workers",
    "limited",
    "limits_from",
    "loop_threads",
    "predict_step_time_s",
    "savings",
    "with_threads",
    "worker_cap",
]
