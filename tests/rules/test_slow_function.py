"""slow-function: a function of the program beside the model holds up the steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stallmeter.records import NO_LOADER, CodeLook, CodeSpot, GarbagePauses, LoaderInfo
from stallmeter.records.diagnosis import Location, Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.slow_function import SlowFunction
from stallmeter.window import Window

from .windows import START_S, check_fix, device_steps, fires, gpus, hosts, ledger, loader, silent, step, window

SAVES = "matplotlib.figure.Figure.savefig"


def look(
    share: float,
    bucket: str = "steps",
    function: str = "Meter.update",
    seen: int = 200,
    call: str = SAVES,
    before: float = 0.0,
    apart: float = 0.0,
    after: float = 0.0,
    others: tuple[CodeSpot, ...] = (),
) -> CodeLook:
    """A look into steps in which a function beside the model takes a share, and some of it after the gradients."""
    calls = (call,) if call else ()
    spot = CodeSpot(file="meter.py", line=12, function=function, own=True, wall_s=share, calls=calls)
    return CodeLook(
        time_s=START_S,
        place="loop",
        bucket=bucket,
        rule="",
        method="samples",
        seen=seen,
        wall_s=1.0,
        beside=(*others, spot) if share else (),
        before=(replace(spot, wall_s=before),) if before else (),
        apart=(replace(spot, wall_s=apart),) if apart else (),
        after=(replace(spot, wall_s=after),) if after else (),
    )


def each(*looks: CodeLook, data_wait: float = 0.0, warmup: float = 0.0) -> Window:
    """100 s of steps that take as long as each other, after first ones that took longer."""
    steps = [step(i, total_s=0.1, compute_s=0.1, forward_s=0.0, backward_s=0.0, optimizer_s=0.0) for i in range(1000)]
    buckets: dict[str, Any] = {"compute": 100.0 - data_wait, "data_wait": data_wait, "start": 0.0, "loop": 0.0}
    record = ledger(wall_s=100.0 + warmup, steps=1000, warmup=warmup, **buckets)
    return window(*steps, loader(), record, *looks)


def now_and_then(*looks: CodeLook, every: int) -> Window:
    """Steps of 10 ms, and every so many one of 300."""
    times = [0.3 if i % every == every - 1 else 0.01 for i in range(1000)]
    none = {"forward_s": 0.0, "backward_s": 0.0, "optimizer_s": 0.0}
    steps = [step(i, total_s=s, compute_s=s, **none) for i, s in enumerate(times)]
    wall_s = sum(times)
    return window(
        *steps, loader(), ledger(wall_s=wall_s, steps=1000, compute=wall_s, start=0.0, data_wait=0.0, loop=0.0), *looks
    )


def test_fires():
    found = fires(SlowFunction(), each(look(0.5)))
    assert found.title == "Meter.update holds up the steps"
    assert found.severity is Severity.CRITICAL
    assert found.time_lost_s == pytest.approx(50.0)
    assert found.location == Location("meter.py", 12, "Meter.update", 50.0, SAVES)
    assert found.advice[0].predicted_gain_pct == pytest.approx(100.0, rel=0.05)


def test_garbage_may_be_the_function_s_own():
    """What the collector takes is told by gc-pauses, and goes at the most with the function that made the garbage."""
    clean = fires(SlowFunction(), each(look(0.5))).advice[0].gain_interval_pct
    pauses = GarbagePauses(time_s=START_S + 50, passes=9, pause_s=20.0, training_s=20.0)
    found = fires(SlowFunction(), each(look(0.5), pauses))
    assert found.time_lost_s == pytest.approx(30.0)
    assert found.advice[0].predicted_gain_pct == pytest.approx(43.0, rel=0.05)
    least, most = found.advice[0].gain_interval_pct or (0.0, 0.0)
    assert clean is not None
    assert least < 43.0
    assert most == pytest.approx(clean[1])


def test_a_small_part_of_the_steps_and_few_looks_are_nothing():
    assert silent(SlowFunction(), each(look(0.08, seen=400)))
    assert silent(SlowFunction(), each(look(0.09, seen=400), warmup=200.0))  # which was not looked at
    assert silent(SlowFunction(), each(look(0.5, seen=30)))
    assert silent(SlowFunction(), each(look(0.0)))


def test_a_tenth_of_what_is_surely_no_loss_informs():
    """A picture is none, and what comes behind the gradients."""
    found = fires(SlowFunction(), each(look(0.12, seen=400)))
    assert (found.severity, found.time_lost_s) == (Severity.INFO, pytest.approx(12.0))
    verdict = evaluate(ALL_RULES, each(look(0.12, seen=400)))
    assert verdict.primary is not None
    assert verdict.primary.rule == "slow-function"
    assert fires(SlowFunction(), each(look(0.12, seen=400, call="torch.histc", after=0.12))).severity is Severity.INFO
    assert silent(SlowFunction(), each(look(0.12, seen=400, call="torch.histc")))


def test_a_small_part_in_one_rank_of_several_is_told_for_its_place_alone():
    """What a rank alone may take matters where the others wait for it: its own verdict stays what it is."""
    made = each(look(0.07, seen=400))
    assert silent(SlowFunction(), made)
    made.facts.update({"world_size": 2})
    found = fires(SlowFunction(), made)
    assert (found.severity, found.time_lost_s, found.share_pct) == (Severity.INFO, 0.0, 0.0)
    assert found.location is not None
    verdict = evaluate(ALL_RULES, made)
    assert verdict.primary is not None
    assert verdict.primary.rule == "compute-bound"
    made = each(look(0.04, seen=1000))
    made.facts.update({"world_size": 2})
    assert silent(SlowFunction(), made)


@pytest.mark.parametrize("call", ["", "sorted", "torch.nn.functional.relu", "numpy.matmul", "time.sleep"])
def test_what_may_be_a_loss_or_stand_for_a_device_is_not_blamed(call):
    assert silent(SlowFunction(), each(look(0.5, call=call)))


@pytest.mark.parametrize("call", ["", "numpy.histogram", "torch.histc"])
def test_what_comes_once_the_gradients_are_there_is_no_loss(call):
    found = fires(SlowFunction(), each(look(0.5, call=call, after=0.48)))
    assert found.location is not None
    assert found.location.function == "Meter.update"
    assert silent(SlowFunction(), each(look(0.5, call=call, after=0.3)))  # called before them as well


def loss(
    share: float, model: float, gradients: float = 0.5, between: float = 1.0, seen: int = 200, call: str = ""
) -> Window:
    """A function that stands between the model and its gradients, for the most part of its time or less."""
    one = look(share, call=call, seen=seen)
    spot = replace(one.beside[0], wall_s=between * share)
    return each(replace(one, between=(spot,), model_s=model, gradients_s=gradients))


def test_a_loss_that_takes_longer_than_the_model_is_told_with_its_part_of_the_gradients():
    found = fires(SlowFunction(), loss(0.2, 0.2))
    assert found.title == "Meter.update takes longer than the model"
    assert found.time_lost_s == pytest.approx(20.0 + 25.0)
    assert found.severity is Severity.INFO
    assert "45 %" in found.summary
    assert found.location is not None
    low, high = found.advice[0].gain_interval_pct or (0.0, 0.0)
    # At the most the model's part of the backward pass is half of its forward.
    assert low < (found.advice[0].predicted_gain_pct or 0.0) < high == pytest.approx(100 * 60 / 40, rel=0.03)
    verdict = evaluate(ALL_RULES, loss(0.2, 0.2))
    assert verdict.primary is not None
    assert verdict.primary.rule == "slow-function"


def test_what_the_backward_pass_takes_beyond_the_models_is_the_losss():
    """A broadcast over all pairs: 12 % of the steps before its gradients, the model 9 %, 4.5 times as fast without."""
    found = fires(SlowFunction(), loss(0.12, 0.09, gradients=0.76))
    assert found.time_lost_s == pytest.approx(12.0 + 76.0 - 18.0, rel=0.01)
    low, high = found.advice[0].gain_interval_pct or (0.0, 0.0)
    assert low < 350.0 < high


def optimizer(share: float, *, within: str = "Shampoo.step", placed: float = 0.8, seen: int = 200) -> Window:
    """Steps in which the optimizer takes a share, most of it in one function of its own."""
    spot = CodeSpot(file="shampoo.py", line=14, function="root", own=True, wall_s=placed * share, within=within)
    steps = [step(i, total_s=0.1, forward_s=0.0, backward_s=0.0, optimizer_s=0.1 * share) for i in range(1000)]
    buckets: dict[str, Any] = {"compute": 100.0 * (1.0 - share), "optimizer": 100.0 * share}
    record = ledger(wall_s=100.0, steps=1000, start=0.0, data_wait=0.0, loop=0.0, forward=0.0, backward=0.0, **buckets)
    return window(*steps, loader(), record, replace(look(0.0, seen=seen), beside=(spot,)))


def test_an_optimizer_of_ones_own_that_takes_longer_than_all_else_informs():
    found = fires(SlowFunction(), optimizer(0.55))
    assert found.severity is Severity.INFO
    assert found.title == "Shampoo.step takes longer than the model and its gradients"
    assert found.location is not None
    assert (found.location.function, found.time_lost_s) == ("root", pytest.approx(55.0))
    assert found.advice[0].text.startswith("Run its costly part every few steps, or make it cheaper (shampoo.py:14).")
    verdict = evaluate(ALL_RULES, optimizer(0.55))
    assert verdict.primary is not None
    assert verdict.primary.rule == "slow-function"


def functions(share: float, seen: int = 200) -> Window:
    """Steps of which an autograd function of the program's own takes a share, nine tenths of it in its backward."""
    parts = (("table", 0.9), ("SoftDTW.forward", 0.1))
    spots = tuple(
        CodeSpot(file="dtw.py", line=37, function=name, own=True, wall_s=part * share) for name, part in parts
    )
    return each(replace(look(0.0, seen=seen), functions=spots))


