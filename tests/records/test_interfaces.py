"""What a source is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stallmeter.records import Sample
from stallmeter.records.interfaces import by_name


@dataclass(eq=False)
class Named:
    name: str

    def sample(self, time_s: float) -> Sequence[Sample]:
        return ()

    def close(self) -> None:
        """Holds nothing."""


def test_none_of_several_sources_of_one_name_is_lost() -> None:
    sources = [Named(name) for name in ("host", "host 2", "host", "host", "disk")]
    found = by_name(sources)
    assert [*found.values()] == sources
    assert [*found] == ["host", "host 2", "host 3", "host 4", "disk"]
