"""Which code of a step is no part of the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stallmeter.sources.code.asked import at_epoch_starts, in_batches, in_sampler, in_worker
from stallmeter.sources.code.beside import (
    after_gradients,
    before_call,
    before_model,
    before_training,
    below_judges,
    below_training_step,
    beside,
    between,
    early,
    model_and_gradients_s,
    told_with_helpers,
    without_gradients,
)
from stallmeter.sources.code.collectives import collectives, in_collectives
from stallmeter.sources.code.fold import Frame, Seen, fold
from stallmeter.sources.code.whose import Function


def _torch(name: str, file: str) -> Function:
    return Function(name, f"torch/{file}", False, f"torch.{name}", "torch")


MAIN = Function("main", "train.py", True, first_line=10)
UPDATE = Function("Meter.update", "meter.py", True, first_line=3)
NET = Function("Net.forward", "net.py", True, first_line=5)
LION = Function("Lion.step", "lion.py", True, first_line=5)
CALL = _torch("Module._call_impl", "nn/modules/module.py")
ENGINE = _torch("backward", "autograd/__init__.py")
CLIP = _torch("clip_grad_norm_", "nn/utils/clip_grad.py")
HOOK = _torch("Optimizer.profile_hook_step.<locals>.wrapper", "optim/optimizer.py")
NORM = _torch("Tensor.norm", "_tensor.py")
BACK = _torch("Tensor.backward", "_tensor.py")


def _seen(*functions: Function) -> Seen:
    return Seen(tuple(Frame(function, 1) for function in functions), 0.1)


MODEL = [_seen(MAIN, CALL, NET), _seen(MAIN, BACK, ENGINE), _seen(MAIN, BACK)]


def test_the_model_is_what_modules_and_the_backward_pass_do():
    assert beside(MODEL) == []


def test_what_stands_beside_it_is_told_and_so_is_an_optimizer_of_the_users_own():
    own = [_seen(MAIN, UPDATE), _seen(MAIN, HOOK, LION), _seen(MAIN, HOOK, LION, NORM)]
    assert beside([*MODEL, *own]) == own


def test_what_the_code_that_trains_does_itself_is_the_training():
    assert beside([*MODEL, _seen(MAIN, CLIP), _seen(MAIN)]) == []


def test_without_modules_nobody_knows_what_the_model_is():
    assert beside([_seen(MAIN, UPDATE), _seen(MAIN, ENGINE)]) == []


def test_a_wrapper_around_the_training_step_is_not_the_model():
    """As under Lightning with several ranks: the step itself is called as a module is."""
    step = Function("LitNet.training_step", "lit.py", True, first_line=7)
    wrapped = [_seen(MAIN, CALL, step, CALL, NET), _seen(MAIN, CALL, step, UPDATE), _seen(MAIN, CALL, step)]
    assert beside(wrapped) == []
    below = [below_training_step(one) for one in wrapped]
    assert beside(below) == [_seen(step, UPDATE)]
    assert [below_training_step(one) for one in MODEL] == MODEL


WEIGHTS = Function("frequencies", "losses.py", True, first_line=3)


@pytest.mark.parametrize(
    "judge",
    [
        Function("BalancedLoss.forward", "losses.py", True, first_line=30),
        Function("SetCriterion.forward", "detr.py", True, first_line=30),
        Function("Metric.forward", "torchmetrics/metric.py", False, "torchmetrics.Metric.forward", "torchmetrics"),
    ],
)
def test_a_module_that_judges_is_no_model(judge: Function):
    """It is called like one. What it calls of a model is one: a perceptual loss, a teacher."""
    wrapped = _torch("Module._wrapped_call_impl", "nn/modules/module.py")
    judged = _seen(MAIN, wrapped, CALL, judge, WEIGHTS)
    assert beside([*MODEL, judged]) == []
    assert below_judges(judged) == _seen(MAIN, judge, WEIGHTS)
    assert beside([*MODEL, below_judges(judged)]) == [_seen(MAIN, judge, WEIGHTS)]
    teacher = _seen(MAIN, wrapped, CALL, judge, wrapped, CALL, NET)
    assert beside([*MODEL, below_judges(teacher)]) == []
    for one in (*MODEL, _seen(MAIN, UPDATE), _seen(MAIN, CALL)):
        assert below_judges(one) is one


@pytest.mark.parametrize(
    "name", ["SymmetricNet.forward", "GeometricAttention.forward", "LosslessCodec.forward", "Gloss.forward"]
)
def test_a_model_may_be_called_after_something_else(name: str):
    net = Function(name, "torch_geometric/nn/conv.py", False, f"torch_geometric.nn.{name}", "torch_geometric")
    for one in (_seen(MAIN, CALL, net), _seen(MAIN, CALL, replace(net, own=True, package=""))):
        assert below_judges(one) is one


def test_objects_that_are_pickled_for_other_ranks_are_no_exchange_of_gradients():
    gather, pickled, sent = (
        _torch(name, "distributed/distributed_c10d.py")
        for name in ("all_gather_object", "_object_to_tensor", "all_gather")
    )
    own = [_seen(MAIN, UPDATE, gather, pickled), _seen(MAIN, UPDATE)]
    assert beside([*MODEL, *own, _seen(MAIN, UPDATE, gather, sent)]) == own  # that waits for other ranks
    assert beside([*MODEL, *own, _seen(MAIN, UPDATE, sent)]) == []  # and that may be for gradients
    wrapper = _torch("_exception_logger.<locals>.wrapper", "distributed/c10d_logger.py")
    outside = _seen(MAIN, UPDATE, wrapper)  # of which it is: that does not say
    wrapped = [_seen(MAIN, UPDATE, wrapper, gather, pickled), outside]
    assert beside([*MODEL, *wrapped, _seen(MAIN, UPDATE, wrapper, gather, wrapper, sent)]) == wrapped


def test_a_loss_comes_between_the_model_and_its_gradients():
    loss, batch, plot = (Function(name, "train.py", True, first_line=1) for name in ("loss", "batch", "plot"))

    def at(line: int, *stack: Function) -> Seen:
        return Seen((Frame(MAIN, line), *(Frame(function, 1) for function in stack)), 0.1)

    model = [at(20, CALL, NET), at(20, CALL), at(30, BACK, ENGINE)]
    update = at(40, HOOK, LION)
    seen = [*model, at(10, batch), at(21, loss), at(21, loss, NORM), at(41, plot), update, at(22)]
    assert between(seen) == [at(21, loss), at(21, loss, NORM)]
    assert between(seen[:-2]) == []  # any of it may be an optimizer
    assert between(seen[:-2], optimizer=True) == [at(21, loss), at(21, loss, NORM)]
    sleeping = replace(at(21, loss), stack=(Frame(MAIN, 21), Frame(loss, 1, sleeps=True)))
    assert between([*model, update, sleeping]) == []  # it may stand for a device
    assert model_and_gradients_s(seen) == pytest.approx((0.2, 0.1))


def test_each_function_is_told_with_the_one_that_the_training_calls_for_it():
    score, inner = (Function(name, "scores.py", True, first_line=i) for i, name in enumerate(("score", "inner")))
    own = [_seen(MAIN, score, inner), _seen(MAIN, score), _seen(MAIN, UPDATE, NORM)]
    plain = replace(own[0], stack=(*own[0].stack[:2], replace(own[0].stack[2], interprets=True)), wall_s=0.05)
    seen = [*MODEL, *own, plain]
    [told] = told_with_helpers(seen, fold(beside(seen)).spots)
    assert {spot.function: spot.within for spot in told} == {
        "inner": "score",
        "score": "score",
        "Meter.update": "Meter.update",
    }
    assert {spot.function: spot.interpreting_s for spot in told} == pytest.approx(
        {"inner": 0.05, "score": 0.0, "Meter.update": 0.0}
    )


def test_collectives_that_the_program_calls_itself_are_told_from_those_of_the_gradients():
    reduce, barrier, gather, pickled = (
        _torch(name, "distributed/distributed_c10d.py")
        for name in ("all_reduce", "barrier", "all_gather_object", "_object_to_tensor")
    )
    own = [_seen(MAIN, UPDATE, reduce), _seen(MAIN, CALL, NET, reduce)]
    shares = _torch("SyncBatchNorm.forward", "nn/modules/batchnorm.py")
    others = [
        _seen(MAIN, BACK, ENGINE, reduce),
        _seen(MAIN, CALL, NET, CALL, shares, reduce),
        _seen(MAIN, HOOK, reduce),
        _seen(MAIN, barrier),
        _seen(MAIN, gather, pickled),
        _seen(CALL, reduce),
    ]
    assert in_collectives([*MODEL, *own, *others]) == own


def test_a_barrier_of_a_call_that_exchanges_something_is_part_of_that_call():
    """Lightning makes one before each value that it logs for all ranks."""
    reduce, barrier, wraps = (
        _torch("all_reduce", "distributed/distributed_c10d.py"),
        _torch("barrier", "distributed/distributed_c10d.py"),
        _torch("_exception_logger.<locals>.wrapper", "distributed/c10d_logger.py"),
    )
    log = Function("LightningModule.log", "lightning/pytorch/core/module.py", False)
    shared = [_at((MAIN, 5), (log, 3), (wraps, 1), (barrier, 9)), _at((MAIN, 5), (log, 4), (wraps, 1), (reduce, 8))]
    alone = _at((MAIN, 7), (log, 3), (barrier, 9))
    found = in_collectives([*MODEL, *shared, alone])
    assert sorted(map(id, found)) == sorted(map(id, shared))
    assert [one.stack[-2].function for one in collectives(found)] == [MAIN, MAIN]
    assert {one.stack[-1].function.name for one in collectives(found)} == {"all_reduce", "barrier"}


def test_no_code_of_a_library_is_told():
    assert beside([*MODEL, _seen(CLIP)]) == []


STEP = Function("step", "train.py", True, first_line=30)
EMA = Function("Average.update", "average.py", True, first_line=3)


def _at(*places: tuple[Function, int], sleeps: bool = False) -> Seen:
    frames = [Frame(function, line) for function, line in places]
    return Seen((*frames[:-1], replace(frames[-1], sleeps=sleeps)), 0.1)


TRAINING = [
    _at((MAIN, 20), (STEP, 31), (CALL, 1), (NET, 6)),
    _at((MAIN, 20), (STEP, 33), (BACK, 1), (ENGINE, 1)),
    _at((MAIN, 20), (STEP, 34), (HOOK, 1), (LION, 6)),
]


def test_what_is_called_from_a_line_behind_the_gradients_is_neither_loss_nor_batch():
    same, outer = _at((MAIN, 20), (STEP, 35), (EMA, 4)), _at((MAIN, 21), (EMA, 4), (NORM, 2))
    before = [_at((MAIN, 20), (STEP, 32), (EMA, 4)), _at((MAIN, 19), (EMA, 4)), _at((MAIN, 20), (STEP, 33), (EMA, 4))]
    assert after_gradients([*TRAINING, same, outer, *before]) == [same, outer]


def test_what_it_calls_of_the_model_is_its_own_time_and_not_what_the_loop_calls():
    drawn = _at((MAIN, 20), (STEP, 35), (EMA, 4), (CALL, 1), (NET, 6))
    again = _at((MAIN, 20), (STEP, 36), (CALL, 1), (NET, 6))
    assert after_gradients([*TRAINING, drawn, again]) == [_at((MAIN, 20), (STEP, 35), (EMA, 4))]
    device = [_at((MAIN, 20), (STEP, 35), (EMA, 4), (CALL, 1), (NET, 6), sleeps=True)]
    assert [one.stack for one in after_gradients([*TRAINING, *device])] == [drawn.stack[:-2]]


def test_what_is_called_from_a_line_before_the_model_prepares_the_batch():
    before, outer = _at((MAIN, 20), (STEP, 30), (EMA, 4)), _at((MAIN, 19), (EMA, 4), (NORM, 2))
    later = [_at((MAIN, 20), (STEP, 32), (EMA, 4)), _at((MAIN, 20), (STEP, 31), (EMA, 4)), _at((MAIN, 20), (STEP, 30))]
    assert before_model([*TRAINING, before, outer, *later]) == [before, outer]


def test_what_comes_before_a_call_that_holds_model_and_gradients_is_no_part_of_them():
    """The loop's first model call plays a game; what the step itself does before the model may be trained through."""
    plays = _at((MAIN, 17), (UPDATE, 5), (CALL, 1), (NET, 6))
    drawn, asleep = _at((MAIN, 19), (EMA, 4)), _at((MAIN, 19), (EMA, 5), sleeps=True)
    within = _at((MAIN, 20), (STEP, 30), (EMA, 4))
    assert before_training([*TRAINING, plays, drawn, asleep, within]) == [drawn]
    assert before_model([*TRAINING, plays, drawn, asleep, within]) == [drawn, asleep, within]


