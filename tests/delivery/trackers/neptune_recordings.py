"""A recording with everything that trackers get, and its points as a tracker should hold them."""

from __future__ import annotations

from pathlib import Path

from stallmeter.delivery.points import points_of
from stallmeter.recording import Header, Reader, Recorder
from stallmeter.records import Event, UserMetrics, WindowRecord
from stallmeter.records.interfaces import Page, Point

from ...report.recordings import ledger

NOW = 1_700_000_000.0
FOLDERS = {"steps": "stallmeter/", "hardware": "stallmeter/hardware/"}


def record(folder: Path, windows: int = 150) -> Path:
    """Write reporting periods, some of which share a step, and a metric of the user's."""
    recorder = Recorder(folder, Header(run_id="test", started_s=NOW))
    for number in range(windows):
        recorder.write(
            WindowRecord(
                time_s=NOW + number + 0.25,
                tracker_step=number // 3 * 10,
                duration_s=1.0,
                metrics={"data_wait_ms": number + 0.5, "step_time_ms": 2.0 * number},
                hardware={"job_cpus": 1.5, "gpu0_util_pct": float(number % 7)},
            )
        )
    recorder.write(UserMetrics(time_s=NOW + windows, tracker_step=7, metrics={"tokens/s": 12.5}))
    recorder.write(ledger())
    recorder.write(Event(time_s=NOW + windows, name="end", detail="end"))
    recorder.close()
    return folder


def expected(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """Step, value and time in s of each point of a recording, by its path in the run."""
    found: dict[str, list[tuple[int, float, float]]] = {}
    for one, _ in Reader(folder):
        for point in points_of(one):
            found.setdefault(FOLDERS[point.group] + point.key, []).append((point.step, point.value, point.time_s))
    return found


def point(key: str, value: float, step: int, group: str = "steps", time_s: float | None = None) -> Point:
    return Point(group, key, value, step, NOW + step if time_s is None else time_s)


def page(folder: Path, *, final: bool = True) -> Page:
    """A page with two files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"report.html": folder / "report.html", "steps.csv": folder / "steps.csv"}
    files["report.html"].write_text("<h1>report</h1>")
    files["steps.csv"].write_text("step,data_wait_s\n")
    return Page(
        tags={"stallmeter.primary": "no-workers", "stallmeter.data_wait_pct": "50.0", "stallmeter.num_workers": "0"},
        headline="Data wait 50 %: set num_workers=2",
        note="**Data wait 50 %**",
        files={**files, "missing.png": folder / "missing.png"},
        final=final,
    )
