"""From a diagnosis to the place in the code: the function that holds most of the time that was looked at."""

from __future__ import annotations

import math
from dataclasses import replace

from ..records import CodeLook, CodeSpot
from ..records.code import BUCKET_OF, EPOCH_STARTS, HELPERS, IN_THE_LOOP, IN_WORKERS, STEPS, WARMUP
from ..records.diagnosis import Advice, Diagnosis, Evidence, Location
from ..window import Window
from ..workers.function_gain import FunctionGain, gain_without_function, part_in_validation, shares, with_validation
from ..workers.gains import gain_by_looks, with_more, with_some_more
from ..workers.pipeline import CHEAPER, ONE_LOCK, OWN_THREADS, pipeline_of
from .fetch_stall import UNLOCK
from .frameworks import on_cpu
from .libraries import beside
from .prep_stall import ONE_THREAD
from .slow_start import first_batch_s

NO_TIME = "Predicted as if it took no time at all; other functions of yours that it calls stay."
"""Limit of what is predicted of a place."""

SAMPLES = "samples"
"""The method of looks at the training thread."""

LEAST_SAMPLES = 10
"""With fewer samples of the stack a share of two thirds is not known to be the largest, one standard error."""

LEAST_PCT = 20.0
"""A function with a smaller share is not where the time goes; of steps the share of what is no backward pass counts."""

WORTH_PCT = 3.0
"""Predicted rise of throughput from which on it is told; repeated measurements differ by as much."""

NEARLY = 0.9
"""Part of the seconds that another advice wins with which one that names the place comes first: it says what to do."""

HEALTHY = "compute-bound"
"""The rule that says that nothing is lost beside the steps themselves."""

OF_ALL_STEPS = (HEALTHY, "launch-bound")
"""Rules whose seconds are those of all that the steps do, or hand to a device."""

BACKWARD = "backward"
"""End of the names of calls that compute all gradients: torch's own, and what frameworks put around it."""

WAITS = "fetch-stall"
"""The rule whose seconds are those in which workers compute nothing."""

SAME = "prep-stall"
"""The rule whose usual advice is of the place, too, but of all that a batch costs."""

MOST = 0.5
"""Part of a batch's time, or of that advice's seconds, with which the place comes first; of validation's, or of what
steps do beside the backward pass, the one from which on it is worth an advice. Our choice, most of what there is to
win."""

WHOLE = 0.75
"""Part of the long steps' time from which on a function is taken to be why they are long, with all that is lost: others
that it calls, and that go with it, hold the rest. Our choice."""

TOO_MANY = "too-many-workers"
"""The rule whose seconds are those of workers that make for each other what each of them makes, if they do."""

SETTINGS = ("no-workers", "too-few-workers")
"""Rules whose usual advice is to change one number."""

MORE_WORKERS = "Set num_workers="
"""Begin of the advice to change that number, of whatever rule: of workers that wait, too."""

SETTING_PART = 0.55
"""Part of what work on the items would win with which such a change comes first, as in benchmarks/faults."""

IN_TURNS = {"checkpoint-stall": "Saving", "validation-heavy": "Validation"}
"""Rules about what is done now and then: it may be done less often, or be made cheaper."""

KEEPS_ALL = ("transformers/trainer_pt_utils.py", "EvalLoopContainer.add")
"""Where transformers' Trainer puts the predictions of a batch to those of all before."""

OF_THE_MODEL = ("forward", "_step")
"""Ends of the names of functions that are the model, or all that an evaluation does with a batch: one that spends most
in such a call is as well."""

SLEEP = "time.sleep"
"""The call that computes nothing, and that `slow-function` blames on nobody."""

BESIDE_MODEL = "slow-function"
"""The rule about functions beside the model, whose first advice is to make the place cheaper or rarer."""

SLOW_ITEMS = 3
"""So many of the slow items are named."""