def test_an_autograd_function_of_ones_own_that_takes_a_large_part_informs():
    found = fires(SlowFunction(), functions(0.35))
    assert found.severity is Severity.INFO
    assert found.title == "table takes a large part of the steps"
    assert found.location is not None
    assert (found.location.function, found.location.share_pct) == ("table", pytest.approx(90.0))
    assert found.time_lost_s == pytest.approx(35.0)
    verdict = evaluate(ALL_RULES, functions(0.35))
    assert verdict.primary is not None
    assert verdict.primary.rule == "slow-function"


@pytest.mark.parametrize("made", [functions(0.19), functions(0.35, seen=50)])
def test_a_small_part_of_them_and_few_looks_are_nothing(made):
    assert silent(SlowFunction(), made)


@pytest.mark.parametrize(
    "made", [optimizer(0.45), optimizer(0.55, placed=0.3), optimizer(0.55, within="fit"), optimizer(0.55, seen=15)]
)
def test_one_that_takes_less_or_is_not_placed_is_part_of_the_step(made):
    assert silent(SlowFunction(), made)


def test_a_loss_that_takes_less_than_the_model_is_not_blamed():
    assert silent(SlowFunction(), loss(0.2, 0.21))
    assert silent(SlowFunction(), loss(0.2, 0.0))  # no look has met a model
    assert silent(SlowFunction(), loss(0.2, 0.2, between=0.8))  # nor all of it what stands between
    assert silent(SlowFunction(), loss(0.05, 0.05, gradients=0.2))
    assert silent(SlowFunction(), loss(0.2, 0.2, seen=90))