def test_a_step_that_an_optimizer_calls_prepares_its_batch_too():
    """As Lightning's do: all of the step is a closure to the optimizer."""
    enabled = _torch("context_decorator.<locals>.decorate_context", "utils/_contextlib.py")
    closure = ((MAIN, 20), (HOOK, 1), (enabled, 1))
    model, drawn = _at(*closure, (STEP, 31), (CALL, 1), (NET, 6)), _at(*closure, (STEP, 30), (EMA, 4))
    assert before_model([model, drawn]) == [drawn]
    assert before_model([model, _at((MAIN, 20), (HOOK, 1), (LION, 6))]) == []


def test_where_model_and_gradients_are_two_calls_the_first_call_of_the_model_counts():
    encodes, decodes = _at((MAIN, 20), (CALL, 1), (NET, 6)), _at((MAIN, 22), (CALL, 1), (NET, 6))
    gradients, between = _at((MAIN, 23), (BACK, 1), (ENGINE, 1)), _at((MAIN, 21), (EMA, 4))
    seen = [encodes, decodes, gradients, between]
    assert before_model(seen) == before_training(seen) == before_call(seen) == []


def test_a_model_that_is_called_without_gradients_is_not_the_one_that_is_trained():
    no_grad = _torch("no_grad.decorate_context", "utils/_contextlib.py")
    evaluated = _at((MAIN, 15), (no_grad, 1), (UPDATE, 5), (CALL, 1), (NET, 6))
    model, gradients, made = _at((MAIN, 20), (CALL, 1), (NET, 6)), _at((MAIN, 21), (BACK, 1)), _at((MAIN, 18), (EMA, 4))
    assert before_call([evaluated, model, gradients, made]) == [made]