def located(diagnosis: Diagnosis, window: Window) -> Diagnosis:
    """Return the diagnosis with its place in the code, where a look found one."""
    look = _look(diagnosis, window)
    if look is None or not look.spots or not look.wall_s:
        return diagnosis
    spot = _spot(diagnosis, look)
    share_pct = 100.0 * spot.wall_s / look.wall_s
    least_pct = LEAST_PCT * (_beside_backward_s(look) / look.wall_s if diagnosis.rule in OF_ALL_STEPS else 1.0)
    if not spot.is_place or share_pct < least_pct or (look.method == SAMPLES and look.seen < LEAST_SAMPLES):
        return diagnosis
    if diagnosis.rule == "slow-batches":
        diagnosis = replace(diagnosis, evidence=(*diagnosis.evidence, *_slow_items(look)))
    return replace(diagnosis, location=Location.of(spot, share_pct), evidence=(*diagnosis.evidence, *_evidence(look)))


def _spot(diagnosis: Diagnosis, look: CodeLook) -> CodeSpot:
    """Return the function that holds most of what was seen.

    What a long step does once it has its gradients, to draw what the model makes say, is why it is long: not the model
    that this calls, which all steps call. Where workers wait, what computes in between is not to blame.
    """
    if diagnosis.rule == "step-outliers" and look.after and 100.0 * look.after[0].wall_s >= LEAST_PCT * look.wall_s:
        return look.after[0]
    if diagnosis.rule in OF_ALL_STEPS:
        # Who calls the backward pass has nothing of it: that computes what the modules' own calls have led to.
        others = [spot for spot in look.spots if not _calls_backward(spot)]
        return (
            others[0] if others and 100.0 * others[0].wall_s >= LEAST_PCT * _beside_backward_s(look) else look.spots[0]
        )
    if diagnosis.rule == WAITS and all(spot.cpu_s is not None for spot in look.spots):
        return max(look.spots, key=lambda spot: spot.wall_s - (spot.cpu_s or 0.0))
    return look.spots[0]


def _calls_backward(spot: CodeSpot) -> bool:
    return bool(spot.calls) and spot.calls[0].endswith(f".{BACKWARD}")


def _beside_backward_s(look: CodeLook) -> float:
    """Return the seconds of a look at steps without those of who calls the backward pass."""
    within_s = sum(spot.wall_s for spot in look.spots if _calls_backward(spot))
    # What was seen of others may be a little more than what is left, where a look's seconds were rounded.
    return max(look.wall_s - within_s, sum(spot.wall_s for spot in look.spots if not _calls_backward(spot)))


def _evidence(look: CodeLook) -> tuple[Evidence, ...]:
    """Say how the place was found; looks into workers are told of by their own rules."""
    if look.method != SAMPLES:
        return ()
    of = {HELPERS: "other threads' stacks", "workers": "a worker's stack"}
    whose = of.get(look.place, "the training thread's stack")
    return (Evidence(f"samples of {whose}, for the place", float(look.seen), "samples"),)


def _slow_items(look: CodeLook) -> list[Evidence]:
    """Return which items made a batch slow: their indices, times and sizes, never what they hold."""
    found = []
    for item in look.items[:SLOW_ITEMS]:
        size = "" if item.size_bytes is None else f", {item.size_bytes:,} bytes"
        found.append(Evidence(f"item {item.index} of the dataset{size}", item.wall_s, "s", look.item_s, "median item"))
    return found


def with_gain(diagnosis: Diagnosis, window: Window) -> Diagnosis:
    """Return the diagnosis with what its place would gain: as its first advice if that wins nearly as much as another.

    Of batches that are slow now and then that is not known. What helps where a library's call takes the time follows.
    """
    found = _with_gain(_with_its_validations(diagnosis, window), window)
    known = () if found.location is None or found.rule == HEALTHY else beside(found.location)
    more = tuple(one for one in known if one not in found.advice)
    return replace(found, advice=(*found.advice[:1], *more, *found.advice[1:])) if more else found


def _with_its_validations(diagnosis: Diagnosis, window: Window) -> Diagnosis:
    """Return the diagnosis with what its function takes in validations among what is won, as metrics do."""
    place = diagnosis.location
    if diagnosis.rule != BESIDE_MODEL or place is None or not diagnosis.advice:
        return diagnosis
    part = part_in_validation(window, file=place.file, function=place.function)
    first, *others = diagnosis.advice
    if not part or first.predicted_gain_pct is None or first.gain_interval_pct is None:
        return diagnosis
    first = replace(
        first,
        predicted_gain_pct=with_more(first.predicted_gain_pct, part),
        gain_interval_pct=with_some_more(first.gain_interval_pct, part),
    )
    return replace(diagnosis, advice=(first, *others))