def test_a_small_helper_does_not_hide_a_loss_nor_a_loss_a_helper():
    (alone,) = (made := loss(0.4, 0.2).code.looks)
    for share, told in ((0.01, "Meter.update takes longer than the model"), (0.3, "append_row holds up the steps")):
        helper = CodeSpot(file="m.py", line=1, function="append_row", own=True, wall_s=share, calls=("json.dumps",))
        assert fires(SlowFunction(), each(replace(alone, beside=(*alone.beside, helper)))).title == told
    assert len(made) == 1


@pytest.mark.parametrize("call", ["scipy.stats.rankdata", "numpy.histogram", "difflib.SequenceMatcher.ratio"])
def test_what_no_gradient_flows_through_is_no_loss_though_it_stands_where_one_does(call):
    for model in (0.2, 0.6):
        found = fires(SlowFunction(), loss(0.4, model, gradients=0.1, call=call))
        assert found.severity is Severity.CRITICAL
        assert found.summary.endswith("and is no part of the model.")
        assert found.time_lost_s == pytest.approx(40.0)
    assert silent(SlowFunction(), loss(0.4, 0.6, gradients=0.1, call="torch.nn.functional.huber_loss"))
    assert silent(SlowFunction(), loss(0.4, 0.6, gradients=0.1, between=0.5, call=call))


