"""The report as one HTML file that needs nothing else: no network, no other file, no storage.

It works from a disk, in a mail, and in the sandboxed frame in which a tracker shows it. A content security policy in
the file lets a browser run the two scripts that we put in and nothing else, and load nothing from anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from ...errors import MissingPackageError
from .. import wording
from ..device import device_lines
from ..model import History, Report
from . import facts
from .charts import distribution, phases, step_times
from .flames import flames
from .hardware_charts import hardware
from .palette import PALETTE
from .plot import Chart, time_axis
from .worker_timeline import worker_rows, worker_timeline

try:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup
except ImportError as exc:
    raise MissingPackageError("jinja2", "report", "The HTML report") from exc
try:
    from plotly.offline import get_plotlyjs
except ImportError as exc:
    raise MissingPackageError("plotly", "report", "The HTML report") from exc

WORKERS_LISTED = 64

LIBRARY_LEVEL = 4
"""Of compression: it takes 60 % of the time of zlib's own choice, and 4 % more bytes (plotly 7)."""

_CODE = re.compile(r"`([^`]+)`")
_VEIL = "38"
"""Opacity of an area under a curve, as two hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class _Charts:
    phases: Chart | None
    steps: list[Chart]
    lanes: Chart | None
    hardware: list[Chart]

    def all(self) -> list[Chart]:
        return [c for c in (self.phases, *self.steps, self.lanes, *self.hardware) if c is not None]


def to_html(history: History, report: Report | None = None) -> str:
    """Return the whole report as one HTML document.

    Args:
        history: The recording read back.
        report: Its report, when it is known already or has another verdict than the recorded one.

    Raises:
        RecordingError: The recording holds values of a wrong type.
    """
    shown = report or history.report()
    return history.guarded(lambda _: _render(history, shown))


def _render(history: History, report: Report) -> str:
    charts = _draw(history, report)
    drawn = {c.id: {"data": c.data, "layout": c.layout} for c in charts.all()}
    library, script = get_plotlyjs(), _script(_resource("report.js"))
    rows = worker_rows(history.window.workers.batches.items)
    page: str = _template().render(
        policy=_policy([library, script]) if drawn else _policy([]),
        style=Markup(_resource("report.css") + _colours()),  # noqa: S704 - our own file
        library=base64.b64encode(zlib.compress(library.encode(), LIBRARY_LEVEL)).decode(),
        script=script,
        drawn=drawn,
        charts=charts,
        report=report,
        headline=wording.headline(report.known_verdict, report.trials),
        origin=facts.origin(report),
        verdict=facts.verdict_box(report),
        kpis=facts.key_figures(report),
        ledger=facts.ledger_rows(report),
        diagnoses=report.verdict.diagnoses or tuple(d for d in (report.verdict.primary,) if d is not None),
        workers=report.verdict.num_workers,
        worker_rows=rows[:WORKERS_LISTED],
        workers_left_out=max(0, len(rows) - WORKERS_LISTED),
        device=list(device_lines(report.device)),
        job=facts.job(report),
        missing=facts.missing(report),
        overhead=report.cost,
        events=facts.events(report),
        facts=facts.run_facts(report),
        flames=flames(report.looks),
    )
    return page


def _draw(history: History, report: Report) -> _Charts:
    axis = time_axis(report.wall_s or 0.0)
    steps = (step_times(history, axis), distribution(report, history.window.steps.steady))
    return _Charts(
        phases=phases(history, axis),
        steps=[c for c in steps if c is not None],
        lanes=worker_timeline(history, axis),
        hardware=list(hardware(history, axis)),
    )


@lru_cache(maxsize=1)
def _template() -> Any:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(
        seconds=wording.seconds,
        percent=wording.percent,
        number=wording.significant,
        predicted=wording.predicted,
        promised=wording.promised,
        trial=wording.trial,
        fix_lines=wording.fix_lines,
        text=wording.one_line,
        name=lambda value: wording.one_line(value, wording.NAME_LIMIT),
        unit=lambda value: "" if value == "1" else wording.one_line(value, wording.NAME_LIMIT),
        prose=_prose,
        titled=wording.titled,
    )
    return environment.from_string(_resource("report.html.j2"))


def _prose(text: object) -> Markup:
    """Return a sentence in which `code` between backticks is code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(Markup.escape(wording.one_line(text)))))  # noqa: S704 - escaped


def _resource(name: str) -> str:
    return files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def _colours() -> str:
    """Return the palette as style: each colour for light and dark, and a translucent one for areas under a curve."""
    light, dark = (
        " ".join(f"--{name}: {tones[i]}; --{name}-veil: {tones[i]}{_VEIL};" for name, tones in PALETTE.items())
        for i in (0, 1)
    )
    return f"\n:root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


def _script(text: str) -> Markup:
    if re.search(r"</script|<!--", text, re.IGNORECASE):
        raise ValueError("a script of the report would end early in HTML")
    return Markup(text)  # noqa: S704 - our own file


def _policy(scripts: list[str]) -> str:
    """Return what a browser may do in this page: run exactly these scripts, and load nothing."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {hashes or chr(39) + 'none' + chr(39)}; style-src 'unsafe-inline'; "
        "img-src data: blob:; form-action 'none'; base-uri 'none'"
    )