def _with_gain(diagnosis: Diagnosis, window: Window) -> Diagnosis:
    if diagnosis.rule == TOO_MANY:
        return _not_for_others(diagnosis, window, window.code.at("workers"))
    look, place = _look(diagnosis, window), diagnosis.location
    if look is None or place is None:
        return diagnosis
    if diagnosis.rule == "step-outliers" and diagnosis.advice:
        return _at_the_place(diagnosis, place, window, look)
    if diagnosis.rule == HEALTHY:
        first = _check_why_it_sleeps(place) if place.call == SLEEP else _look_there(place, look, _spot(diagnosis, look))
        known = beside(place) if first and on_cpu(window) else ()
        # A place that is one of torch's modules tells its user less than what makes these cheaper.
        of_torch = (place.call or "").startswith("torch.nn.") and any(
            "bfloat16" in one.text for one in diagnosis.advice[:1]
        )
        before, after = diagnosis.advice[:of_torch], diagnosis.advice[of_torch:]
        return replace(diagnosis, advice=(*before, *first, *known, *after))
    if diagnosis.rule in IN_TURNS:
        return _cheaper_in_turns(diagnosis, window, look)
    if look.place == HELPERS:
        return _of_a_thread(diagnosis, window, look)
    if look.place != "workers" or look.bucket or "slow-batches" in (look.rule, diagnosis.rule):
        return diagnosis
    spot = _spot(diagnosis, look)
    found = gain_without_function(window, *shares((look.wall_s, look.cpu_s), (spot.wall_s, spot.cpu_s)))
    if found is None:
        return diagnosis
    found = with_validation(found, window, file=spot.file, function=spot.function)
    if found.gain_pct < WORTH_PCT:
        return diagnosis
    advice = Advice.of(
        f"Make {place.function} cheaper ({place.file}:{place.line})."
        if spot.own or place.call is None
        else f"Call {place.call} less, or on less data.",
        expect=_expected(found),
        limit=NO_TIME,
        gain_pct=found.gain_pct,
        interval_pct=found.interval_pct,
    )
    # Nobody can make a library's function cheaper, but may call it less: what else helps is said first.
    is_setting = any(one.fix.do.startswith((ONE_THREAD, MORE_WORKERS, UNLOCK)) for one in diagnosis.advice[:1])
    is_setting = is_setting or diagnosis.rule in SETTINGS
    usual = 1.0 / SETTING_PART if is_setting else MOST if diagnosis.rule == SAME else NEARLY
    if diagnosis.rule == SAME and not is_setting and spot.wall_s >= MOST * look.wall_s:
        usual = 0.0  # the other advice is of a batch that costs nothing: nobody can do that, and the place says where
    enough = usual if spot.own else math.inf
    return _not_for_others(_once(_with_advice(diagnosis, (advice, *beside(place)), enough), window, look), window, look)


def _once(diagnosis: Diagnosis, window: Window, look: CodeLook) -> Diagnosis:
    """Return the diagnosis with what is done anew for each item and need not be: before a change that wins little more.

    It is certain that it is done in vain, and to keep what it returns is a change of two lines.
    """
    if not look.unvarying:
        return diagnosis
    spot = look.unvarying[0]
    share_pct = 100.0 * spot.wall_s / look.wall_s
    found = gain_without_function(window, *shares((look.wall_s, look.cpu_s), (spot.wall_s, spot.cpu_s)))
    if share_pct < LEAST_PCT or found is None or found.gain_pct < WORTH_PCT:
        return diagnosis
    what = (spot.call_in_line or spot.function).removesuffix(".__init__")
    where = f"{spot.file}:{spot.line}"
    interval = found.interval_pct
    if spot.wall_s >= NEARLY * look.spots[0].wall_s:  # it says how to make the place cheaper
        whole = [a.gain_interval_pct for a in diagnosis.advice if _is_place(a) and a.gain_interval_pct]
        interval = (interval[0], max(most for _, most in [interval, *whole])) if interval else None
        diagnosis = replace(diagnosis, advice=tuple(a for a in diagnosis.advice if not _is_place(a)))
    advice = Advice.of(
        f"Call {what} once in each worker and keep the result, not for each item ({where})."
        if window.loader.num_workers
        else f"Call {what} once and keep the result, not for each item ({where}).",
        expect=_expected(found),
        limit="What it is given is the same for each item, by the text of the program.",
        gain_pct=found.gain_pct,
        interval_pct=interval,
    )
    seen = Evidence(
        f"{what}, given the same each time: share of a batch's time", share_pct, "%", LEAST_PCT, "our choice"
    )
    return _with_advice(replace(diagnosis, evidence=(*diagnosis.evidence, seen)), (advice,), MOST)