def test_what_computes_in_python_itself_is_no_loss_of_tensors():
    """It is found between two instructions: 3 % of the looks and more."""

    def matcher(interpreting: float, seen: int = 200, **more: Any) -> CodeLook:
        made = look(0.4, call="", seen=seen, **more)
        return replace(made, beside=(replace(made.beside[-1], interpreting_s=interpreting),))

    assert fires(SlowFunction(), each(matcher(0.03))).advice[0].text.startswith("Make it cheaper, or run it less often")
    early = fires(SlowFunction(), each(matcher(0.03, before=0.4)))
    assert early.advice[0].text.startswith("Make it cheaper, or move it into the dataset")
    assert silent(SlowFunction(), each(matcher(0.01)))  # of a loss now and then
    assert silent(SlowFunction(), each(matcher(0.03, seen=60)))  # two looks may be chance


def test_what_a_function_calls_counts_as_its_own():
    """A score that is a fifth of the steps, in three functions that each take less."""
    parts = [("hd95", 0.12, "scipy.ndimage.distance_transform_edt"), ("border", 0.08, "scipy.ndimage.binary_erosion")]
    spots = tuple(
        CodeSpot(file="scores.py", line=i, function=name, own=True, wall_s=s, calls=(call,), within="score")
        for i, (name, s, call) in enumerate(parts, 1)
    )
    made = replace(look(0.12), beside=spots, after=spots)
    found = fires(SlowFunction(), each(made))
    assert found.time_lost_s == pytest.approx(20.0)
    assert found.summary.startswith("score, most of it hd95, took about 20.0 s")
    assert found.location is not None
    assert (found.location.function, found.location.line) == ("hd95", 1)
    apart = tuple(replace(spot, within=spot.function) for spot in spots)
    alone = fires(SlowFunction(), each(replace(made, beside=apart, after=apart)))
    assert (alone.severity, alone.time_lost_s) == (Severity.INFO, pytest.approx(12.0))


def test_what_computes_with_numpy_before_the_model_belongs_to_the_batch():
    found = fires(SlowFunction(), each(look(0.5, call="numpy.percentile", before=0.48)))
    assert "prepares the batch" in found.summary
    assert "or move it into the dataset (meter.py:12)" in found.advice[0].text
    assert found.advice[0].predicted_gain_pct == pytest.approx(100.0, rel=0.05)


def test_a_loop_without_a_loader_has_no_dataset_to_move_it_into():
    made = each(look(0.5, before=0.2, apart=0.5))
    made.append(LoaderInfo(time_s=START_S, kind=NO_LOADER))
    found = fires(SlowFunction(), made)
    assert "prepares the batch" in found.summary
    assert found.advice[0].text.startswith("Make it cheaper, or have other processes do it (meter.py:12).")
    assert "dataset" not in found.advice[0].text


@pytest.mark.parametrize("call", ["random.Random.choices", "re.sub"])
def test_so_does_what_the_standard_library_is_needed_for(call):
    assert "prepares the batch" in fires(SlowFunction(), each(look(0.5, call=call, before=0.48))).summary
    assert silent(SlowFunction(), each(look(0.5, call="threading.Event.wait", before=0.48)))


def test_what_comes_before_model_and_gradients_of_another_function_is_part_of_neither():
    assert "prepares the batch" in fires(SlowFunction(), each(look(0.5, call="", before=0.5, apart=0.48))).summary
    assert silent(SlowFunction(), each(look(0.5, call="", before=0.5, apart=0.2)))


@pytest.mark.parametrize("call", ["", "torch.nn.functional.interpolate"])
def test_what_may_be_trained_through_is_not_blamed_before_the_model(call):
    assert silent(SlowFunction(), each(look(0.5, call=call, before=0.5)))


def test_a_larger_one_that_may_be_a_loss_hides_nothing():
    loss = CodeSpot(file="loss.py", line=3, function="margin", own=True, wall_s=0.45, calls=())
    found = fires(SlowFunction(), each(look(0.4, others=(loss,))))
    assert found.culprit == "Meter.update"


def test_what_long_steps_take_beyond_others_counts_where_they_are_a_pattern():
    looks = look(0.1), look(0.95, "long steps")
    found = fires(SlowFunction(), now_and_then(*looks, every=10))
    assert found.location is not None
    assert found.location.call == "matplotlib.figure.Figure.savefig"
    assert found.time_lost_s > 24.0  # of 39 s: 100 times 270 ms at 95 %, and a part of the rest
    assert silent(SlowFunction(), now_and_then(*looks, every=50))  # exceptions: step-outliers


