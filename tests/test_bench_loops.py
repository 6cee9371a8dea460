"""The loops' benchmark: what it draws, and how it judges what came out. What it runs needs six frameworks."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.loops import table
from benchmarks.loops.draws import FAULTS, HOWS, LOOPS, REFERENCE, draw, drawn
from benchmarks.loops.table import Kept


def kept(primary: str | None, fault: str = "storage", loop: str = "keras", how: str = "adapter", **more: Any) -> Kept:
    one = draw(1, loop, fault, how)
    seen = {"recordings": 1, "steps": 80, "primary": primary, "warnings": [], "wait_s": 3.9}
    result = {"steps": 80, "wait_s": 4.0, "others_cpus": 0.0, "seen": seen}
    for name, value in more.items():
        (seen if name in seen else result)[name] = value
    return Kept(one, result)


def test_a_seed_plants_the_same_in_every_loop() -> None:
    programs = drawn(range(2))
    assert len(programs) == len({one.name for one in programs}) == 2 * len(FAULTS) * (1 + len(LOOPS) * len(HOWS))
    for fault in FAULTS:
        alike = {replace(one, loop="", how="") for one in programs if (one.seed, one.fault) == (1, fault)}
        assert len(alike) == 1
    assert draw(0, "keras", "storage", "adapter") != draw(1, "keras", "storage", "adapter")


def test_a_draw_lasts_some_seconds() -> None:
    for one in drawn(range(20)):
        step_s = one.step_s + one.hook_s + (max(0.0, one.batch_s - one.step_s) if one.workers else one.batch_s)
        seconds = one.epochs * (one.batches * step_s + one.held_out * one.held_out_s)
        assert 3.0 < seconds < 8.0, one
        assert one.batches >= 25


def test_what_is_right() -> None:
    assert kept("fetch-stall").right
    assert not kept("slow-callback").right
    assert not kept("fetch-stall", recordings=2).right  # counted twice
    assert not kept("fetch-stall", steps=79).right
    assert kept("slow-callback", "slow hook").right
    assert kept("compute-bound", "slow hook", "plain", "zero-code").right
    assert not kept("slow-callback", "slow hook", "plain", "zero-code").right
    assert kept("noisy-neighbour", others_cpus=1000.0).right
    assert not kept("noisy-neighbour").right


def test_the_tables_name_what_is_wrong(tmp_path: Path) -> None:
    found = [
        kept("fetch-stall", loop=REFERENCE),
        kept("fetch-stall"),
        kept("slow-callback", wait_s=5.0),
        kept("no-workers", "no workers", "plain"),
        kept(None, "healthy", warnings=["slow-callback"]),
    ]
    assert abs((found[1].wait_error or 0) + 0.025) < 1e-9
    text = table.markdown(found)
    assert "| right primary | 4 of 5 (80.0 %) |" in text
    assert "| wait within 5 % of the program's own clock | 3 of 4 (75.0 %) |" in text
    assert "| healthy runs without a warning | 0 of 1 (0.0 %) |" in text
    assert "- 1-keras-storage-adapter: slow-callback" in text
    for one in found[:1]:
        (tmp_path / f"{one.draw.name}.json").write_text(json.dumps(one.result))
    assert [one.seen["primary"] for one in table.load(tmp_path, drawn(range(2)))] == ["fetch-stall"]