def _is_place(advice: Advice) -> bool:
    """Whether it is the one to make the place itself cheaper."""
    return advice.fix.limit == NO_TIME


def _not_for_others(diagnosis: Diagnosis, window: Window, look: CodeLook | None) -> Diagnosis:
    """Return the diagnosis with what workers do for each other's items, where that is much of a batch.

    It comes before all else: more of the workers would do it once more, and cheaper it is still done in vain.
    """
    workers = window.loader.num_workers or 0
    if workers < 2 or look is None or not look.repeated:
        return diagnosis
    part = (workers - 1) / workers
    cpus = [spot.cpu_s for spot in look.repeated]
    wall_s = part * look.repeated_s
    cpu_s = None if None in cpus else part * sum(cpu for cpu in cpus if cpu is not None)
    share_pct = 100.0 * wall_s / look.wall_s
    found = gain_without_function(window, *shares((look.wall_s, look.cpu_s), (wall_s, cpu_s)))
    if share_pct < LEAST_PCT or found is None or found.gain_pct < WORTH_PCT:
        return diagnosis
    spot = look.repeated[0]
    advice = Advice.of(
        f"Skip other workers' items before {spot.function} makes them ({spot.file}:{spot.line}).",
        expect=_expected(found),
        limit=f"Each of {workers} workers makes all items, and keeps one in {workers}.",
        gain_pct=found.gain_pct,
        interval_pct=found.interval_pct,
    )
    seen = Evidence("made for other workers, share of a batch's time", share_pct, "%", LEAST_PCT, "our choice")
    return replace(diagnosis, advice=(advice, *diagnosis.advice), evidence=(*diagnosis.evidence, seen))


def _with_advice(diagnosis: Diagnosis, advice: tuple[Advice, ...], enough: float) -> Diagnosis:
    """Return the diagnosis with advice that comes first if it wins such a part of the first one's seconds."""
    usual = _won(diagnosis.advice[0].predicted_gain_pct if diagnosis.advice else None)
    at = 0 if usual and (_won(advice[0].predicted_gain_pct) or 0.0) >= enough * usual else 1
    return replace(diagnosis, advice=(*diagnosis.advice[:at], *advice, *diagnosis.advice[at:]))


def _won(gain_pct: float | None) -> float | None:
    """Return the part of the time that a rise of throughput saves."""
    return None if gain_pct is None or gain_pct <= -100.0 else gain_pct / (100.0 + gain_pct)


def _cheaper_in_turns(diagnosis: Diagnosis, window: Window, look: CodeLook) -> Diagnosis:
    """Return the diagnosis with a metric of validation, say, among its advice: the model itself is needed."""
    spot, spent_s = look.spots[0], window.spent.bucket_s(look.bucket) or 0.0
    part = spot.wall_s / look.wall_s
    if (spot.file, spot.function) == KEEPS_ALL and part >= LEAST_PCT / 100.0:
        return _with_advice(diagnosis, (_keep_less(window, look, part, spent_s),), NEARLY)
    names = (name.rpartition(".")[2] for name in (spot.function, *spot.calls[:1]))
    if not spot.own or part < MOST or any(name.endswith(OF_THE_MODEL) for name in names):
        return diagnosis
    gain = gain_by_looks(window, part * spent_s, max(1, round(part * look.seen)), in_steps=False)
    if gain.pct is None or gain.pct < WORTH_PCT:
        return diagnosis
    advice = Advice.of(
        f"Make {spot.function} cheaper ({spot.file}:{spot.line}).",
        expect=f"{IN_TURNS[diagnosis.rule]} would take {(1.0 - part) * spent_s:.1f} s instead of {spent_s:.1f} s.",
        limit=NO_TIME,
        gain_pct=gain.pct,
        interval_pct=gain.interval_pct,
    )
    # Who saves rarely need not care what it takes; who validates rarely knows less.
    return _with_advice(diagnosis, (advice,), NEARLY if diagnosis.rule == "validation-heavy" else math.inf)


