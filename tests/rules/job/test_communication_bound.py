"""The exchange itself takes the time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stallmeter.ranks.arrivals import Exchanges
from stallmeter.ranks.code import CALLS
from stallmeter.ranks.ddp import DdpExchange
from stallmeter.ranks.job import Job
from stallmeter.records.diagnosis import Location, Severity
from stallmeter.rules.job.communication_bound import CommunicationBound
from stallmeter.rules.job.losses import Loss
from stallmeter.window.beside import WORK

from ..windows import check_fix
from .jobs import job
from .test_ddp_times import times

RULE = CommunicationBound()


def with_exchange(share: float | None, *, ranks: int = 4, measured: bool = True):
    """A job whose exchange takes this share of 100 steps of 20 ms."""
    exchanges = Exchanges(
        steps=frozenset(range(100)),
        total_s=2.0,
        lost_s={},
        late_steps={},
        exchange_s=None if share is None else share * 2.0,
        is_measured=measured,
        bytes_per_step=40e6,
        per_step=2.0,
    )
    return replace(job(ranks=ranks), exchanges=exchanges)


def test_half_of_the_time():
    """Seconds, milliseconds of a step, bytes and bandwidth; what exchanging half as often wins."""
    made = with_exchange(0.5)
    (said,) = RULE.check(made, [])
    assert said.ranks == ()
    assert said.severity is Severity.CRITICAL
    assert said.time_lost_s == pytest.approx(made.training_s / 2)
    assert said.summary.startswith("After the last rank's arrival the exchange took 10 ms in a mean step, 50 % of the")
    assert said.summary.endswith("for 40 MB of each rank.")
    told = {evidence.name: evidence.value for evidence in said.evidence}
    assert told["bandwidth of the algorithm"] == pytest.approx(2 * 3 / 4 * 40e6 / 0.010)
    assert told["collectives in a step"] == 2.0
    assert said.advice[0].predicted_gain_pct == pytest.approx(100 * (1 / 0.75 - 1))
    assert said.confidence == 0.8
    for advice in said.advice:
        check_fix(advice.fix)


@pytest.mark.parametrize(
    ("hosts", "facts", "names"),
    [
        (["a", "a"], {}, None),
        (["a", "b"], {}, "GLOO_SOCKET_IFNAME"),
        (["", ""], {}, "GLOO_SOCKET_IFNAME"),  # not known
        (["a", "a"], {"GPU busy, %": 50.0}, "NCCL_DEBUG"),
    ],
)
def test_a_network_is_to_be_checked_where_there_is_one(hosts, facts, names):
    """Between ranks of one host without a GPU there is none; between its GPUs there may be a slow way."""
    made = with_exchange(0.5, ranks=2)
    views = [
        replace(view, header=replace(view.header, host=host), facts=facts)
        for view, host in zip(made.ranks, hosts, strict=True)
    ]
    (said,) = RULE.check(replace(made, ranks=tuple(views)), [])
    told = [advice.fix.do for advice in said.advice if "network" in advice.fix.do]
    assert len(said.advice) - len(told) == 2
    assert (names in told[0] and len(told) == 1) if names else not told


def test_an_end_that_was_not_noted_is_less_sure():
    """It is then taken for the end of the backward pass."""
    assert RULE.check(with_exchange(0.5, measured=False), [])[0].confidence == 0.6
    # The optimizer, and whatever else follows in a plain loop's body, is taken with it.
    assert RULE.check(with_exchange(0.25), []) != []
    assert RULE.check(with_exchange(0.25, measured=False), []) == []


@pytest.mark.parametrize("share", [None, 0.0, 0.15])
def test_silent(share):
    """Without a known end, without an exchange and below 20 %."""
    assert RULE.check(with_exchange(share), []) == []


def test_a_whole_job_counts_for_the_bandwidth():
    """The exchange is among all ranks, though some are not known."""
    made = with_exchange(0.5, ranks=4)
    (all_known,) = RULE.check(made, [])
    (one_missing,) = RULE.check(replace(made, ranks=made.ranks[:3]), [])
    assert one_missing.evidence == all_known.evidence


def test_without_collectives_it_abstains():
    """It says for want of what."""
    assert RULE.lacks(job()) == ("collectives that all ranks recorded",)
    assert RULE.lacks(with_exchange(None)) == ("collectives that all ranks recorded",)
    assert RULE.lacks(with_exchange(0.1)) == ()


def with_own_calls(*shares: float, noted: float | None = None) -> Job:
    """Ranks that are in collectives of their own calls for these shares of their steps."""
    made = with_exchange(noted, ranks=len(shares))
    views = tuple(
        replace(view, facts={**view.facts, CALLS: share}) for view, share in zip(made.ranks, shares, strict=True)
    )
    return replace(made, ranks=views)


def late(made: Job, share: float, *ranks: int) -> Loss:
    """Others wait for these ranks during a share of the steps."""
    assert made.merged is not None
    per_step_s = share * made.merged.total_s / made.merged.steps
    return Loss(
        bucket="compute", ranks=ranks, lost_s=share * made.training_s, share=share, per_step_s=per_step_s, steps=10,
        of_steps=10, parts={}, from_collectives=False,
    )  # fmt: skip


@pytest.mark.parametrize("noted", [None, 0.14])
def test_what_the_program_exchanges_by_calls_of_its_own(noted):
    """A blocking call for each tensor, after each step; nobody is late."""
    made = with_own_calls(0.5, 0.52, 0.51, 0.51, noted=noted)
    (said,) = RULE.check(made, [late(made, 0.12)])  # what they wait for each other in turn goes with the calls
    ledger = made.ranks[0].ledger
    assert ledger is not None
    assert made.merged is not None
    work_s = sum(ledger.buckets.get(name, 0.0) for name in WORK) / ledger.steps
    step_s = made.merged.total_s / made.merged.steps
    assert said.evidence[0].value == pytest.approx(100 * 0.51 * work_s / step_s)
    assert said.summary.startswith("Collectives that the program calls itself took")
    assert said.advice[0].text.startswith("Call these collectives less often")
    assert said.advice[0].predicted_gain_pct == pytest.approx(100 * (1 / (1 - said.time_lost_s / made.training_s) - 1))
    assert said.confidence == 0.6


def test_the_function_that_calls_them_is_the_place():
    net = Location("net.py", 5, "Net.forward", 60.0, "torch.nn.functional.linear")
    meets = Location("sync.py", 8, "average_gradients", 30.0, "torch.distributed.distributed_c10d.all_reduce")
    for noted, place in ((None, meets), (0.6, None)):
        made = with_own_calls(0.5, 0.5, noted=noted)
        views = tuple(replace(view, places=(net, meets)) for view in made.ranks)
        (said,) = RULE.check(replace(made, ranks=views), [])
        assert said.location == place
    (said,) = RULE.check(with_own_calls(0.5, 0.5), [])
    assert said.location is None


def test_under_lightning_a_log_for_all_ranks_may_call_them():
    made = with_own_calls(0.5, 0.5)
    views = tuple(replace(view, header=replace(view.header, framework="lightning 2.6.6")) for view in made.ranks)
    for one, logs in ((made, False), (replace(made, ranks=views), True)):
        (said,) = RULE.check(one, [])
        assert any("sync_dist" in advice.text for advice in said.advice) is logs
        for advice in said.advice:
            check_fix(advice.fix)


def test_beside_ddp_they_are_no_gradients():
    made = with_own_calls(0.5, 0.5)
    (alone,) = RULE.check(made, [])
    (beside,) = RULE.check(replace(made, ddp=timed_once(0.001)), [])
    texts = [" ".join(advice.text for advice in said.advice) for said in (alone, beside)]
    assert ["bf16" in text for text in texts] == [True, False]


def test_what_their_function_does_beside_them_may_go_with_them():
    logs = Location("net.py", 9, "Net.log_all", 60.0, "torch.distributed.distributed_c10d.all_reduce")
    made = with_own_calls(0.3, 0.3)
    views = tuple(replace(view, places=(logs,)) for view in made.ranks)
    intervals = [RULE.check(one, [])[0].advice[0].gain_interval_pct for one in (made, replace(made, ranks=views))]
    (least, most), (same, more) = [interval or (0.0, 0.0) for interval in intervals]
    assert least == same
    assert more > 1.5 * most


@pytest.mark.parametrize("ranks", [(), (1,)])
def test_what_is_waited_for_late_ranks_in_them_is_no_exchange(ranks):
    made = with_own_calls(0.5, 0.5)
    (all_of_it,) = RULE.check(made, [])
    (rest,) = RULE.check(made, [late(made, 0.2, *ranks)])
    assert rest.time_lost_s == pytest.approx(all_of_it.time_lost_s - 0.2 * made.training_s)
    assert RULE.check(made, [late(made, 0.4, *ranks)]) == []


def test_a_small_part_in_own_calls_informs():
    """They are the program's to change, as the gradients' exchange is not."""
    (said,) = RULE.check(with_own_calls(0.18, 0.18), [])
    assert said.severity is Severity.INFO
    (more,) = RULE.check(with_own_calls(0.3, 0.3), [])
    assert more.severity is Severity.WARNING
    assert said.advice[0].text.startswith("Call these collectives less often")
    assert RULE.check(with_own_calls(0.1, 0.1), []) == []


def test_where_more_was_noted_or_a_rank_was_not_looked_at_looks_say_nothing():
    (said,) = RULE.check(with_own_calls(0.5, 0.5, noted=0.6), [])
    assert said.summary.startswith("After the last rank's arrival")
    made = with_own_calls(0.6, 0.6)
    assert RULE.check(replace(made, ranks=(made.ranks[0], replace(made.ranks[1], facts={}))), []) == []


@pytest.mark.parametrize(
    ("every", "between", "told"),
    [(8, 40, True), (8, 27, False), (8, 0, False), (1, 40, False)],
    ids=["as much in each", "weights of a sharded model", "no_sync", "no accumulation"],
)
def test_without_ddps_own_times_the_bytes_of_each_step_tell(every: int, between: int, told: bool) -> None:
    made = with_exchange(0.4)
    assert made.exchanges is not None
    updates = [index // every for index in range(200)]
    sent = {index: 40 if index % every == 0 else between for index in range(100)}
    views = tuple(replace(view, steps=replace(view.steps, optimizer_step=updates)) for view in made.ranks)
    exchanges = replace(made.exchanges, bytes_by_step={index: size for index, size in sent.items() if size})
    (said,) = RULE.check(replace(made, ranks=views, exchanges=exchanges), [])
    assert ("model.no_sync()" in said.advice[0].text and "micro-batches" in said.advice[0].text) is told
    if told:
        assert "instead of 8" in said.advice[0].text


@pytest.mark.parametrize(("every", "told"), [(1, False), (8, True), (None, False)])
def test_gradients_that_are_exchanged_with_each_micro_batch(every, told):
    """Of eight exchanges for one update seven are in vain."""
    made = with_exchange(0.4)
    updates = [None if every is None else index // every for index in range(200)]
    views = tuple(replace(view, steps=replace(view.steps, optimizer_step=updates)) for view in made.ranks)
    ddp = DdpExchange(
        late=None, loss_s=0.0, backward_s={}, exposed_s=0.01, per_step=1.0, sent_bytes=40_000_000, buckets=2, times=8
    )
    (said,) = RULE.check(replace(made, ranks=views, ddp=ddp), [])
    first = said.advice[0]
    assert ("model.no_sync()" in first.text and "micro-batches" in first.text) is told
    assert any(one.name == "exchanges for one update" for one in said.evidence) is told
    if told:
        assert first.predicted_gain_pct == pytest.approx(100 * (1 / (1 - 0.4 * 7 / 8) - 1), rel=0.02)
        assert "instead of 8" in first.text
        # Ranks that wait for each other in turn do so less often, too; for one that is always late they go on waiting.
        (both,) = RULE.check(replace(made, ranks=views, ddp=ddp), [late(made, 0.1)])
        won = 0.4 * 7 / 8 + 0.1 * (1 - 8**-0.5)
        assert both.advice[0].predicted_gain_pct == pytest.approx(100 * (1 / (1 - won) - 1), rel=0.02)
        (same,) = RULE.check(replace(made, ranks=views, ddp=ddp), [late(made, 0.1, 1)])
        assert same.advice[0] == first
    assert ("Exchange half as often" in " ".join(advice.text for advice in said.advice)) is not told
    for advice in said.advice:
        check_fix(advice.fix)
    elsewhere = replace(made, ranks=views, ddp=replace(ddp, sent_bytes=400_000_000))  # what is sent is no gradients
    assert "micro-batches" not in RULE.check(elsewhere, [])[0].advice[0].text


def with_micro_batches(every: int, *, ddp: DdpExchange | None, between: int = 40_000_000) -> Job:
    """Steps of which each so-many-th updates the weights; in the others a rank exchanges ``between`` bytes."""
    made = with_exchange(None)
    assert made.exchanges is not None
    updates = [index // every for index in range(200)]
    views = tuple(replace(view, steps=replace(view.steps, optimizer_step=updates)) for view in made.ranks)
    sent = {index: 40_000_000 if index % every == 0 else between for index in range(100)}
    exchanges = replace(made.exchanges, bytes_by_step={index: size for index, size in sent.items() if size})
    return replace(made, ranks=views, exchanges=exchanges, ddp=ddp)


def timed_once(exposed_s: float) -> DdpExchange:
    return DdpExchange(
        late=None,
        loss_s=0.0,
        backward_s={},
        exposed_s=exposed_s,
        per_step=0.2,
        sent_bytes=40_000_000,
        buckets=2,
        times=1,
    )


@pytest.mark.parametrize(
    ("size", "table", "named"), [(30_000_000, True, True), (30_000_000, False, True), (9, True, False)]
)
def test_a_gradient_that_is_most_of_what_is_sent_is_named(size, table, named):
    """An embedding table's can be sent as rows."""
    made = with_exchange(0.4)
    noted = replace(
        times(0.001, 0.001)[0],
        sent_bytes=40_000_000,
        largest_gradient="table.weight",
        largest_gradient_bytes=size,
        is_of_a_table=table,
    )
    views = tuple(replace(view, ddp=[noted]) for view in made.ranks)
    (said,) = RULE.check(replace(made, ranks=views), [])
    assert ("of it the gradient of table.weight" in {one.name for one in said.evidence}) is named
    assert any("sparse=True" in one.text for one in said.advice) is (table and named)
    for advice in said.advice:
        check_fix(advice.fix)


