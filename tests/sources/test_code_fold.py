"""From stacks with their time to the functions that hold it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.records.diagnosis import Location
from stallmeter.sources.code.fold import SPOTS, Frame, Seen, fold
from stallmeter.sources.code.whose import Function

FETCH = Function("_MapDatasetFetcher.fetch", "torch/utils/data/_utils/fetch.py", False, "torch._f.F.fetch", "torch")
ITEM = Function("Photos.__getitem__", "train.py", True, first_line=10)
ROTATE = Function("Rotate.__call__", "transforms.py", True, first_line=80)
PIL = Function("Image.rotate", "PIL/Image.py", False, "PIL.Image.Image.rotate", "PIL")
C = Function("ImagingCore.transform", "", False, "PIL._imaging.ImagingCore.transform", "PIL")
COMPOSE = Function(
    "Compose.__call__", "torchvision/transforms/t.py", False, "torchvision.t.Compose.__call__", "torchvision"
)
TURN = Function("RandomRotation.forward", "torchvision/transforms/t.py", False, "torchvision.RR.forward", "torchvision")
PLAIN = Function("rotate", "torchvision/transforms/functional.py", False, "torchvision.F.rotate", "torchvision")
CIFAR = Function(
    "CIFAR10.__getitem__", "torchvision/datasets/cifar.py", False, "torchvision.C.__getitem__", "torchvision"
)
MADE = Function("__init__", "<string>", False, generated=True)


def _seen(wall_s: float, *stack: tuple[Function, int], cpu_s: float | None = None) -> Seen:
    return Seen(tuple(Frame(*frame) for frame in stack), wall_s, cpu_s)


def test_the_innermost_function_of_the_user_owns_what_is_done_for_it():
    found = fold(
        [
            _seen(0.1, (FETCH, 50), (ITEM, 12), cpu_s=0.1),
            _seen(0.2, (FETCH, 50), (ITEM, 14), (COMPOSE, 95), (ROTATE, 82), cpu_s=0.2),
            _seen(0.7, (FETCH, 50), (ITEM, 14), (COMPOSE, 95), (ROTATE, 88), (PIL, 9), (C, 0), cpu_s=0.5),
        ]
    )
    first, second = found.spots
    assert (first.file, first.line, first.function) == ("transforms.py", 88, "Rotate.__call__")
    assert first.wall_s == pytest.approx(0.9)
    assert first.cpu_s == pytest.approx(0.7)
    assert first.calls == ("PIL.Image.Image.rotate",)
    assert (second.function, second.line, second.calls) == ("Photos.__getitem__", 12, ())
    assert found.unplaced == (False, False)


def test_the_call_that_is_named_beside_the_line_is_made_there() -> None:
    """The largest call of all is made from many lines, none of which takes as long as another one's."""
    apply, parse = (Function(name, "pandas/s.py", False, f"pandas.{name}", "pandas") for name in ("apply", "parse"))
    many = [_seen(0.2, (ITEM, line), (apply, 9)) for line in (40, 41, 42)]
    (spot,) = fold([*many, _seen(0.3, (ITEM, 39), (parse, 5)), _seen(0.02, (ITEM, 39))]).spots
    assert (spot.line, spot.calls) == (39, ("pandas.apply", "pandas.parse"))
    assert spot.called_there == spot.call_in_line == "pandas.parse"
    assert spot.line_share == pytest.approx(0.32 / 0.92)
    assert Location.of(spot, 50.0).line_share_pct == pytest.approx(50.0 * 0.32 / 0.92)
    assert Location.of(spot, 90.0).call == "pandas.parse"
    # A line that computes itself calls nothing.
    (itself,) = fold([*many, _seen(0.3, (ITEM, 39)), _seen(0.2, (ITEM, 39), (parse, 5))]).spots
    assert (itself.line, itself.called_there, itself.call_in_line) == (39, "", None)
    (found,) = fold([*many, _seen(0.3, (ITEM, 0))], {ITEM: {17: 1.0}}).spots
    assert (found.line, found.call_in_line) == (17, None)
    # A recording of before does not know.
    assert replace(spot, called_there=None).call_in_line == "pandas.apply"


def test_where_the_function_itself_holds_the_time_no_call_is_named_and_its_line_is_to_be_found():
    seen = [_seen(0.7, (ITEM, 0)), _seen(0.3, (ITEM, 12), (PIL, 3))]
    found = fold(seen)
    assert found.spots[0].calls == ()
    assert found.unplaced == (True,)
    after = fold(seen, {ITEM: {17: 0.5, 18: 0.1}})
    assert after.spots[0].line == 17
    assert after.unplaced == (False,)
    # What the lines share is 0.7, not what they took when each was looked at: 0.28 each are less than the call's 0.3.
    assert fold(seen, {ITEM: dict.fromkeys((15, 16, 17), 5.0)}).spots[0].line == 12


def test_without_any_line_it_is_where_the_function_is_defined():
    assert fold([_seen(1.0, (ITEM, 0))]).spots[0].line == 10


def test_without_a_function_of_the_user_the_path_that_holds_most_leads_to_the_librarys():
    outer = (FETCH, 50), (CIFAR, 100), (COMPOSE, 95)
    found = fold(
        [_seen(0.3, *outer), _seen(0.1, *outer, (TURN, 5)), _seen(0.6, *outer, (TURN, 9), (PLAIN, 1), (PIL, 7), (C, 0))]
    )
    assert [(s.function, s.own) for s in found.spots] == [
        ("RandomRotation.forward", False),
        ("Compose.__call__", False),
    ]
    assert found.spots[0].wall_s == pytest.approx(0.7)
    assert found.spots[0].calls[0] == "torchvision.F.rotate"


