"""A real browser without a screen."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Browser:
    driver: Any
    folder: Path
    """Where pictures for the docs go."""
    scratch: Path
    """Where other pictures go, such as that of a page that did not show what it should."""

    def open(self, url: str, *texts: str) -> str:
        """Open a page and return its text once it shows all of the given texts."""
        self.driver.get(url)
        return self.until(lambda: (text := self.text()) and all(t in text for t in texts) and text, texts)

    def click(self, xpath: str) -> None:
        """Click the first element that matches."""
        self.until(lambda: self.driver.find_elements("xpath", xpath), xpath)[0].click()

    def named(self, text: str) -> list[Any]:
        """Return the elements whose own text is exactly this."""
        return list(self.driver.find_elements("xpath", f"//*[normalize-space(text())='{text}']"))

    def text(self) -> str:
        return str(self.driver.execute_script("return document.body.innerText"))

    def until(self, probe: Callable[[], Any], what: object, seconds: float = 60.0) -> Any:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if found := probe():
                return found
            time.sleep(0.25)
        self.save("failure", self.scratch)
        pytest.fail(f"not on the page after {seconds:.0f} s: {what}\n{self.text()[:3000]}")

    def save(self, name: str, folder: Path | None = None) -> Path:
        """Save what the window shows, among the pictures for the docs unless another folder is named."""
        path = (folder or self.folder) / f"{name}.png"
        self.driver.save_screenshot(str(path))
        return path

    def look(self, *, width: int, height: int = 900, dark: bool = False, scale: float = 1.0) -> None:
        """Set the size of the page, in CSS pixels, and whether the system is dark. Below 500 pixels it is a phone."""
        phone = width < 500
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]},
        )
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": phone},
        )

    def complaints(self) -> list[str]:
        """Return what the page wrote to the console since the last call."""
        return [str(entry["message"]) for entry in self.driver.get_log("browser")]

    def tidy_mlflow(self) -> None:
        """Put MLflow's side panel out of the way and choose its pages for training."""
        for panel in self.driver.find_elements(
            "css selector", '[data-component-id="mlflow.assistant.chat_panel.close"]'
        ):
            panel.click()
        for mode in self.driver.find_elements("xpath", "//*[text()='Model training']"):
            mode.click()

    def plain(self) -> None:
        """Undo `look`."""
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install selenium")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver_path = shutil.which("chromedriver")
    if chromium is None or driver_path is None:
        pytest.skip("Chromium or chromedriver is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        # A mouse, as on a desktop: without one, charts show their toolbars all the time.
        "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4",
        "--window-size=1600,1240",
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    folder = Path(os.environ.get("STALLMETER_SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_path))
    try:
        yield Browser(driver, folder, tmp_path_factory.mktemp("scratch"))
    finally:
        driver.quit()