def test_exchanges_in_vain_are_told_of_though_they_are_short():
    """Below what is long for an exchange: the ranks wait for each other in each, and one of them would do."""
    made = with_micro_batches(4, ddp=None)
    assert RULE.check(made, []) == []
    assert RULE.check(made, [late(made, 0.08)]) == []
    (said,) = RULE.check(made, [late(made, 0.16)])
    assert said.summary.startswith("There are 4 exchanges for each update of the weights, of 40 MB of each rank")
    assert said.time_lost_s == pytest.approx(0.16 * made.training_s / 2, rel=0.02)
    assert "no_sync" in said.advice[0].text
    assert RULE.check(made, [late(made, 0.16, 1)]) == [], "one rank is always late: it goes on being that"
    check_fix(said.advice[0].fix)


def test_an_exchange_that_ddp_has_timed_once_gives_an_idea_of_what_goes_in_vain():
    made = with_micro_batches(4, ddp=None)
    assert made.merged is not None
    step_s = made.merged.total_s / made.merged.steps
    (said,) = RULE.check(replace(made, ddp=timed_once(0.16 * step_s)), [])
    assert said.time_lost_s == pytest.approx(0.16 * 3 / 4 * made.training_s, rel=0.02)
    assert said.severity is Severity.WARNING
    interval = said.advice[0].gain_interval_pct
    assert interval is not None
    assert interval[1] > 100 * (1 / (1 - 2 * 0.16 * 3 / 4) - 1), "copies and CPUs go with each exchange"
    without = with_micro_batches(4, ddp=timed_once(0.16 * step_s), between=0)
    assert RULE.check(without, [late(made, 0.16)]) == [], "no_sync is there"
