"""The page of a job of two real ranks in a real browser."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Browser

pytestmark = [pytest.mark.ui, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[2] / "examples/straggler.py"
DARKEST = """
const strength = cell => parseInt(getComputedStyle(cell).getPropertyValue('--strength'));
return [...document.querySelectorAll('.heat tr')].map(
    row => [row.querySelector('th').innerText, Math.max(...[...row.querySelectorAll('td')].map(strength))])
"""
COLOURS = """
return new Set([...document.querySelectorAll('.heat td')].map(e => getComputedStyle(e).backgroundColor)).size
"""
OVERFLOW = "return document.documentElement.scrollWidth - window.innerWidth"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of the page of the example's job."""
    folder = tmp_path_factory.mktemp("straggler")
    said = subprocess.run([sys.executable, str(EXAMPLE)], cwd=folder, capture_output=True, text=True, timeout=300)
    assert said.returncode == 0, said.stderr
    report = [sys.executable, "-m", "stallmeter", "report", "--format", "html", "--output", "job.html"]
    subprocess.run(report, cwd=folder, check=True, timeout=120)
    return (folder / "job.html").as_uri()


@pytest.fixture
def narrow_or_wide(browser: Browser) -> Iterator[Browser]:
    browser.complaints()
    yield browser
    browser.plain()


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_slow_rank_is_the_dark_row(narrow_or_wide: Browser, page: str, width: int, dark: bool) -> None:
    browser = narrow_or_wide
    browser.look(width=width, dark=dark)
    browser.open(page, "The ranks of the job", "Where the time went")
    rows = browser.driver.execute_script(DARKEST)
    assert [name for name, _ in rows] == ["rank 0", "rank 1"]
    assert rows[1][1] == 100
    assert rows[0][1] < 50
    assert browser.driver.execute_script(COLOURS) > 3
    assert browser.driver.execute_script(OVERFLOW) == 0
    assert browser.complaints() == []


def test_pictures_for_the_docs(narrow_or_wide: Browser, page: str) -> None:
    """What the how-to about several ranks shows."""
    browser = narrow_or_wide
    for name, anchor, height in (("ranks-verdict", None, 700), ("ranks", "ranks", 900)):
        browser.look(width=1280, height=height)
        browser.open(page, "The ranks of the job", "Where the time went")
        if anchor:
            browser.driver.execute_script(f"document.getElementById('{anchor}').scrollIntoView()")
        assert browser.save(name).stat().st_size > 20_000