def test_a_loop_without_a_loader_makes_or_awaits_its_batch_before_it_calls_the_model():
    """In its own lines, in functions, asleep or not; what an evaluation calls of the model stands before it, too."""
    own, asleep = _at((MAIN, 18)), _at((MAIN, 19), (EMA, 4), sleeps=True)
    evaluated = _at((MAIN, 15), (UPDATE, 5), (CALL, 1), (NET, 6))
    for_evaluation = _at((MAIN, 15), (UPDATE, 4), (EMA, 4))
    later = [_at((MAIN, 20), (STEP, 32), (EMA, 4)), _at((MAIN, 21), (EMA, 4)), _at((MAIN, 19), (HOOK, 1), (LION, 6))]
    found = before_call([*TRAINING, own, asleep, evaluated, for_evaluation, *later])
    assert found == [own, asleep, for_evaluation]


def test_before_a_model_that_no_look_has_met_only_what_is_surely_none_of_it_counts():
    gradients, asleep = _at((MAIN, 20), (BACK, 1), (ENGINE, 1)), _at((MAIN, 18), (EMA, 4), sleeps=True)
    awaits = _at((MAIN, 18), (Function("Queue.get", "queue.py", False, "queue.Queue.get", "queue", True), 1))
    assert before_call([_at((MAIN, 18)), gradients]) is None
    assert before_call([asleep, awaits, _at((MAIN, 18)), gradients]) == [asleep, awaits]
    assert before_call([asleep, _at((MAIN, 21), (EMA, 4), sleeps=True), gradients]) == [asleep]
    assert before_call([asleep, awaits]) == [asleep, awaits]
    assert before_call(TRAINING) == []


