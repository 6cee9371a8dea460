"""What a tracker shows on the run's page, made from the report: the one way there, for a live run and for `sync`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..records.code import BUCKET_OF, IN_WORKERS
from ..records.interfaces import Page
from ..version import VERSION
from . import markdown
from .model import Report
from .wording import NAME_LIMIT, headline, one_line


def build_page(report: Report, files: Mapping[str, Path], *, final: bool) -> Page:
    """Return the page of a run.

    Args:
        report: What is known of the run.
        files: Artifact name to local file; files that are missing are left out.
        final: False while the run goes on.
    """
    return Page(
        tags=markdown.tags(report, VERSION),
        headline=headline(report.known_verdict, report.trials),
        note=markdown.note(report),
        files={name: path for name, path in files.items() if path.is_file()},
        final=final,
        slow_steps=report.slow_steps,
        places=_places(report),
    )


def _places(report: Report) -> dict[str, str]:
    """Return the function that most of a bucket is in, by bucket."""
    buckets = dict.fromkeys(IN_WORKERS, "data_wait") | BUCKET_OF
    found = [(buckets.get(d.rule), d.location) for d in reversed(report.verdict.diagnoses)]
    return {
        bucket: one_line(place.function, NAME_LIMIT)
        for bucket, place in found
        if bucket is not None and place is not None
    }