def test_it_comes_before_a_wait_that_costs_less():
    verdict = evaluate(ALL_RULES, each(look(0.5), data_wait=12.0))
    assert verdict.primary is not None
    assert verdict.primary.rule == "slow-function"


def begins(share: float, bucket: str = "worker_startup", seen: int = 100, **buckets: float) -> Window:
    """60 s of steps, 30 s where epochs begin and 10 s between them; a look says what takes a share of one of these."""
    steps = [step(i, total_s=0.06, compute_s=0.06, data_wait_s=0.0) for i in range(1000)]
    spot = CodeSpot(file="data.py", line=20, function="read_table", own=True, wall_s=share, calls=("pandas.read_csv",))
    found = CodeLook(
        time_s=START_S, place="loop", bucket=bucket, rule="", method="samples", seen=seen, wall_s=1.0, spots=(spot,)
    )
    spent = {"compute": 60.0, "worker_startup": 30.0, "other": 10.0, "data_wait": 0.0, "start": 0.0, "loop": 0.0}
    spent |= buckets
    record = ledger(wall_s=sum(spent.values()), steps=1000, **spent)
    return window(*steps, loader(num_workers=0), replace(record, epochs=10), found)


def test_what_begins_each_epoch_is_named():
    found = fires(SlowFunction(), begins(0.8))
    assert found.title == "read_table holds up the epochs"
    assert found.time_lost_s == pytest.approx(24.0)
    assert found.severity is Severity.WARNING
    assert found.location == Location("data.py", 20, "read_table", 80.0, "pandas.read_csv")
    assert found.advice[0].predicted_gain_pct == pytest.approx(100.0 * 24 / 76, rel=0.05)
    assert found.supersedes == ("worker-startup",)
    verdict = evaluate(ALL_RULES, begins(0.8))
    assert verdict.primary is not None
    assert verdict.primary.rule == "slow-function"
    assert fires(SlowFunction(), begins(0.4)).supersedes == ()


def test_a_small_part_of_what_begins_the_epochs_and_few_looks_are_nothing():
    assert silent(SlowFunction(), begins(0.3))
    assert silent(SlowFunction(), begins(0.8, seen=20))
    assert silent(SlowFunction(), begins(0.8, worker_startup=0.4))


def test_what_begins_the_only_epoch_is_done_once():
    made = begins(0.8)
    assert made.ledger.record is not None
    made.append(replace(made.ledger.record, time_s=START_S + 200, epochs=1))
    assert silent(SlowFunction(), made)


def test_each_of_the_two_has_its_own_threshold():
    """What lies between epochs is larger, and less than it may be; what begins them is told."""
    starts, between = begins(1.0, other=32.0).code.looks[0], begins(1.0, "other").code.looks[0]
    made = begins(1.0, worker_startup=20.0, other=22.0, compute=120.0)
    made.append(between)
    assert starts.bucket == "worker_startup"
    assert fires(SlowFunction(), made).time_lost_s == pytest.approx(20.0)


def test_what_comes_after_the_last_epoch_is_no_part_of_what_lies_between():
    """A final evaluation of 60 s; 3 s lie between the epochs, all of them looked at."""
    made = begins(1.0, "other", other=63.0, worker_startup=0.0)
    record = made.ledger.record
    assert record is not None
    made.append(replace(record, time_s=START_S + 50, epochs=5, buckets={**record.buckets, "other": 1.5}))
    made.append(replace(record, time_s=START_S + 60, buckets={**record.buckets, "other": 3.0}))
    made.append(replace(record, time_s=START_S + 130))
    assert [found.seconds for found in made.code.beside_epochs or ()] == [pytest.approx(3.0)]
    assert silent(SlowFunction(), made)


def test_what_lies_between_epochs_is_named():
    assert silent(SlowFunction(), begins(0.9, "other"))
    assert silent(SlowFunction(), begins(0.9, "other", other=20.0))  # an evaluation may take as much
    found = fires(SlowFunction(), begins(0.9, "other", other=40.0))
    assert "the time between epochs, 28 % of the training time" in found.summary
    assert found.supersedes == ()


@pytest.mark.parametrize(
    ("call", "said"), [("lightning.LightningModule.log_dict", True), ("lightning.Fabric.backward", False)]
)
def test_numbers_that_a_framework_keeps_train_nothing(call, said):
    made = each(look(0.5, call=call))
    assert (fires(SlowFunction(), made).rule == "slow-function") if said else silent(SlowFunction(), made)