def test_of_two_calls_in_one_line_the_one_that_is_made_first_is_before():
    """``self(users, self.draw(items))``, and ``loss.backward(); log(loss)``."""
    draws, calls = Frame(STEP, 31, at=10), Frame(STEP, 31, at=20)
    model = Seen((Frame(MAIN, 20), calls, Frame(CALL, 1), Frame(NET, 6)), 0.1)
    drawn = Seen((Frame(MAIN, 20), draws, Frame(EMA, 4)), 0.1)
    logged = Seen((Frame(MAIN, 20), Frame(STEP, 33, at=50), Frame(UPDATE, 4)), 0.1)
    seen = [*TRAINING[1:], model, drawn, logged]
    assert before_model(seen) == [drawn]
    assert after_gradients(seen) == [logged]


def test_of_several_backward_passes_the_last_one_counts():
    again = _at((MAIN, 20), (STEP, 40), (BACK, 1), (ENGINE, 1))
    assert after_gradients([*TRAINING, again, _at((MAIN, 20), (STEP, 35), (EMA, 4))]) == []


def test_an_optimizer_is_no_afterthought_nor_what_sleeps_or_waits_for_ranks_or_stands_in_the_loop():
    own = _at((MAIN, 20), (STEP, 35))
    others = _at((MAIN, 20), (STEP, 35), (EMA, 4), (_torch("barrier", "distributed/distributed_c10d.py"), 1))
    asleep = _at((MAIN, 20), (STEP, 35), (EMA, 4), sleeps=True)
    assert after_gradients([*TRAINING, own, asleep, others]) == []


