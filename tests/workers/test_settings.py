"""Which settings a verdict asks for, and the change of the user's code that comes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stallmeter.records import LoaderInfo, WorkerTrial
from stallmeter.records.diagnosis import Advice, Diagnosis, Severity, Verdict, WorkerAdvice
from stallmeter.workers.patch import patch
from stallmeter.workers.settings import Change, changes

LOADER = LoaderInfo(
    time_s=0.0,
    kind="DataLoader",
    num_workers=2,
    prefetch_factor=2,
    pin_memory=False,
    persistent_workers=False,
    start_method="fork",
)


def _found(rule: str, *advice: Advice) -> Diagnosis:
    return Diagnosis(
        rule=rule,
        severity=Severity.WARNING,
        title="",
        summary="",
        time_lost_s=1.0,
        share_pct=1.0,
        confidence=0.9,
        advice=advice,
    )


def _workers(current: int, recommended: int, **known: object) -> WorkerAdvice:
    return WorkerAdvice(
        current=current,
        recommended=recommended,
        predicted_step_time_s=None,
        predicted_gain_pct=40.0,
        limited_by="workers",
        reason="",
        confidence=0.9,
        **known,  # type: ignore[arg-type]
    )


STARTUP = _found("worker-startup", Advice.of("Set persistent_workers=True in the DataLoader.", gain_pct=25.0))
PIN = _found("unpinned-memory", Advice.of("Set pin_memory=True in the DataLoader.", gain_pct=50.0))


def _verdict(*found: Diagnosis, advice: WorkerAdvice | None = None) -> Verdict:
    return Verdict(primary=found[0] if found else None, diagnoses=found, num_workers=advice)


def test_the_largest_predicted_gain_comes_first_and_what_is_not_predicted_last():
    spawned = LoaderInfo(**{**_fields(LOADER), "start_method": "spawn"})
    verdict = _verdict(STARTUP, PIN, advice=_workers(2, 2, prefetch_factor=8, prefetch_gain_pct=30.0))
    assert [(change.setting, change.value) for change in changes(verdict, spawned)] == [
        ("pin_memory", True),
        ("prefetch_factor", 8),
        ("persistent_workers", True),
        ("multiprocessing_context", "forkserver"),
    ]


def _fields(loader: LoaderInfo) -> dict[str, object]:
    return {name: getattr(loader, name) for name in LoaderInfo.__dataclass_fields__}


def test_what_is_set_already_is_not_asked_for():
    has_all = LoaderInfo(**{**_fields(LOADER), "persistent_workers": True, "pin_memory": True, "prefetch_factor": 8})
    verdict = _verdict(STARTUP, PIN, advice=_workers(2, 2, prefetch_factor=8, prefetch_gain_pct=30.0))
    assert changes(verdict, has_all) == ()
    assert changes(verdict, None) == ()


@pytest.mark.parametrize(
    ("rule", "threads", "cpus", "expected"),
    [
        ("prep-stall", 8, 4.0, 2),
        ("cpu-throttled", 8, 1.5, 1),
        ("prep-stall", 2, 4.0, None),
        ("slow-callback", 8, 4.0, None),
        ("prep-stall", None, 4.0, None),
    ],
)
def test_threads_of_the_loop_make_room_for_the_workers_where_the_cpus_are_short(rule, threads, cpus, expected):
    found = changes(_verdict(_found(rule)), LOADER, threads=threads, cpus=cpus)
    asked = () if expected is None else (Change(setting="torch.set_num_threads", before=threads, value=expected),)
    assert found == asked


def test_more_threads_than_cpus_are_tried_first():
    crowd = _found("too-many-threads", Advice.of("Set torch.set_num_threads(4).", gain_pct=90.0))
    found = changes(_verdict(crowd, STARTUP), LOADER, threads=12, cpus=4.5)
    assert found[0] == Change(setting="torch.set_num_threads", before=12, value=4, predicted_gain_pct=90.0)
    assert changes(_verdict(crowd), LOADER, threads=4, cpus=4.5) == ()  # it has fewer since that verdict


def _trial(setting: str, before: object, value: object, outcome: str) -> WorkerTrial:
    return WorkerTrial(time_s=0.0, setting=setting, before=before, workers=value, outcome=outcome)  # type: ignore[arg-type]


def test_the_patch_holds_what_is_predicted_to_help():
    none = LoaderInfo(**{**_fields(LOADER), "num_workers": 0, "prefetch_factor": None})
    assert patch(_verdict(advice=_workers(0, 4, prefetch_factor=4)), none) == (
        "DataLoader(..., num_workers=4, persistent_workers=True, prefetch_factor=4)"
    )
    assert patch(_verdict(STARTUP, advice=_workers(2, 2)), LOADER) == "DataLoader(..., persistent_workers=True)"
    assert patch(_verdict(advice=_workers(2, 0)), LOADER) == "DataLoader(..., num_workers=0)"
    assert patch(_verdict(advice=_workers(2, 2)), LOADER) is None
    # Without workers torch refuses what is for workers.
    set_ = replace(LOADER, persistent_workers=True, prefetch_factor=4)
    assert patch(_verdict(advice=_workers(2, 0)), set_) == (
        "DataLoader(..., num_workers=0, persistent_workers=False, prefetch_factor=None)"
    )
    assert patch(_verdict(advice=_workers(2, 0)), replace(set_, persistent_workers=False, prefetch_factor=2)) == (
        "DataLoader(..., num_workers=0)"
    )


def test_the_patch_keeps_what_was_kept_and_leaves_out_what_was_taken_back():
    verdict = _verdict(STARTUP, advice=_workers(4, 4))
    kept = [
        _trial("num_workers", 2, 4, "kept"),
        _trial("persistent_workers", False, True, "reverted"),
        _trial("torch.set_num_threads", 8, 2, "kept"),
        _trial("prefetch_factor", 2, 8, "unsettled"),
    ]
    assert patch(verdict, LOADER, kept) == "torch.set_num_threads(2)\nDataLoader(..., num_workers=4)"


def test_of_what_was_tried_the_last_that_was_kept_counts():
    """Twice more workers; persistent ones that were kept, and taken back because the dataset changes."""

    def tried(setting, before, value, outcome):
        return WorkerTrial(
            time_s=0.0, setting=setting, before=before, workers=value, predicted_gain_pct=None, outcome=outcome
        )

    more = [tried("num_workers", 2, 4, "kept"), tried("num_workers", 4, 8, "kept")]
    assert patch(_verdict(advice=_workers(8, 8)), LOADER, more) == "DataLoader(..., num_workers=8)"
    persistent = [tried("persistent_workers", False, True, outcome) for outcome in ("kept", "reverted")]
    assert patch(_verdict(advice=_workers(2, 2)), LOADER, persistent) is None
    assert patch(_verdict(advice=_workers(2, 2)), LOADER, persistent[:1]) == "DataLoader(..., persistent_workers=True)"
