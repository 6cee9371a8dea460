"""The rules: one file each. Within a family the order here is the order of precedence."""

from __future__ import annotations

from .accelerator_unused import AcceleratorUnused
from .batch_handoff import BatchHandoff
from .bound_process import BoundProcess
from .checkpoint_stall import CheckpointStall
from .cold_cache import ColdCache
from .compute_bound import ComputeBound
from .cpu_saturated import CpuSaturated
from .cpu_throttled import CpuThrottled
from .debug_mode import DebugMode
from .dense_embeddings import DenseEmbeddings
from .double_precision import DoublePrecision
from .dropped_gradients import DroppedGradients
from .fetch_stall import FetchStall
from .fixed_features import FixedFeatures
from .float64_operations import Float64Operations
from .gc_pauses import GcPauses
from .gpu_memory_growth import GpuMemoryGrowth
from .gpu_memory_near_limit import GpuMemoryNearLimit
from .gpu_throttled import GpuThrottled
from .half_precision_on_cpu import HalfPrecisionOnCpu
from .host_memory_growth import HostMemoryGrowth
from .host_memory_near_limit import HostMemoryNearLimit
from .host_sync import HostSync
from .idle_workers import IdleWorkers
from .ignored_labels import IgnoredLabels
from .input_bound import InputBound
from .io_wait_high import IoWaitHigh
from .launch_bound import LaunchBound
from .lock_contention import LockContention
from .low_gpu_memory_use import LowGpuMemoryUse
from .low_utilization import LowUtilization
from .made_weights import MadeWeights
from .mixed_precision_off import MixedPrecisionOff
from .network_saturated import NetworkSaturated
from .no_step_ends import NoStepEnds
from .no_workers import NoWorkers
from .noisy_neighbour import NoisyNeighbour
from .open_files_growth import OpenFilesGrowth
from .padded_batches import PaddedBatches
from .pinned_workers import PinnedWorkers
from .prep_stall import PrepStall
from .recompiles import Recompiles
from .recomputed_activations import RecomputedActivations
from .repeated_backward import RepeatedBackward
from .repeated_derivatives import RepeatedDerivatives
from .rule import Rule
from .same_result import SameResult
from .shm_near_limit import ShmNearLimit
from .slow_batches import SlowBatches
from .slow_callback import SlowCallback
from .slow_function import SlowFunction
from .slow_logging import SlowLogging
from .slow_optimizer import SlowOptimizer
from .slow_sampler import SlowSampler
from .slow_start import SlowStart
from .small_batches import SmallBatches
from .step_outliers import StepOutliers
from .step_time_drift import StepTimeDrift
from .subnormal_numbers import SubnormalNumbers
from .too_few_threads import TooFewThreads
from .too_few_workers import TooFewWorkers
from .too_many_threads import TooManyThreads
from .too_many_workers import TooManyWorkers
from .transfer_bound import TransferBound
from .unpinned_memory import UnpinnedMemory
from .unused_gradients import UnusedGradients
from .validation_heavy import ValidationHeavy
from .views_sent_whole import ViewsSentWhole
from .weight_penalty import WeightPenalty
from .worker_startup import WorkerStartup

ALL_RULES: tuple[Rule, ...] = (
    NoStepEnds(),
    CpuThrottled(),
    PinnedWorkers(),
    BoundProcess(),
    ViewsSentWhole(),
    NoisyNeighbour(),
    SlowSampler(),
    SlowBatches(),
    LockContention(),
    BatchHandoff(),
    TooManyWorkers(),
    IdleWorkers(),
    NoWorkers(),
    FetchStall(),
    TooFewWorkers(),
    PrepStall(),
    InputBound(),
    UnpinnedMemory(),
    TransferBound(),
    WorkerStartup(),
    SlowCallback(),
    SlowLogging(),
    CheckpointStall(),
    ValidationHeavy(),
    GcPauses(),
    Recompiles(),
    DebugMode(),
    TooManyThreads(),
    TooFewThreads(),
    SlowFunction(),
    WeightPenalty(),
    SameResult(),
    RepeatedBackward(),
    RepeatedDerivatives(),
    DenseEmbeddings(),
    IgnoredLabels(),
    SlowOptimizer(),
    UnusedGradients(),
    DroppedGradients(),
    RecomputedActivations(),
    HalfPrecisionOnCpu(),
    DoublePrecision(),
    Float64Operations(),
    MadeWeights(),
    FixedFeatures(),
    PaddedBatches(),
    SubnormalNumbers(),
    SmallBatches(),
    StepOutliers(),
    StepTimeDrift(),
    SlowStart(),
    ColdCache(),
    HostMemoryGrowth(),
    HostMemoryNearLimit(),
    ShmNearLimit(),
    OpenFilesGrowth(),
    GpuMemoryGrowth(),
    GpuMemoryNearLimit(),
    GpuThrottled(),
    CpuSaturated(),
    IoWaitHigh(),
    NetworkSaturated(),
    AcceleratorUnused(),
    HostSync(),
    LaunchBound(),
    LowUtilization(),
    LowGpuMemoryUse(),
    MixedPrecisionOff(),
    ComputeBound(),
)
"""Every rule with its default thresholds."""