def test_without_an_optimizer_of_torch_what_follows_the_gradients_may_be_one():
    update = _at((MAIN, 20), (STEP, 35), (EMA, 4))
    assert after_gradients([*TRAINING[:2], update]) == []
    assert after_gradients([*TRAINING[:2], update], optimizer=True) == [update]


def test_what_a_loader_asks_of_its_sampler_is_the_samplers():
    rank = Function("HardFirst.rank", "train.py", True, first_line=5)
    step = _torch("_BaseDataLoaderIter.__next__", "utils/data/dataloader.py")
    asks = _torch("_BaseDataLoaderIter._next_index", "utils/data/dataloader.py")
    waits = _torch("_MultiProcessingDataLoaderIter._try_get_data", "utils/data/dataloader.py")
    (found,) = in_sampler([_seen(MAIN, step, asks, rank), _seen(MAIN, step, waits), _seen(MAIN, step, asks)])
    assert [frame.function for frame in found.stack] == [rank]


def test_what_makes_a_batch_on_the_thread_that_waits_for_it_is_the_users_code_below_the_call_that_is_timed():
    timed = Function("_Training.__next__", "stallmeter/timing/loop.py", False, "stallmeter.timing.loop", "stallmeter")
    rows = Function("batches", "data.py", True, first_line=5)
    asks = _torch("_BaseDataLoaderIter._next_index", "utils/data/dataloader.py")
    made, waited = _seen(MAIN, timed, timed, rows, NORM), _seen(MAIN, timed, NORM)
    (found,) = in_batches([made, waited, _seen(MAIN, rows), _seen(MAIN, timed, asks, rows)])
    assert [frame.function for frame in found.stack] == [rows, NORM]


def test_a_batch_that_a_library_alone_makes_is_seen_too():
    """A pipeline that is iterated without torch's loader, and parses what it reads."""
    timed = Function("Timed.__next__", "stallmeter/timing/loop.py", False, "stallmeter.timing.loop", "stallmeter")
    decode = Function("Decoder.__call__", "tarlib/decode.py", False, "tarlib.decode.Decoder", "tarlib")
    loads = Function("loads", "json/__init__.py", False, "json.loads", "")
    waits = Function("Condition.wait", "threading.py", False, "threading.Condition.wait", "")
    fetch = _torch("fetch", "utils/data/_utils/fetch.py")
    made = [_seen(MAIN, timed, decode, loads)]
    others = [_seen(MAIN, timed, decode, waits), _seen(MAIN, timed, fetch, decode), _seen(MAIN, decode, loads)]
    (found,) = in_batches([*made, *others])
    assert [frame.function for frame in found.stack] == [decode, loads]
    assert fold([found]).spots[0].own is False


def test_what_a_framework_asks_for_between_two_events_is_the_users_code_below_it():
    """Keras with a dataset of the user's, with or without a wrapper of ours around ``fit``."""
    fit = Function("TorchTrainer.fit", "keras/src/backend/torch/trainer.py", False, "keras.Model.fit", "keras")
    item = Function("Photos.__getitem__", "photos.py", True, first_line=5)
    (found,) = in_batches([_seen(MAIN, fit, fit, item), _seen(MAIN, fit, fit), _seen(MAIN, item)])
    assert [frame.function for frame in found.stack] == [item]


FIT = Function("Trainer.fit", "lightning/trainer.py", False, "lightning.Trainer.fit", "lightning")
CLOSE = Function("Closure.closure", "lightning/closure.py", False, "lightning.Closure.closure", "lightning")
CALL_HOOK = Function("_call_hook", "lightning/call.py", False, "lightning.call._call_hook", "lightning")
SKIP = _torch("no_grad.<locals>.wrapper", "utils/_contextlib.py")
BY_UNIT = Function("clip_by_unit", "agc.py", True, first_line=4)


