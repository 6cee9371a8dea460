"""The phase chart: a picture that needs no pyplot and leaves matplotlib as it was."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from stallmeter.report.model import read_history
from stallmeter.report.page.chart_png import HEIGHT_PX, WIDTH_PX, phase_chart
from stallmeter.report.page.palette import PALETTE

from ..long_runs import long_run
from ..recordings import complete_run, ledger, step, write

Image = pytest.importorskip("PIL.Image")


def picture(folder):
    return Image.open(io.BytesIO(phase_chart(read_history(folder)))).convert("RGB")


def rgb(name: str) -> tuple[int, ...]:
    return tuple(int(PALETTE[name][0][i : i + 2], 16) for i in (1, 3, 5))


def test_picture(tmp_path):
    """Its size is fixed; each bucket has its colour, in the bar as wide as its share."""
    image = picture(write(tmp_path, complete_run()))
    assert image.size == (WIDTH_PX, HEIGHT_PX)
    row = [image.getpixel((x, 50)) for x in range(WIDTH_PX)]
    wait, forward = row.count(rgb("data_wait")), row.count(rgb("forward"))
    assert wait / (0.925 * WIDTH_PX) == pytest.approx(0.60, abs=0.02)
    assert forward / (0.925 * WIDTH_PX) == pytest.approx(0.15, abs=0.02)


def test_a_long_run_is_a_small_file(tmp_path):
    """A picture for a note: well below 100 kB."""
    assert len(phase_chart(read_history(write(tmp_path, long_run(5000))))) < 100_000


@pytest.mark.parametrize("name", ["$x^{", "_hidden", "a\nb" * 50, "<b>\x1b", "x" * 10_000, "\\frac{", "漢字🔥"])
def test_hostile_bucket_names(tmp_path, name):
    """A bucket of a newer version or an edited file is drawn; its name is no mathematics and no layout."""
    image = picture(write(tmp_path, [step(0), ledger(buckets={"data_wait": 50.0, name: 50.0})]))
    assert image.size == (WIDTH_PX, HEIGHT_PX)


def test_nothing_to_show(tmp_path):
    """No wall time, no picture."""
    assert phase_chart(read_history(write(tmp_path, [ledger(wall_s=0.0, buckets={})]))) is None


def test_the_users_matplotlib_is_left_alone(tmp_path):
    """No pyplot, no backend chosen, no setting changed; the user's own style does not colour our picture."""
    folder = write(tmp_path, complete_run())
    program = f"""
import sys, pathlib
import matplotlib
matplotlib.rcParams.update({{"axes.facecolor": "black", "figure.facecolor": "black", "savefig.facecolor": "black"}})
before = dict(dict.items(matplotlib.rcParams))  # a look-up of "backend" would choose one
from stallmeter.report.page.chart_png import phase_chart
from stallmeter.report.model import read_history
pathlib.Path({str(tmp_path / "x.png")!r}).write_bytes(phase_chart(read_history(pathlib.Path({str(folder)!r}))))
assert "matplotlib.pyplot" not in sys.modules
assert dict(dict.items(matplotlib.rcParams)) == before
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    assert Image.open(tmp_path / "x.png").convert("RGB").getpixel((3, 3)) == (255, 255, 255)


def test_missing_matplotlib():
    """Without matplotlib the error names the extra."""
    program = "import sys; sys.modules['matplotlib'] = None; import stallmeter.report.page.chart_png"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "MissingPackageError" in done.stderr
    assert "pip install 'stallmeter[report]'" in done.stderr
