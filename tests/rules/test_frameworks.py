"""Advice names the settings of the framework that trains, and of no other."""

from __future__ import annotations

import pytest

from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.frameworks import LIGHTNING, Setting, name_of, said
from stallmeter.window import Window
from stallmeter.window.facts import Facts

from .firing import FIRING

OF_LIGHTNING = ("Trainer(", "ModelCheckpoint(", "check_val_", "limit_val_", "num_sanity", "accumulate_grad_batches")
OTHERS = ("loop", "transformers 5.23.0", "keras 3.15.1", "ignite 0.5.5")


def advice(rule: str, framework: str | None) -> str:
    """All that is advised where a rule fires in a run of that framework."""
    window: Window = FIRING[rule]()
    if framework is not None:
        window.facts["framework"] = framework
    verdict = evaluate(ALL_RULES, window)
    return "\n".join(advised.text for found in verdict.diagnoses for advised in found.advice)


@pytest.mark.parametrize("rule", [rule.id for rule in ALL_RULES])
def test_no_setting_of_lightning_elsewhere(rule: str) -> None:
    """What only Lightning has is not advised in a loop, nor in another framework; Keras has a ModelCheckpoint, too."""
    for framework in (None, *OTHERS):
        found = advice(rule, framework)
        names = OF_LIGHTNING if framework is None or "keras" not in framework else OF_LIGHTNING[2:]
        assert not [name for name in names if name in found], (framework, found)


def test_settings_by_framework() -> None:
    assert "check_val_every_n_epoch" in advice("validation-heavy", "lightning 2.6.6")
    assert "check_val_every_n_epoch" in advice("validation-heavy", "pytorch_lightning 2.6.6")
    assert 'TrainingArguments(eval_strategy="steps", eval_steps=…)' in advice("validation-heavy", "transformers 5.23.0")
    assert "fit(validation_freq=…)" in advice("validation-heavy", "keras 3.15.1")
    assert "TrainingArguments(save_steps=…)" in advice("checkpoint-stall", "transformers 5.23.0")


def test_a_setting_that_is_not_there() -> None:
    """The sentence stands without a name."""
    facts = Facts(framework="loop")
    assert name_of(facts, Setting.SAVE_LESS_OFTEN) is None
    assert said("Save less often", facts, Setting.SAVE_LESS_OFTEN, ", after more steps") == (
        "Save less often, after more steps."
    )
    assert said("Use mixed precision", facts, Setting.BFLOAT16) == (
        'Use mixed precision: torch.autocast("cuda", torch.bfloat16).'
    )


def test_lightning_has_a_name_for_each() -> None:
    # Of a DataLoader, an optimizer, a collate function, a model: as in any loop.
    general = {Setting.PREPARE_BESIDE, Setting.FUSE, Setting.PAD_TO_LONGEST, Setting.GROUP_BY_LENGTH}
    general |= {Setting.KEEP_ACTIVATIONS}
    for package in LIGHTNING:
        facts = Facts(framework=f"{package} 2.6.6")
        assert all(name_of(facts, one) for one in Setting if one not in general)


@pytest.mark.parametrize("rule", ["prep-stall", "cpu-saturated", "compute-bound"])
def test_no_work_for_a_gpu_that_is_not_there(rule: str) -> None:
    """Where one is seen, or the framework trains on one, it is advised; text and tables need no image library."""

    def moved(accelerator: str | None) -> bool:
        window: Window = FIRING[rule]()
        window.facts["accelerator"] = accelerator
        verdict = evaluate(ALL_RULES, window)
        told = next(found for found in verdict.diagnoses if found.rule == rule)
        return any(words in one.fix.do for one in told.advice for words in ("to the GPU", "mixed precision"))

    assert [moved(name) for name in (None, "CPUAccelerator", "CUDAAccelerator")] == [False, False, True]