def test_a_library_that_the_training_step_calls_is_named_for_what_it_is() -> None:
    """Not the training step: that is the model's, too."""
    made = look(0.5, function="Net.training_step", call="torchmetrics.AUROC.compute")
    found = fires(SlowFunction(), each(replace(made, beside=(replace(made.beside[0], trains=True),))))
    assert found.title == "torchmetrics.AUROC.compute holds up the steps"
    assert found.summary.startswith("torchmetrics.AUROC.compute, called by Net.training_step, took about")
    assert found.location is not None
    assert found.location.function == "Net.training_step"


def test_what_a_thread_takes_beside_it_may_be_won_as_well() -> None:
    """A writer of events: at the most, for nobody knows that it is fed by this function."""
    alone = fires(SlowFunction(), each(look(0.4))).advice[0]
    made = each(look(0.4))
    cpus = {"usable_cpus": 2.0, "job_cpus": 1.9, "main_cpus": 1.9, "others_cpus": 0.0, "loop_cpu_pct": 75.0}
    for sample in hosts(20, lambda i: {**cpus, "loop_cpu_wait_pct": 22.0, "threads_cpus": 0.2}):
        made.append(sample)
    beside = fires(SlowFunction(), made).advice[0]
    assert beside.predicted_gain_pct == alone.predicted_gain_pct
    (least, most), (alone_least, alone_most) = beside.gain_interval_pct, alone.gain_interval_pct
    assert least == alone_least
    assert 100 + most == pytest.approx((100 + alone_most) * (1 - 0.22) ** -(1.7 / 0.75), rel=0.01)


def modelled(share: float, interpreting: float, seen: int = 200, **changes: Any) -> Window:
    """Steps in which the model calls a function of the program's, of which so much is Python."""
    spot = CodeSpot(
        file="net.py", line=40, function="adjacency", own=True, wall_s=share, interpreting_s=interpreting * share
    )
    spot = replace(spot, **changes)
    return each(replace(look(0.0, seen=seen), in_modules=(spot,)))


def test_what_the_model_computes_in_python_holds_it_up():
    found = fires(SlowFunction(), modelled(0.4, 0.08))
    assert found.title == "adjacency holds up the model"
    assert found.severity is Severity.CRITICAL
    assert found.time_lost_s == pytest.approx(40.0)
    assert found.location == Location("net.py", 40, "adjacency", 40.0, None)
    assert found.advice[0].predicted_gain_pct == pytest.approx(100.0 / 0.6 - 100.0, rel=0.05)
    assert fires(SlowFunction(), modelled(0.15, 0.08, seen=400)).severity is Severity.INFO


@pytest.mark.parametrize(
    ("share", "interpreting", "seen"),
    [(0.4, 0.01, 200), (0.05, 0.08, 400), (0.4, 0.08, 40), (0.4, 0.06, 30)],
    ids=["operators", "little", "seldom met", "met by chance"],
)
def test_what_the_model_computes_with_tensors_is_the_model(share: float, interpreting: float, seen: int):
    assert silent(SlowFunction(), modelled(share, interpreting, seen))


@pytest.mark.parametrize("call", ["scipy.sparse.csr_matrix", "einops.rearrange", "torch.cat", ""])
def test_what_the_model_computes_with_another_package_holds_it_up(call: str) -> None:
    """No gradient flows through SciPy; what is not known to hold no model may be the model."""
    made = modelled(0.4, 0.0, calls=(call,) if call else ())
    if not call.startswith("scipy"):
        assert silent(SlowFunction(), made)
        return
    found = fires(SlowFunction(), made)
    assert found.summary.startswith("adjacency computes with scipy, not with tensors. It took about 40.0 s within the")
    assert [one.unit for one in found.evidence] == ["%", "samples"]
    direct = fires(SlowFunction(), modelled(0.4, 0.0, calls=(call,), trains=True, function="Net.forward"))
    assert direct.title == f"{call} holds up the model"
    assert direct.summary.startswith(f"{call}, called by Net.forward, computes with scipy, not with tensors.")