def test_what_a_framework_calls_from_a_later_line_than_the_gradients_comes_after_them():
    """The user's way to clip them, say, or a handler of the end of a step."""
    training = [
        _at((MAIN, 9), (FIT, 2), (CLOSE, 5), (CALL, 1), (NET, 7)),
        _at((MAIN, 9), (FIT, 2), (CLOSE, 6), (BACK, 1)),
    ]
    clips = _at((MAIN, 9), (FIT, 2), (CLOSE, 8), (SKIP, 1), (BY_UNIT, 5))
    training.append(
        _at((MAIN, 9), (FIT, 2), (HOOK, 1), (SKIP, 3), (CALL_HOOK, 4), (CLOSE, 6), (CALL_HOOK, 4), (BACK, 1))
    )
    hooked = _at((MAIN, 9), (FIT, 2), (HOOK, 1), (SKIP, 3), (CALL_HOOK, 4), (CLOSE, 8), (CALL_HOOK, 4), (BY_UNIT, 5))
    assert after_gradients([*training, hooked], optimizer=True) == [hooked]
    before = _at((MAIN, 9), (FIT, 2), (CLOSE, 4), (BY_UNIT, 5))
    assert after_gradients([*training, clips, before], optimizer=True) == [clips]


def test_who_reads_a_modules_attributes_calls_no_module():
    reads = _seen(MAIN, UPDATE, _torch("Module.__getattr__", "nn/modules/module.py"))
    switches = _seen(MAIN, UPDATE, _torch("set_grad_enabled.__init__", "autograd/grad_mode.py"))
    name = "DisableContext.__call__.<locals>._fn"
    logs = _seen(MAIN, UPDATE, _torch(name, "_dynamo/eval_frame.py"), FIT)
    assert beside([*MODEL, reads, switches, logs]) == [reads, switches, logs]


def test_where_an_epoch_begins_counts_what_the_loader_or_the_framework_asks_of_the_user():
    begins = _torch("DataLoader.__iter__", "utils/data/dataloader.py")
    asks = _torch("_BaseDataLoaderIter._next_index", "utils/data/dataloader.py")
    waits = _seen(MAIN, begins)
    again = Function("Data.train_dataloader", "data.py", True, first_line=4)
    table = Function("read_table", "data.py", True, first_line=20)
    rank, item = (
        Function(f"{name}", "data.py", True, first_line=30) for name in ("Lengths.__iter__", "Data.__getitem__")
    )
    seen = [waits, _seen(MAIN, UPDATE), _seen(MAIN, FIT, again, table), _seen(MAIN, begins, asks, rank, item, table)]
    assert at_epoch_starts(seen) == [_seen(FIT, again, table), _seen(rank)]
    launcher = Function("run_module", "runpy.py", False, "runpy.run_module", "runpy", standard=True)
    configured = Function("main", "hydra/main.py", False, "hydra.main", "hydra")
    timed = Function("Watched.iterate_by", "stallmeter/timing/loop.py", False, "stallmeter.timing.loop", "stallmeter")
    assert at_epoch_starts([_seen(launcher, MAIN, configured, UPDATE, timed, begins)]) == []


@pytest.mark.parametrize("asks", ["_BaseDataLoaderIter.__init__", "_BaseDataLoaderIter._reset"])
def test_a_sampler_that_does_all_of_its_work_when_it_is_asked_for_an_iterator(asks: str):
    """It reads the dataset for itself: what is to be called once is the sampler's."""
    begins = _torch("DataLoader._get_iterator", "utils/data/dataloader.py")
    starts = _torch("_SingleProcessDataLoaderIter.__init__", "utils/data/dataloader.py")
    asked = _torch(asks, "utils/data/dataloader.py")
    sampler, item, encode = (
        Function(name, "data.py", True, first_line=30) for name in ("Buckets.__iter__", "Data.__getitem__", "encode")
    )
    seen = [_seen(MAIN, FIT, begins, starts, asked, sampler, item, encode)]
    assert at_epoch_starts(seen) == in_sampler(seen) == [_seen(sampler)]
    not_its = _seen(MAIN, FIT, begins, starts, asked, item, encode)
    assert in_sampler([not_its]) == []
    assert at_epoch_starts([not_its]) == [_seen(FIT, begins, starts, asked, item, encode)]


def test_what_a_worker_was_forked_from_is_not_what_it_does():
    """A library alone makes its batch: the function that the program stood in when it forked has no part in that."""
    loop = _torch("_worker_loop", "utils/data/_utils/worker.py")
    decode = Function("decode", "tarlib/decode.py", False, "tarlib.decode", "tarlib")
    forked, spawned = _seen(MAIN, FIT, loop, decode), _seen(decode)
    assert in_worker([forked, spawned]) == [_seen(decode), spawned]