def test_how_torch_calls_a_module_is_no_place():
    """A library's model that a library's loop calls: it is the model's layer, not what calls each module in turn."""
    call = Function("Module._call_impl", "torch/nn/modules/module.py", False, "torch.nn.Module._call_impl", "torch")
    loop, whole, layer = (
        Function(f"{name}.{method}", "bert/modeling.py", False, f"bert.{name}.{method}", "bert")
        for name, method in (("Trainer", "evaluate"), ("Model", "forward"), ("Layer", "forward"))
    )
    leaves = [Function(name, "", False, f"torch.{name}", "torch") for name in ("matmul", "softmax", "dropout")]
    outer = (loop, 9), (call, 7), (whole, 5), (call, 7), (layer, 3)
    found = fold([_seen(1.0, *outer, (leaf, 0)) for leaf in leaves])
    assert found.spots[0].function == "Layer.forward"


def test_generated_code_belongs_to_who_called_it():
    assert fold([_seen(1.0, (ITEM, 11), (MADE, 2))]).spots[0].calls == ()


def test_stacks_are_kept_for_a_flame_graph():
    found = fold([_seen(0.5, (ITEM, 11), (ITEM, 11), (C, 0)), _seen(0.25, (ITEM, 12), (C, 0))])
    assert [s.frames for s in found.stacks] == [
        ("Photos.__getitem__ (train.py:10)", "PIL._imaging.ImagingCore.transform")
    ]
    assert found.stacks[0].wall_s == 0.75


FUNCTIONS = (FETCH, ITEM, ROTATE, PIL, C, COMPOSE, TURN, PLAIN, CIFAR, MADE)
FRAMES = st.tuples(st.sampled_from(FUNCTIONS), st.integers(0, 9))
TIMES = st.floats(0, 10, allow_nan=False)
SEEN = st.builds(
    lambda frames, wall_s, cpu_s: _seen(wall_s, *frames, cpu_s=cpu_s),
    st.lists(FRAMES, max_size=8),
    TIMES,
    st.one_of(st.none(), TIMES),
)


@given(st.lists(SEEN, max_size=30))
def test_every_second_belongs_to_exactly_one_function(seen):
    found = fold(seen)
    framed = sum(one.wall_s for one in seen if one.stack)
    assert len(FUNCTIONS) <= SPOTS  # none is left out
    assert sum(spot.wall_s for spot in found.spots) == pytest.approx(framed)
    assert sum(stack.wall_s for stack in found.stacks) == pytest.approx(framed)
    assert all(spot.line >= 1 and spot.wall_s > 0 for spot in found.spots)
    assert list(found.spots) == sorted(found.spots, key=lambda s: -s.wall_s)
    assert len(found.spots) == len(found.functions) == len(found.unplaced)


@given(st.lists(SEEN, max_size=12))
def test_the_order_in_which_stacks_come_changes_nothing(seen):
    one, other = fold(seen), fold(seen[::-1])
    assert {s.function for s in one.spots} == {s.function for s in other.spots}


def test_a_lambda_is_part_of_the_function_that_it_stands_in_while_that_one_runs():
    update = Function("Meter.update", "train.py", True, first_line=9)
    key = Function("Meter.update.<locals>.<lambda>", "train.py", True, first_line=12)
    ordered = Function("sorted", "", False, "sorted", standard=True)
    inside = fold([_seen(0.3, (ITEM, 3), (update, 12), (ordered, 0), (key, 12)), _seen(0.2, (ITEM, 3), (update, 11))])
    (spot,) = inside.spots
    assert (spot.function, spot.line, spot.wall_s, spot.calls) == ("Meter.update", 12, 0.5, ("sorted",))
    kept = fold([_seen(0.3, (ITEM, 3), (key, 12))])  # made there and called elsewhere
    assert kept.spots[0].function == key.name


def test_what_decorates_a_function_is_not_what_was_called():
    """scikit-learn's public functions are defined in private modules, behind a wrapper that checks arguments."""
    wraps = Function(
        "validate.<locals>.wrapper", "sklearn/u/_p.py", False, "sklearn.u._p.validate.<locals>.wrapper", "s"
    )
    curve = Function("roc_auc_score", "sklearn/m/_r.py", False, "sklearn.m._r.roc_auc_score", "sklearn")
    helper = Function("_binary", "sklearn/m/_b.py", False, "sklearn.m._b._binary", "sklearn")
    found = fold([_seen(1.0, (ITEM, 12), (wraps, 3), (curve, 4), (helper, 5))])
    assert found.spots[0].calls == ("sklearn.m._r.roc_auc_score",)


def test_what_calls_a_models_forward_for_mixed_precision_is_no_place():
    """Neither torch's wrapper nor accelerate's: the model's own forward is."""
    model = Function(
        "BertModel.forward", "transformers/models/bert/modeling_bert.py", own=False, package="transformers",
        dotted="transformers.models.bert.modeling_bert.BertModel.forward",
    )  # fmt: skip
    wrappers = [
        Function("ConvertOutputsToFp32.__call__", "accelerate/utils/operations.py", own=False, package="accelerate"),
        Function(
            "autocast_decorator.<locals>.decorate_autocast", "torch/amp/autocast_mode.py", own=False, package="torch"
        ),
    ]
    parts = [
        Function(f"{name}.forward", "transformers/models/bert/modeling_bert.py", own=False, package="transformers")
        for name in ("BertEmbeddings", "BertEncoder", "BertPooler")
    ]
    seen = [Seen(tuple(Frame(function, 1) for function in (*wrappers, model, part)), 1.0) for part in parts]
    [spot] = fold(seen).spots
    assert (spot.function, spot.is_place) == ("BertModel.forward", False)