class TestBesideADevice:
    """What the host does costs something only while the device has nothing to do."""

    def on_a_gpu(self, utilization_pct: float | None, *looks: CodeLook) -> Window:
        made = each(*looks)
        for record in (
            *device_steps(exposed=0.0),
            *(() if utilization_pct is None else gpus(20, lambda i: {"utilization_pct": utilization_pct})),
        ):
            made.append(record)
        return made

    def test_most_of_the_steps_beside_an_idle_device(self):
        """80 s of 100 in a metric, and 75 idle (a copy takes 1): 54 to 74 s are both."""
        found = fires(SlowFunction(), self.on_a_gpu(25.0, look(0.8, call="numpy.add.at", after=0.8)))
        assert found.severity is Severity.CRITICAL
        assert found.time_lost_s == pytest.approx(64.0)
        assert "took about 64.0 s, 64 % of the training time" in found.summary

    def test_its_gain_ends_where_the_device_is_busy(self):
        """A quarter of the time the device computes: four times as fast is the most, give or take two runs' noise."""
        found = fires(SlowFunction(), self.on_a_gpu(25.0, look(0.98, call="numpy.add.at", after=0.98)))
        assert found.advice[0].predicted_gain_pct is not None
        assert found.advice[0].predicted_gain_pct <= 300.0

    def test_a_busy_device(self):
        """The host waits for it, whatever it seems to do."""
        assert silent(SlowFunction(), self.on_a_gpu(95.0, look(0.8, call="numpy.add.at", after=0.8)))

    def test_abstains_where_it_cannot_be_told(self):
        """Half of the time in the function, half of it idle; or a utilization that nobody knows."""
        assert silent(SlowFunction(), self.on_a_gpu(50.0, look(0.5, call="numpy.add.at", after=0.5)))
        assert silent(SlowFunction(), self.on_a_gpu(None, look(0.8, call="numpy.add.at", after=0.8)))


def test_what_the_model_calls_without_gradients_is_information_from_a_fifth_of_the_time_on():
    found = fires(SlowFunction(), modelled(0.4, 0.0, untrained_s=0.4))
    assert found.title == "adjacency takes a large part of the model's time"
    assert found.severity is Severity.INFO
    assert found.time_lost_s == pytest.approx(40.0)
    assert found.location == Location("net.py", 40, "adjacency", 40.0, None)
    gain, interval = found.advice[0].predicted_gain_pct, found.advice[0].gain_interval_pct
    assert gain == pytest.approx(100.0 / (1.0 - 0.65 * 0.4) - 100.0, rel=0.05)
    assert interval is not None
    assert interval[0] < gain < interval[1]


@pytest.mark.parametrize(("share", "untrained"), [(0.15, 0.15), (0.4, 0.2), (0.4, 0.0)])
def test_less_of_it_or_only_a_part_without_gradients_is_the_model(share: float, untrained: float):
    assert silent(SlowFunction(), modelled(share, 0.0, untrained_s=untrained))


class TestGrowth:
    """What is computed of all that an epoch has seen takes longer with each of its steps."""

    @staticmethod
    def epochs(*rises: float, steps: int = 100, share: float = 0.4) -> Window:
        """Steps of 0.1 s at the beginning of each epoch, which get longer by so much until its end."""
        taken = [
            step(
                index=epoch * steps + at,
                epoch=epoch,
                total_s=0.1 + rise * at / steps,
                compute_s=0.1 + rise * at / steps,
                forward_s=0.0,
                backward_s=0.0,
                optimizer_s=0.0,
            )
            for epoch, rise in enumerate(rises)
            for at in range(steps)
        ]
        buckets: dict[str, Any] = {"compute": 100.0, "data_wait": 0.0, "start": 0.0, "loop": 0.0}
        return window(*taken, loader(), ledger(wall_s=100.0, steps=1000, warmup=0.0, **buckets), look(share))

    def test_sums_of_each_batch_are_advised(self):
        first = fires(SlowFunction(), self.epochs(0.1, 0.12, 0.1)).advice[0]
        assert first.text.startswith("Collect sums of each batch, or compute it once an epoch (meter.py:12).")
        assert "Steps take 116 ms early in an epoch, 182 ms late in it." in first.text
        check_fix(first.fix)

    @pytest.mark.parametrize(
        "made",
        [
            epochs(0.0, 0.0, 0.0),
            epochs(0.1, 0.0, 0.1),
            epochs(0.03, 0.03),
            epochs(0.1, 0.1, steps=11),
            epochs(0.05, 0.05, share=0.9),
        ],
        ids=["as long", "not in one", "a little", "few steps", "of something else"],
    )
    def test_less_often_is_where_they_stay_or_something_else_grows(self, made):
        assert fires(SlowFunction(), made).advice[0].text.startswith("Make it cheaper, or run it less often")