def test_what_the_start_of_a_worker_has_the_user_do_is_part_of_that_start():
    """A fork's handler, or what is pickled for a spawned worker: workers that live on save it."""
    begins = _torch("DataLoader._get_iterator", "utils/data/dataloader.py")
    starts = Function("BaseProcess.start", "multiprocessing/process.py", False, standard=True)
    pickled = Function("Photos.__getstate__", "data.py", True, first_line=30)
    own_start = _seen(MAIN, FIT, pickled, starts, pickled)
    assert at_epoch_starts([_seen(MAIN, FIT, begins, starts, pickled), own_start]) == [
        _seen(FIT, pickled, starts, pickled)
    ]
    bootstrap = Function("BaseProcess._bootstrap", "multiprocessing/process.py", False, standard=True)
    assert at_epoch_starts([_seen(bootstrap, MAIN, begins, pickled)]) == [_seen(begins, pickled)]


def test_a_dataset_that_is_a_sampler_itself_is_named():
    asks = _torch("_BaseDataLoaderIter._next_index", "utils/data/dataloader.py")
    item = Function("Ring.__getitem__", "data.py", True, first_line=30)
    assert in_sampler([_seen(MAIN, asks, item)]) == [_seen(item)]


LOOPS = {
    "the next batch": ("loss = model(x, y)", "x, y = tokens.next()", True),
    "of a function": (
        "    logits, loss = model(X, Y)\n    loss = loss / 4  # of four\n",
        "X, Y = get_batch('train')",
        True,
    ),
    "what the model made": ("out = model(x)", "loss = criterion(out, y)", False),
    "what was made of it": ("out = model(x)\nkept = [out]", "loss = judge(kept)", False),
    "the model's own state": ("out = net(x)", "loss = net.divergence()", False),
    "a method beside the model's": ("out = self.model(x)", "loss = self.judge()", False),
    "a statement of several lines": ("out = model(x)", "loss = criterion(", False),
    "nothing but the language's": ("out = model(x)", "len([])", False),
    "a call that gives nothing": ("out = model(x)", "dashboard.draw(words)", False),
    "a number that the model is not called with": ("out = model(x)", "count = census(words)", False),
    "an attribute of its name": ("out = model(batch.x)", "x = census(words)", False),
    "a part of the model's name": ("out = model(xs)", "x = census(words)", False),
}

NOTHING_MADE = ("a number that the model is not called with", "an attribute of its name", "a part of the model's name")
"""No gradient flows through what has nothing of what was made since the model."""


@pytest.mark.parametrize("name", LOOPS)
def test_a_call_that_takes_nothing_of_what_the_model_made_is_the_next_batch(tmp_path: Path, name: str) -> None:
    before, call, is_early = LOOPS[name]
    file = tmp_path / "train.py"
    file.write_text(f"for step in steps:\n    {before}\n    {call}\n    loss.backward()\n")
    line = 3 + before.count("\n")

    def at(line: int, *functions: Function) -> Seen:
        return Seen((Frame(MAIN, line, path=str(file)), *(Frame(function, 1) for function in functions)), 0.1)

    called = at(line, UPDATE, NORM)
    seen = [at(2, CALL, NET), called, at(line + 1, BACK, ENGINE), at(line + 2, HOOK, NORM)]
    assert early(seen) == before_call(seen) == before_model(seen) == before_training(seen) == [called] * is_early
    assert between(seen) == [called] * (not is_early and name not in NOTHING_MADE)
    assert without_gradients(seen) == [called] * (name in NOTHING_MADE)
    gone = [Seen((replace(one.stack[0], path="gone.py"), *one.stack[1:]), 0.1) for one in seen]
    assert early(gone) == []


@pytest.mark.parametrize(
    ("call", "decorated", "found"),
    [
        ("score(out.detach(), y)", False, True),
        ("score(out, y)", False, False),
        ("score(out, y)", True, True),
    ],
)
def test_a_score_through_which_no_gradient_flows_is_no_loss(
    tmp_path: Path, call: str, decorated: bool, found: bool
) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"for x, y in loader:\n    out = model(x)\n    {call}\n    f(out, y).backward()\n")

    def at(line: int, *functions: Function) -> Seen:
        return Seen((Frame(MAIN, line, path=str(file)), *(Frame(function, 1) for function in functions)), 0.1)

    switched = _torch("context_decorator.<locals>.decorate_context", "utils/_contextlib.py")
    called = at(3, *([switched] if decorated else []), UPDATE, NORM)
    seen = [at(2, CALL, NET), called, at(4, BACK, ENGINE)]
    assert without_gradients(seen) == [called] * found
    assert between(seen, optimizer=True) == [called] * (not found)


