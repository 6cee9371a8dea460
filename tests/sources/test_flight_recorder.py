"""The flight recorder is read as it is, rarely, and nobody is asked for anything."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch._C._distributed_c10d as core
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.records import Arrivals
from stallmeter.sources import flight_recorder
from stallmeter.sources.flight_recorder import FIRST_S, LONGEST_S, MOST, SHARE, FlightRecorderSource, entries

from ..ports import free_port
from ..warm import Forks

T0_S = 1.7e9


def entry(number: int, began_s: float = 0.0, **changes: Any) -> dict[str, Any]:
    """Return one as gloo's are: never seen complete, given up for the next one."""
    return {
        "record_id": number,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "time_created_ns": int((T0_S + began_s) * 1e9),
        "input_sizes": [[10, 4]],
        "input_dtypes": ["Float"],
        "state": "scheduled",
        "time_discovered_completed_ns": None,
        "retired": True,
        "is_p2p": False,
        "frames": [{"name": 'a "[{" in a name', "line": 1}],
    } | changes


def dump(*noted: object, **around: object) -> bytes:
    return json.dumps({"version": "2.10", **around, "entries": list(noted)}).encode()


def sampled(*texts: bytes, since_s: float = T0_S) -> list[Arrivals]:
    """Read one text after the other."""
    texts_left = list(texts)
    source = FlightRecorderSource(since_s, read=lambda: texts_left.pop(0), clock=lambda: 0.0)
    return [arrivals for _ in texts for arrivals in source.sample(T0_S + 1)]


def test_what_is_noted() -> None:
    (found,) = sampled(dump(entry(1, 0.25), entry(2, 1.5, time_discovered_completed_ns=int((T0_S + 1.75) * 1e9))))
    assert found.group == "0:default_pg"
    assert found.time_s == T0_S + 1
    assert found.sequence == (1, 2)
    assert [found.base_s + us / 1e6 - T0_S for us in found.began_us] == pytest.approx([0.25, 1.5], abs=1e-6)
    assert found.took_us == (-1, 250_000)
    assert found.sent_bytes == (160, 160)


def test_each_is_taken_once_and_groups_apart() -> None:
    other = {"process_group": ["1", "dp"]}
    first, second, third, fourth = sampled(
        dump(entry(1), entry(1, **other), entry(2, 0.1)), dump(entry(2, 0.1), entry(3, 0.2), entry(2, 0.3, **other))
    )
    assert [(a.group, a.sequence) for a in (first, second, third, fourth)] == [
        ("0:default_pg", (1, 2)),
        ("1:dp", (1,)),
        ("0:default_pg", (3,)),
        ("1:dp", (2,)),
    ]
    assert sampled(dump(entry(1)), dump(entry(1))) == sampled(dump(entry(1)))