def _keep_less(window: Window, look: CodeLook, part: float, spent_s: float) -> Advice:
    """Return the advice about all that transformers' Trainer keeps of an evaluation, which it copies for each batch."""
    gain = gain_by_looks(window, part * spent_s, max(1, round(part * look.seen)), in_steps=False)
    return Advice.of(
        "Keep less of each batch's predictions: preprocess_logits_for_metrics of the Trainer, argmax say.",
        expect="Logits of all earlier batches are no longer copied with each further batch.",
        limit="For a loss alone: prediction_loss_only=True.",
        gain_pct=gain.pct,
        interval_pct=gain.interval_pct,
    )


def _of_a_thread(diagnosis: Diagnosis, window: Window, look: CodeLook) -> Diagnosis:
    """Return the diagnosis with the function named in its advice: of a thread of the program's own."""
    spot, first = look.spots[0], diagnosis.advice[0]
    where = f"{spot.function} ({spot.file}:{spot.line})"
    if diagnosis.rule == "lock-contention":
        _, *more = first.text.split("\n")
        if look.bucket:  # nobody waits for what it makes
            do = f"Move the work of {where} into a process, or do it less often."
            first = replace(first, text="\n".join([do, *more]))
        return replace(diagnosis, advice=(first, *diagnosis.advice[1:]))
    part = spot.wall_s / look.wall_s
    if look.bucket:  # whose CPUs the steps need
        if part >= MOST:
            _, *more = first.text.split("\n")
            first = replace(first, text="\n".join([f"Make {where} cheaper, or do it less often.", *more]))
        return replace(diagnosis, advice=(first, *diagnosis.advice[1:]))
    gain = gain_by_looks(window, part * diagnosis.time_lost_s, max(1, round(part * look.seen)))
    cheaper = Advice.of(
        f"Make {where} cheaper.",
        expect="The thread that runs it has batches ready sooner.",
        gain_pct=gain.pct,
        interval_pct=gain.interval_pct,
    )
    return replace(diagnosis, advice=tuple(cheaper if one == CHEAPER else one for one in diagnosis.advice))


def _at_the_place(diagnosis: Diagnosis, place: Location, window: Window, look: CodeLook) -> Diagnosis:
    """Return what long steps are diagnosed with, whose first advice, to find what runs in them, has been followed.

    Where the place holds a part of it only, no more than that is won there: what else they do stays.
    """
    first, *others = diagnosis.advice
    do = f"Make what runs in the long steps cheaper or rarer: {place.function} ({place.file}:{place.line})."
    part = place.share_pct / 100.0
    if part >= WHOLE:
        _, *more = first.text.split("\n")  # and what the others look for has been found
        return replace(diagnosis, advice=(replace(first, text="\n".join([do, *more])),))
    gain = gain_by_looks(window, part * diagnosis.time_lost_s, max(1, round(part * look.seen)))
    advice = Advice.of(
        do,
        expect=f"Long steps without the {place.share_pct:.0f} % of their time that it takes.",
        limit=first.fix.limit,
        gain_pct=gain.pct,
        interval_pct=gain.interval_pct,
    )
    return replace(diagnosis, advice=(advice, *others))


def _check_why_it_sleeps(place: Location) -> tuple[Advice]:
    """Return an advice without a gain: nobody but the program's author knows what a sleep stands for."""
    return (
        Advice.of(
            f"Check why {place.function} sleeps ({place.file}:{place.line}).",
            expect="Steps that are shorter by what need not be waited for.",
            limit="Nothing is won where the sleep stands for a device.",
        ),
    )