@pytest.mark.parametrize("trains", [True, False])
def test_a_model_that_plays_in_a_block_without_gradients_is_not_yet_the_one_that_is_trained(
    tmp_path: Path, trains: bool
) -> None:
    """A batch of what was played is drawn between the two calls; where no other call was seen, the first one counts."""
    file = tmp_path / "play.py"
    file.write_text(
        "def main():\n    with torch.no_grad():\n        a = net(obs)\n    x = replay.draw(a)\n    loss = net(x)\n"
        "    loss.backward()\n"
    )
    main = replace(MAIN, first_line=1)

    def at(line: int, *functions: Function) -> Seen:
        return Seen((Frame(main, line, path=str(file)), *(Frame(function, 1) for function in functions)), 0.1)

    drawn = at(4, UPDATE, NORM)
    seen = [at(3, CALL, NET), drawn, *([at(5, CALL, NET)] if trains else []), at(6, BACK, ENGINE)]
    assert before_call(seen) == before_model(seen) == [drawn] * trains
    assert between(seen, optimizer=True) == [drawn] * (not trains)


def test_what_follows_the_gradients_is_no_early_batch(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("loss = model(x)\nloss.backward()\nscores = evaluate(net)\n")

    def at(line: int, *functions: Function) -> Seen:
        return Seen((Frame(MAIN, line, path=str(file)), *(Frame(function, 1) for function in functions)), 0.1)

    assert early([at(1, CALL, NET), at(2, BACK, ENGINE), at(3, UPDATE, NORM)]) == []


AUC = Function(
    "BinaryAUROC.compute", "torchmetrics/auroc.py", False, "torchmetrics.BinaryAUROC.compute", "torchmetrics"
)
PREFETCH = Function("Trainer.ahead", "deeptrain/engine.py", False, "deeptrain.Trainer.ahead", "deeptrain")


def test_a_library_without_a_model_is_told_though_the_loop_calls_it_itself():
    """A metric in the training step: its function is the loop's, and has the model called as well."""
    metric, plot = _seen(MAIN, AUC), _seen(MAIN, _torch("SummaryWriter.add_histogram", "utils/tensorboard/writer.py"))
    assert beside([*MODEL, plot]) == [plot]
    seen = [*MODEL, metric, _seen(MAIN, PREFETCH), _seen(MAIN, NORM)]
    assert beside(seen) == [metric]
    [(spot,)] = told_with_helpers(seen, fold([metric]).spots)
    assert (spot.function, spot.calls, spot.trains, spot.within) == ("main", (AUC.dotted,), True, "")


def test_such_a_library_is_told_behind_the_gradients_by_the_line_that_calls_it():
    late = Seen((Frame(MAIN, 9), Frame(AUC, 1)), 0.1)
    assert after_gradients([*MODEL, late, _seen(MAIN, HOOK)]) == [late]


@pytest.mark.parametrize("enabled", [False, True])
def test_what_comes_before_an_optimizer_that_calls_the_whole_step_is_before_the_model(enabled: bool):
    """With a closure; torch's LBFGS switches gradients on for it, within a step that has them off."""
    closure = Function("main.<locals>.closure", "train.py", True, first_line=20)
    step = _torch("LBFGS.step", "optim/lbfgs.py")
    switched = _torch("context_decorator.<locals>.decorate_context", "utils/_contextlib.py")
    around = ((switched, 1),) if enabled else ()
    below = ((MAIN, 24), (HOOK, 1), *around, (step, 1), *around)
    model = _at(*below, (closure, 21), (CALL, 1), (NET, 6))
    gradients = _at(*below, (closure, 22), (BACK, 1), (ENGINE, 1))
    drawn = _at((MAIN, 15), (UPDATE, 5))
    seen = [model, gradients, drawn, _at((MAIN, 30), (UPDATE, 5))]
    assert before_call(seen) == [drawn]
    assert before_model(seen) == [drawn]
    assert after_gradients(seen) == [seen[-1]]