class Passes:
    """Backward passes of 100 ms, each second."""

    begun = closed = 0

    def begin(self) -> None:
        self.begun += 1

    def around(self, times_ns: list[int]) -> list[tuple[int, int] | None]:
        begins = [time_ns // 10**9 * 10**9 for time_ns in times_ns]
        return [(b, b + 10**8) if at <= b + 10**8 else None for b, at in zip(begins, times_ns, strict=True)]

    def close(self) -> None:
        self.closed += 1


def test_the_last_collective_of_a_backward_pass_ends_with_it() -> None:
    """Of gloo's, whose ends nobody notes. One outside of the passes has no end."""
    passes, other = Passes(), {"process_group": ["1", "dp"]}
    text = dump(entry(1, 0.02), entry(2, 0.04), entry(3, 0.5), entry(4, 1.01), entry(1, 1.03, **other))
    source = FlightRecorderSource(T0_S, passes, read=lambda: text, clock=lambda: 0.0)
    first, second = source.sample(T0_S + 2)
    assert first.took_us == (-1, pytest.approx(60_000, abs=1), -1, -1)
    assert second.took_us == (pytest.approx(70_000, abs=1),)
    assert passes.begun == 1
    source.close()
    assert passes.closed == 1


def test_where_ends_are_noted_no_pass_is() -> None:
    passes = Passes()
    text = dump(entry(1, 0.02, time_discovered_completed_ns=int((T0_S + 0.05) * 1e9)))
    assert FlightRecorderSource(T0_S, passes, read=lambda: text, clock=lambda: 0.0).sample(T0_S + 2)
    assert passes.begun == 0


def test_what_is_left_out() -> None:
    """What was asked for before the run, between two ranks only, or goes on."""
    (found,) = sampled(
        dump(entry(1, -1.0), entry(2, is_p2p=True), entry(3), entry(4, retired=False, time_discovered_completed_ns=0))
    )
    assert found.sequence == (3,)
    (first, second) = sampled(dump(entry(3), entry(4, 0.5, retired=False)), dump(entry(3), entry(4, 0.5)))
    assert (first.sequence, second.sequence) == ((3,), (4,))


@pytest.mark.parametrize(
    "changes",
    [
        {"process_group": None},
        {"process_group": 5},
        {"collective_seq_id": None},
        {"collective_seq_id": "x"},
        {"time_created_ns": "soon"},
        {"time_created_ns": 1e400},
        {"time_discovered_completed_ns": "x"},
    ],
    ids=str,
)
def test_an_entry_of_another_version(changes: dict[str, Any]) -> None:
    """It is passed over; the others are taken."""
    (found,) = sampled(dump(entry(1), entry(2, **changes), entry(3)))
    assert found.sequence == (1, 3)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"input_sizes": [[3], [2, 2]], "input_dtypes": ["Long", "BFloat16"]}, 24 + 8),
        ({"input_sizes": [[3], [2, 2]], "input_dtypes": ["Long"]}, 24 + 4),
        ({"input_sizes": [], "input_dtypes": []}, 0),
        ({"input_sizes": None}, 0),
        ({"input_sizes": [5]}, 0),
        ({"input_sizes": [["a"]]}, 0),
        ({"input_dtypes": {"a": 1}}, 0),
        ({"input_dtypes": [["Float"]]}, 0),
    ],
    ids=str,
)
def test_size(changes: dict[str, Any], expected: int) -> None:
    (found,) = sampled(dump(entry(1, **changes)))
    assert found.sent_bytes == (expected,)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[]",
        b'{"entries": []}',
        b'{"entries": null, "more": [1]}',
        b'{"entries": [1, 2]}',
        b'{"version": "2"}',
        b"\xff\xfe\x00",
        b'{"entries": [' + b"{" * 100_000,
        b'{"entries": [' + b'{"a":' * 100_000,
    ],
    ids=lambda text: str(text[:20]),
)
def test_nothing_in_it(text: bytes) -> None:
    assert list(entries(text)) == []
    assert sampled(text) == []


@given(st.binary(max_size=100))
def test_any_bytes(text: bytes) -> None:
    list(entries(text))
    list(entries(b'{"entries": [' + text))
    sampled(b'{"entries": [{"process_group":' + text)


def test_cut_off_anywhere() -> None:
    """What was whole is taken."""
    whole = dump(entry(1), entry(2), entry(3))
    counts = [len(list(entries(whole[:end]))) for end in range(len(whole))]
    assert counts == sorted(counts)
    assert set(counts) == {0, 1, 2, 3}
    assert list(entries(whole.decode())) == list(entries(whole))


def test_more_than_is_kept() -> None:
    """The newest."""
    (found,) = sampled(dump(*(entry(number, number / 1000) for number in range(3 * MOST)), pg_config={"0": {"x": []}}))
    assert found.sequence == tuple(range(2 * MOST, 3 * MOST))
    assert found.began_us[0] + (found.base_s - T0_S) * 1e6 == pytest.approx(2 * MOST * 1000, abs=1)
    assert len(found.began_us) == len(found.took_us) == len(found.sent_bytes) == MOST


