"""What each framework calls the settings that advice speaks of: another one's name would send the reader astray."""

from __future__ import annotations

from enum import Enum, auto

from ..window import Window
from ..window.facts import Facts

LIGHTNING = ("lightning", "pytorch_lightning")
"""Its packages."""


class Setting(Enum):
    """What a training loop can be told, whatever drives it."""

    VALIDATE_LESS_OFTEN = auto()
    VALIDATE_ON_LESS = auto()
    SAVE_LESS_OFTEN = auto()
    SAVE_WEIGHTS_ONLY = auto()
    SAVE_IN_BACKGROUND = auto()
    LOG_LESS_OFTEN = auto()
    ACCUMULATE = auto()
    BFLOAT16 = auto()
    FLOAT16 = auto()
    USE_GPU = auto()
    PREPARE_BESIDE = auto()
    FUSE = auto()
    PAD_TO_LONGEST = auto()
    GROUP_BY_LENGTH = auto()
    KEEP_ACTIVATIONS = auto()
    FLOAT32 = auto()
    NOT_FLOAT64 = auto()


_LIGHTNING = {
    Setting.VALIDATE_LESS_OFTEN: "check_val_every_n_epoch or val_check_interval",
    Setting.VALIDATE_ON_LESS: "limit_val_batches",
    Setting.SAVE_LESS_OFTEN: "ModelCheckpoint(every_n_train_steps=…) or train_time_interval=…",
    Setting.SAVE_WEIGHTS_ONLY: "ModelCheckpoint(save_weights_only=True)",
    Setting.SAVE_IN_BACKGROUND: "Trainer(plugins=[AsyncCheckpointIO()])",
    Setting.LOG_LESS_OFTEN: "Trainer(log_every_n_steps=…)",
    Setting.ACCUMULATE: "accumulate_grad_batches",
    Setting.BFLOAT16: 'Trainer(precision="bf16-mixed")',
    Setting.FLOAT16: 'Trainer(precision="16-mixed")',
    Setting.USE_GPU: 'Trainer(accelerator="auto")',
    Setting.FLOAT32: 'Trainer(precision="32-true")',
    Setting.NOT_FLOAT64: 'Trainer(precision="32-true")',
}

_PLAIN = {
    Setting.BFLOAT16: 'torch.autocast("cuda", torch.bfloat16)',
    Setting.FLOAT16: 'torch.autocast("cuda", torch.float16) with a GradScaler',
}

_NAMES = {
    **dict.fromkeys(LIGHTNING, _LIGHTNING),
    "transformers": {
        Setting.VALIDATE_LESS_OFTEN: 'TrainingArguments(eval_strategy="steps", eval_steps=…)',
        Setting.SAVE_LESS_OFTEN: "TrainingArguments(save_steps=…)",
        Setting.SAVE_WEIGHTS_ONLY: "TrainingArguments(save_only_model=True)",
        Setting.LOG_LESS_OFTEN: "TrainingArguments(logging_steps=…)",
        Setting.ACCUMULATE: "TrainingArguments(gradient_accumulation_steps=…)",
        Setting.BFLOAT16: "TrainingArguments(bf16=True)",
        Setting.FLOAT16: "TrainingArguments(fp16=True)",
        Setting.USE_GPU: "TrainingArguments(use_cpu=False)",
        Setting.FUSE: 'TrainingArguments(optim="adamw_torch_fused")',
        Setting.PAD_TO_LONGEST: "DataCollatorWithPadding or DataCollatorForTokenClassification",
        Setting.GROUP_BY_LENGTH: 'train_sampling_strategy="group_by_length", or group_by_length=True',
        Setting.KEEP_ACTIVATIONS: "TrainingArguments(gradient_checkpointing=False)",
        Setting.FLOAT32: "TrainingArguments(bf16=False, fp16=False)",
    },
    "keras": {
        Setting.VALIDATE_LESS_OFTEN: "fit(validation_freq=…)",
        Setting.VALIDATE_ON_LESS: "fit(validation_steps=…)",
        Setting.SAVE_LESS_OFTEN: "ModelCheckpoint(save_freq=…)",
        Setting.SAVE_WEIGHTS_ONLY: "ModelCheckpoint(save_weights_only=True)",
        Setting.ACCUMULATE: "the optimizer's gradient_accumulation_steps",
        Setting.BFLOAT16: 'keras.mixed_precision.set_global_policy("mixed_bfloat16")',
        Setting.PREPARE_BESIDE: "PyDataset(workers=…), or a DataLoader with num_workers",
        Setting.FLOAT16: 'keras.mixed_precision.set_global_policy("mixed_float16")',
        Setting.FLOAT32: 'keras.mixed_precision.set_global_policy("float32")',
        Setting.NOT_FLOAT64: 'keras.config.set_floatx("float32")',
    },
    "ignite": {
        **_PLAIN,
        Setting.VALIDATE_LESS_OFTEN: "Events.EPOCH_COMPLETED(every=…)",
        Setting.SAVE_LESS_OFTEN: "Checkpoint on Events.ITERATION_COMPLETED(every=…)",
        Setting.LOG_LESS_OFTEN: "Events.ITERATION_COMPLETED(every=…)",
        Setting.ACCUMULATE: "create_supervised_trainer(gradient_accumulation_steps=…)",
    },
}


def name_of(facts: Facts, setting: Setting) -> str | None:
    """Return what the run's framework calls a setting; None where it has none, or a loop of one's own decides."""
    return _NAMES.get(facts.framework or "", _PLAIN).get(setting)


def has_gpu(window: Window) -> bool:
    """Whether the job may see a GPU, or trains on something else than a CPU, as far as anybody tells."""
    return window.gpu.count is not None or _has_accelerator(window)


def on_cpu(window: Window) -> bool:
    """Whether the steps compute on a CPU, as far as anybody tells: no GPU is seen, and no device was timed."""
    return not has_gpu(window) and window.device.pace_s is None


def computes_on_device(window: Window) -> bool:
    """Whether the steps compute on something else than a CPU, as far as anybody tells: a GPU may be there and idle."""
    return window.device.pace_s is not None or _has_accelerator(window)


def _has_accelerator(window: Window) -> bool:
    return window.facts.accelerator not in (None, "CPUAccelerator")


def said(do: str, facts: Facts, setting: Setting, otherwise: str = "") -> str:
    """Return what is to be done as a sentence, with the setting of the run's framework.

    Args:
        do: An imperative without its full stop.
        facts: Of the run.
        setting: That does it.
        otherwise: Goes on with the sentence where there is no such setting.
    """
    name = name_of(facts, setting)
    return f"{do}: {name}." if name is not None else f"{do}{otherwise}."
