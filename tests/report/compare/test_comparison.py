"""Two runs side by side: the numbers, the judgement, and what is said when it cannot be told."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.errors import RecordingError
from stallmeter.records import BUCKETS
from stallmeter.report.compare.comparison import NUMBERS, Side, compare_sides, side_of_document, side_of_history
from stallmeter.report.compare.forms import comparison_overview, comparison_to_json, outcome
from stallmeter.report.compare.noise import BLOCKS, MIN_BLOCKS, Noise
from stallmeter.report.json import to_json
from stallmeter.report.model import read_history
from stallmeter.report.overview import overview_to_markdown

from ..recordings import COMPUTE_BOUND, HOSTILE, VERDICT, complete_run, hardware, ledger, step, write

DOC = Path(__file__).parents[3] / "docs" / "reference" / "compare-json.md"


def recorded(folder: Path, *, factor: float = 1.0, steps: int = 200, seed: int = 1, **header) -> Side:
    """A run of 0.1 s a step, give or take 5 ms, all of it slower by a factor."""
    rng = random.Random(seed)
    times = [factor * (0.1 + rng.gauss(0, 0.005)) for _ in range(steps)]
    made = [step(i, total_s=t, data_wait_s=0.6 * t) for i, t in enumerate(times)]
    readings = []
    for i in range(10, steps + 1, 10):
        wall_s = 3.0 + sum(times[:i])
        readings.append(
            ledger(
                wall_s=wall_s,
                steps=i,
                samples=32 * i,
                buckets=dict.fromkeys(BUCKETS, 0.0) | {"start": 3.0, "data_wait": wall_s - 3.0},
            )
        )
    folder = write(folder, [*hardware(), *made, *readings, VERDICT], **header)
    history = read_history(folder)
    return side_of_history(history, history.report())


def test_the_numbers_of_a_recording(tmp_path):
    """They are those of its report."""
    folder = write(tmp_path, complete_run())
    history = read_history(folder)
    report = history.report()
    side = side_of_history(history, report)
    assert side.numbers == {
        "step_time_median_s": 0.1,
        "step_time_mean_s": pytest.approx(0.1),
        "step_time_p95_s": 0.1,
        "data_wait_pct": report.data_wait_share_pct,
        "samples_per_s": report.samples_per_s,
        "steps_per_s": report.steps_per_s,
    }
    assert side.ledger_s["data_wait"] == 0.06
    assert sum(side.ledger_s.values()) == pytest.approx(0.1)
    assert (side.rule, side.share_pct, side.num_workers, side.batch_size) == ("no-workers", 60.0, 0, 32)
    assert set(side.noise) <= {number.key for number in NUMBERS}


def test_a_summary_knows_no_noise(tmp_path):
    """From the JSON alone: the same numbers, no interval, and the sentence says so."""
    document = json.loads(json.dumps(to_json(read_history(write(tmp_path / "x", complete_run())).report())))
    side = side_of_document(document, "run abc")
    made = compare_sides(side, side, max_regression_pct=0)
    assert not made.regressed
    assert all(change.interval is None and change.beyond_noise is None for change in made.changes)
    assert "how much of it is noise cannot be told" in outcome(made)
    whole = read_history(tmp_path / "x")
    assert side_of_history(whole, whole.report()).numbers == side.numbers


def test_a_regression_beyond_noise_and_limit(tmp_path):
    """Twice as slow: from 20 % on it is a regression, from 150 % on it is not, and the other way round it is none."""
    fast, slow = recorded(tmp_path / "a"), recorded(tmp_path / "b", factor=2.0, seed=2)
    for metric in ("step_time", "throughput"):
        made = compare_sides(fast, slow, metric=metric, max_regression_pct=20)
        assert made.regressed
        assert made.decisive.beyond_noise is True
        assert outcome(made).startswith("Regression of more than 20 %")
        assert not compare_sides(fast, slow, metric=metric, max_regression_pct=150).regressed
        assert not compare_sides(slow, fast, metric=metric, max_regression_pct=20).regressed
        assert not compare_sides(fast, slow, metric=metric).regressed
    made = compare_sides(fast, slow)
    assert made.decisive.change_pct == pytest.approx(100, abs=3)
    low, high = made.decisive.interval
    assert low < 0.1 < high
    assert high - low < 0.02
    ledger = {change.key: change for change in made.ledger}
    assert ledger["data_wait"].difference == pytest.approx(0.1, abs=0.003)
    assert "backward" not in ledger


def test_noise_is_no_regression(tmp_path):
    """Two runs of the same speed differ by chance; however low the limit, that is none."""
    a, b = recorded(tmp_path / "a"), recorded(tmp_path / "b", seed=3)
    made = compare_sides(a, b, max_regression_pct=0)
    slower = made if made.decisive.worse_pct > 0 else compare_sides(b, a, max_regression_pct=0)
    assert slower.decisive.worse_pct > 0
    assert not slower.regressed
    assert outcome(slower).startswith("No difference beyond noise.")


def test_a_few_percent_are_no_difference_that_one_run_each_can_tell(tmp_path):
    """However small the noise within them is."""
    a, b = recorded(tmp_path / "a"), recorded(tmp_path / "b", factor=1.03, seed=1)
    c = recorded(tmp_path / "c", factor=1.08, seed=1)
    made, more = compare_sides(a, b), compare_sides(a, c)
    assert made.decisive.beyond_noise is more.decisive.beyond_noise is True
    assert (made.alike, more.alike) == (True, False)
    assert outcome(made).startswith("No difference that one run each can tell. Step time, median went from ")
    assert outcome(compare_sides(b, a)).startswith("No difference that one run each can tell.")
    assert outcome(more).startswith("The second run is slower. ")
    assert outcome(compare_sides(c, a)).startswith("The second run is faster. ")
    assert comparison_to_json(made)["alike"] is True
    assert compare_sides(a, b, max_regression_pct=2).regressed  # who sets such a limit knows why
    assert "One run each cannot tell" in comparison_overview(more).remarks[-1]


def test_wall_time_that_moved_alone_is_in_the_headline(tmp_path):
    a, b = recorded(tmp_path / "a"), recorded(tmp_path / "b", factor=1.01, seed=1)
    longer = replace(b, wall_s=1.3 * a.wall_s)
    assert re.search(r" But wall time went from .* s to .* s \(\+30\.0 %\)\.$", outcome(compare_sides(a, longer)))
    assert "wall time" not in outcome(compare_sides(a, b))
    assert "wall time" not in outcome(compare_sides(a, replace(longer, steps=b.steps + 1)))
    slow = replace(recorded(tmp_path / "c", factor=2.0), wall_s=1.3 * a.wall_s)
    assert "wall time" not in outcome(compare_sides(a, slow))


def test_small_buckets_stand_together(tmp_path):
    """What is small in one run alone has its row."""
    a = replace(
        recorded(tmp_path / "a"), ledger_s={"data_wait": 1.0, "forward": 0.004, "backward": 0.001, "h2d": 0.001}
    )
    b = replace(a, ledger_s={"data_wait": 1.0, "forward": 0.006, "backward": 0.002, "h2d": 0.001})
    made = compare_sides(a, b)
    (rows,) = [table.rows for table in comparison_overview(made).tables if table.head[0] == "Time per step"]
    assert [row[:3] for row in rows] == [
        ("data wait", "1 s", "1 s"),
        ("forward", "4 ms", "6 ms"),
        ("the rest", "2 ms", "3 ms"),
    ]
    assert {"backward", "h2d"} < comparison_to_json(made)["ledger_s_per_step"].keys()


def test_what_was_not_measured(tmp_path):
    """A limit cannot be judged without the number; without a limit it is shown as unknown."""
    empty = write(tmp_path / "b", [ledger(steps=0, samples=None)])
    history = read_history(empty)
    b = side_of_history(history, history.report())
    a = recorded(tmp_path / "a")
    assert b.ledger_s == {}
    with pytest.raises(RecordingError, match="has no step time"):
        compare_sides(a, b, max_regression_pct=5)
    assert "not measured" in outcome(compare_sides(a, b))
    # Without sizes of batches steps decide.
    assert compare_sides(a, b, metric="throughput").decisive.key == "steps_per_s"


def test_doubts(tmp_path):
    """What makes two runs incomparable is said."""
    a = recorded(tmp_path / "a")
    b = recorded(tmp_path / "b", host="node2", framework="loop")
    assert [d.split(" changed")[0] for d in compare_sides(a, b).doubts[:2]] == ["The host", "The framework"]
    assert any("no end" in doubt for doubt in compare_sides(a, b).doubts)


def test_forms(tmp_path):
    """Both forms show the verdicts, and foreign text stays text."""
    a = recorded(tmp_path / "a")
    folder = write(tmp_path / "b", [*(step(i) for i in range(20)), ledger(), VERDICT], host=HOSTILE)
    history = read_history(folder)
    b = side_of_history(history, history.report(type(VERDICT)(primary=COMPUTE_BOUND)))
    markdown = overview_to_markdown(comparison_overview(compare_sides(a, b)))
    assert "| primary cause | no-workers, 60.0 % lost | compute-bound |" in markdown
    assert "<script>" not in markdown
    assert "![i]" not in markdown
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    assert {line.count(" | ") for line in lines if line.startswith("| data wait |")} == {3}


def test_json_is_documented(tmp_path):
    """Exactly the keys of the reference, valid JSON."""
    made = compare_sides(recorded(tmp_path / "a"), recorded(tmp_path / "b", seed=2), max_regression_pct=5)
    document = json.loads(json.dumps(comparison_to_json(made), allow_nan=False))

    def paths(value, prefix=""):
        for key, item in value.items():
            path = f"{prefix}{key}"
            yield path
            if isinstance(item, dict):
                yield from paths(item, f"{path}.")

    found = {re.sub(r"^(after|before)\.", "before.", path) for path in paths(document)} - {"after"}
    found = {re.sub(r"^(numbers|ledger_s_per_step)\.[a-z0-9_]+", r"\1.NAME", path) for path in found}
    found = {re.sub(r"^ledger_s_per_step\.NAME\..*", "numbers.NAME.unit", path) for path in found}
    documented = set(re.findall(r"^\| `([^`]+)` \|", DOC.read_text(encoding="utf-8"), re.MULTILINE))
    assert found | {"after"} == documented


@pytest.mark.parametrize("document", [None, [], {}, {"schema": "1"}, {"schema": 99}, {"schema": 1}])
def test_what_is_no_report(document):
    with pytest.raises(RecordingError, match="run x"):
        side_of_document(document, "run x")


@pytest.mark.parametrize("change", [{"steps": "many"}, {"ledger": []}, {"run": 3}, {"step_time_s": "0.1"}])
def test_a_damaged_report(tmp_path, change):
    """A value of a wrong type is named as that."""
    document = to_json(read_history(write(tmp_path, complete_run())).report()) | change
    with pytest.raises(RecordingError, match="damaged"):
        side_of_document(document, "run x")


SIDES = st.builds(
    Side,
    source=st.just("x"),
    run_id=st.none(),
    version=st.none(),
    framework=st.none(),
    host=st.none(),
    ended=st.just("end"),
    steps=st.integers(0, 10**6),
    wall_s=st.floats(0, 1e6),
    num_workers=st.none() | st.integers(0, 64),
    batch_size=st.none() | st.integers(1, 64),
    numbers=st.fixed_dictionaries({n.key: st.none() | st.floats(1e-9, 1e9) for n in NUMBERS}),
    ledger_s=st.dictionaries(st.sampled_from(BUCKETS), st.floats(0, 1e6)),
    rule=st.none() | st.just("no-workers"),
    title=st.none(),
    share_pct=st.none() | st.floats(0, 100),
    noise=st.fixed_dictionaries(
        {n.key: st.none() | st.builds(Noise, st.floats(0, 1e9), st.integers(MIN_BLOCKS, BLOCKS)) for n in NUMBERS}
    ),
)
METRIC = st.sampled_from(["step_time", "throughput"])


@given(SIDES, METRIC, st.floats(0, 1e3))
def test_a_run_is_no_regression_of_itself(side, metric, limit):
    """Whatever was measured."""
    try:
        made = compare_sides(side, side, metric=metric, max_regression_pct=limit)
    except RecordingError:
        return
    assert not made.regressed
    assert all(change.difference in (None, 0.0) and change.beyond_noise is not True for change in made.changes)
    assert all(change.difference in (None, 0.0) for change in made.ledger)


@given(SIDES, SIDES, METRIC)
def test_swapping_mirrors_the_signs(a, b, metric):
    """Differences and intervals to the last bit; percentages by sign; and every form can be written."""
    there, back = compare_sides(a, b, metric=metric), compare_sides(b, a, metric=metric)
    for one, other in zip((*there.changes, *there.ledger), (*back.changes, *back.ledger), strict=True):
        assert one.key == other.key
        assert one.difference == (None if other.difference is None else -other.difference)
        assert one.beyond_noise == other.beyond_noise
        if one.interval is not None:
            assert other.interval is not None
            assert one.interval == (-other.interval[1], -other.interval[0])
        if one.change_pct and other.change_pct:
            assert (one.change_pct > 0) is not (other.change_pct > 0)
    json.dumps(comparison_to_json(there), allow_nan=False)
    assert overview_to_markdown(comparison_overview(there))