@pytest.mark.parametrize(("takes_s", "pause_s"), [(0.0, 0.0), (0.04, 0.04 / SHARE), (5.0, LONGEST_S)])
def test_the_longer_it_takes_the_more_rarely(takes_s: float, pause_s: float) -> None:
    """So that it takes a fixed share of the time; but not for ever, and not so rarely that a short run has none."""
    now_s, read = 100.0, []

    def reads() -> bytes:
        nonlocal now_s
        read.append(now_s)
        now_s += takes_s
        return dump()

    source = FlightRecorderSource(T0_S, read=reads, clock=lambda: now_s)
    for _ in range(20_000):
        source.sample(now_s)
        now_s += 0.1
    for begun_s, next_s in itertools.pairwise(read):
        lasted_s, pause = begun_s + takes_s - 100.0, next_s - begun_s - takes_s
        expected_s = min(pause_s, max(FIRST_S, lasted_s))
        assert max(0.1, expected_s) - 1e-6 <= pause <= expected_s + 0.1 + 1e-6
    assert read[1] - read[0] <= 2 * takes_s + FIRST_S + 0.2


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or without a process group, or with a torch that has no flight recorder."""
    assert FlightRecorderSource(T0_S).sample(T0_S) == ()
    monkeypatch.setattr(flight_recorder.sys, "modules", {})
    source = FlightRecorderSource(T0_S)
    assert source.sample(T0_S) == ()
    source.close()


RANKS = """
import json, os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist

FOLDER, RANK, WATCHED = Path(sys.argv[1]), int(os.environ["RANK"]), sys.argv[2] == "watched"
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
batches = range(80)
if WATCHED:
    import stallmeter
    from stallmeter.engine import wiring
    wiring.start_drawing = lambda: None
    monitor = stallmeter.Monitor(
        directory=FOLDER / "runs", trackers=None, console=False, workers=False, interval_s=0.05
    )
    batches = monitor.watch(batches)
for _ in batches:
    time.sleep(0.01 + 0.01 * RANK)
    model(torch.ones(2, 8)).sum().backward()
if WATCHED:
    monitor.close()
from torch._C import _distributed_c10d as core
noted = json.loads(core._dump_fr_trace_json(True, False))["entries"]
(FOLDER / f"{sys.argv[2]}-{RANK}").write_text(
    json.dumps([[e["process_group"], e["collective_seq_id"], e["profiling_name"]] for e in noted])
)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.long
@pytest.mark.skipif(
    not hasattr(core, "_dump_fr_trace_json"), reason="before torch 2.9 gloo's collectives are not recorded"
)
def test_two_ranks_ask_for_the_same_collectives_with_us_and_without(forks: Forks, tmp_path: Path) -> None:
    """Nothing of ours is among them, and what we read of them is what there was."""
    for how in ("alone", "watched"):
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
        programs = [
            forks.start(RANKS, tmp_path, how, cwd=tmp_path, env={**os.environ, **where, "RANK": rank}, together=True)
            for rank in "01"
        ]
        for program in programs:
            assert program.wait() == 0, program.read("stderr")
    asked = {
        name: json.loads((tmp_path / name).read_text()) for name in ("alone-0", "alone-1", "watched-0", "watched-1")
    }
    assert len(asked["alone-0"]) >= 80
    assert asked["alone-0"] == asked["alone-1"] == asked["watched-0"] == asked["watched-1"]
    check_recorded(tmp_path / "runs", {(":".join(group), number) for group, number, _ in asked["watched-0"]})


def check_recorded(folder: Path, asked: set[tuple[str, int]]) -> None:
    """What is in the recordings are collectives of the run, and rank 1 was late to them."""
    from stallmeter.recording import Reader, find_recording

    found: list[dict[tuple[str, int], float]] = []
    for rank in (0, 1):
        arrivals = [a for a, _ in Reader(find_recording(folder), rank) if isinstance(a, Arrivals)]
        found.append(
            {(a.group, n): a.base_s + us / 1e6 for a in arrivals for n, us in zip(a.sequence, a.began_us, strict=True)}
        )
    both = found[0].keys() & found[1].keys()
    assert len(both) >= 20
    assert both <= asked
    assert sorted(found[1][key] - found[0][key] for key in both)[len(both) // 2] > 0.005