def _look_there(place: Location, look: CodeLook, spot: CodeSpot) -> tuple[Advice, ...]:
    """Return where steps are to be made cheaper, if they can be: without a gain, for that is not known.

    A function of a library's, or one that calls all of the model, is nothing that its user would look at.
    """
    beside_s = _beside_backward_s(look)
    if not spot.own or spot.trains or _calls_backward(spot) or not spot.wall_s or spot.wall_s < MOST * beside_s:
        return ()
    return (
        Advice.of(
            f"Look at {place.function} first ({place.file}:{place.line}).",
            expect="Steps shorter by what is spared there; no backward pass goes through it."
            if spot.untrained_s >= spot.wall_s / 2.0
            else "Steps shorter by what is spared there, and mostly by as much of the backward pass.",
            limit="Nothing is won where all that it computes is needed, in this type and with these sizes.",
        ),
    )


def _expected(found: FunctionGain) -> str:
    batch = f"A batch would take {_ms(found.batch_without_s)} instead of {_ms(found.batch_s)}"
    if found.in_validation_s >= 1.0:
        return f"{batch}, a step {_ms(found.step_without_s)}, all validations {found.in_validation_s:.0f} s less."
    workers = f"{found.workers} worker{'s' * (found.workers != 1)}" if found.workers else "no workers"
    return f"{batch}; with {workers} a step is then {_ms(found.step_without_s)}."


def _ms(seconds: float) -> str:
    ms = 1e3 * seconds
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.2g} ms"


def _in_the_loop(window: Window) -> CodeLook | None:
    """Return the look at batches that the loop's own thread makes; None where others make them.

    Of a loader that is none of torch's it is not known who does: but the look has met who does it on that thread.
    """
    pipeline = pipeline_of(window)
    in_loop = not window.loader.num_workers if pipeline is None else pipeline.in_loop
    return window.code.at("loop", IN_THE_LOOP) if in_loop else None


def _of_helpers(window: Window) -> CodeLook | None:
    """Return the look at threads of the program's that make the batches; None where somebody else does."""
    if window.loader.asks_none:
        found = window.code.before_model
        return window.code.at(HELPERS) if found is not None and found.spot is not None and found.spot.awaits else None
    pipeline = pipeline_of(window)
    return None if pipeline is None or pipeline.in_loop or pipeline.outside else window.code.at(HELPERS)


def _of_the_start(window: Window) -> CodeLook | None:
    """Return the look into what took most of it: before the first request, the first wait, or the first steps."""
    start_s, warmup_s = window.ledger.start_s or 0.0, window.ledger.warmup_s or 0.0
    first_s = first_batch_s(window)
    if warmup_s > start_s + first_s:
        return window.code.at("startup", WARMUP)
    if first_s > start_s:
        return window.code.first_batch or window.code.at("loop", EPOCH_STARTS)
    return window.code.at("startup", "start")


def _look(diagnosis: Diagnosis, window: Window) -> CodeLook | None:
    rule = diagnosis.rule
    if diagnosis.culprit == OWN_THREADS:
        return window.code.at(HELPERS, STEPS)
    if diagnosis.culprit == ONE_LOCK:
        return window.code.at(HELPERS)
    if rule == "slow-batches" and window.loader.num_workers == 0:
        return _in_the_loop(window)  # the batches that were profiled are not the slow ones
    if rule in IN_WORKERS:
        return window.code.at("workers") or _in_the_loop(window) or _of_helpers(window)
    if rule == "lock-contention":
        awaited = None if pipeline_of(window) is None else window.code.at(HELPERS)
        return awaited or window.code.at(HELPERS, STEPS)
    if rule == "slow-start":
        return _of_the_start(window)
    if rule == "step-time-drift":
        grown = window.steps.drift
        return None if grown is None else window.code.at("loop", grown.bucket, diagnosis.culprit or "")
    bucket = BUCKET_OF.get(rule)
    if bucket is None:
        return None
    named = bucket in ("callbacks", "logging")  # a culprit elsewhere is no part of the bucket
    return window.code.at("loop", bucket, (diagnosis.culprit or "") if named else "")
