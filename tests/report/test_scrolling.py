"""Can a table that is wider than the page be read to its end, on a phone too?"""

import re
import shutil

import pytest
from click.testing import CliRunner

from fedpoint.cli import main
from fedpoint.show import page

EXPERIMENT = """
rounds = 5
repeats = 3
[problem]
kind = "quadratic"
agents = 4
dim = 1
curvature = [0.5, 2.0]
spread = 4.0
noise = 0.2
[algorithm]
name = "scaffold"
step = [0.1, 0.05]
local_steps = 5
"""
BOX = "#comparison .wide"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The page of a comparison, forecasts and all."""
    place = tmp_path_factory.mktemp("scrolling")
    (place / "two.toml").write_text(EXPERIMENT)
    for command in (["run", "two.toml", "--folder", "runs", "-q", "--no-figure"], ["report", "runs"]):
        done = CliRunner().invoke(main, [str(place / c) if c in ("two.toml", "runs") else c for c in command])
        assert done.exit_code == 0, done.output
    return place / "runs" / "report.html"


def test_tables_are_in_boxes_that_scroll_and_can_be_focused(report):
    text = report.read_text()
    boxes = re.findall(r'<div class="wide"([^>]*)>', text)
    assert boxes and all('tabindex="0" role="region" aria-label="' in box for box in boxes)
    assert text.count("<table") == len(re.findall(r'<div class="wide"[^>]*><table', text))
    style = page.asset("page.css")
    (box,) = re.findall(r"^\.wide \{(.*?)^\}", style, re.S | re.M)
    assert "overflow-x: auto" in box and box.count("local") >= 2 and box.count("scroll;") + box.count("scroll,") == 2


@pytest.mark.parametrize("width", [1280, 800, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_in_a_browser(report, width, dark):
    """The page does not scroll sideways; the box of the table does, to its last column, with a bar that is seen."""
    webdriver = pytest.importorskip("selenium.webdriver")
    browser_path, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (browser_path and driver):
        pytest.skip("no browser: apt-get install chromium chromium-driver (Debian)")
    options = webdriver.ChromeOptions()
    options.binary_location = browser_path
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        browser.get(report.as_uri())
        whole, inner = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
        assert whole <= inner
        box = f"const box = document.querySelector({BOX!r}); "
        content, shown, end = browser.execute_script(
            box + "box.scrollLeft = 1e6; const last = box.querySelector('tr').lastElementChild.getBoundingClientRect();"
            "return [box.scrollWidth, box.clientWidth, last.right - box.getBoundingClientRect().right]"
        )
        assert end <= 1
        if width == 390:
            assert content > shown
            assert browser.execute_script(box + "return box.offsetHeight - box.clientHeight") >= 8
    finally:
        browser.quit()
