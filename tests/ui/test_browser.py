"""The live page in a real browser: it loads, a slider moves, the curve changes, and nothing complains."""

import csv
import io
import os
import shutil
import time

import pytest
from on_loopback import begun

webdriver = pytest.importorskip("selenium.webdriver")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="no browser: apt-get install chromium chromium-driver (Debian), then `make test`"
)

CURVES = "return [...document.querySelectorAll('#chart .curves .line')].map(p => p.getAttribute('d'))"


@pytest.fixture(scope="module")
def browser(page):
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,1000"):
        options.add_argument(argument)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # which does not work for root
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


def wait(browser, script, what):
    """Until a script returns something."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = browser.execute_script(script)
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"never: {what}")


def drawn(browser, after=""):
    """Until a simulation is drawn that is not `after`."""
    script = (
        f"const d = document.querySelector('main').dataset.drawn; return d?.startsWith('sim') && d !== '{after}' && d"
    )
    return wait(browser, script, f"a simulation after {after!r}")


def press(browser, selector, key, times=1):
    element = browser.find_element("css selector", selector)
    for _ in range(times):
        element.send_keys(key)
    return element


def quiet(browser):
    """No error, no warning, nothing refused by the policy."""
    assert browser.get_log("browser") == []


def test_a_slider_moves_and_the_curve_changes(page, browser):
    browser.get(page.address + "#/averaging")
    first = drawn(browser)
    before = browser.execute_script(CURVES)
    assert len(before) == 3 and all(before)  # forecast, floor, simulation
    browser.execute_script(
        "window.seen = []; const main = document.querySelector('main');"
        "new MutationObserver(() => seen.push(main.dataset.drawn)).observe(main, {attributeFilter: ['data-drawn']})"
    )
    slider = press(browser, "#slider-step", "\ue014")  # right
    assert slider.get_attribute("aria-valuetext") != "0.05"
    second = drawn(browser, first)
    after = browser.execute_script(CURVES)
    assert len(after) == 3 and all(a != b for a, b in zip(before, after, strict=True))
    number = second.split()[1]
    assert browser.execute_script("return seen") == [f"forecast {number}", f"simulate {number}"]
    press(browser, "#slider-participants", "\ue012", times=8)  # left, faster than it is computed
    drawn(browser, second)
    assert browser.find_element("css selector", "output[for=slider-participants]").text == "12"
    quiet(browser)


def test_the_network_shows_its_nodes_values(page, browser):
    browser.get(page.address + "#/coupling")
    first = drawn(browser)
    values = "return [...document.querySelectorAll('.net text')].map(t => t.textContent)"
    before = browser.execute_script(values)
    assert len(before) == 15
    press(browser, "#slider-coupling", "\ue010")  # End: the closest coupling
    drawn(browser, first)
    after = [float(v.replace("−", "-")) for v in browser.execute_script(values)]
    assert max(after) - min(after) < 0.2 and browser.execute_script(values) != before
    press(browser, ".replay input", "\ue011")  # Home: round 0
    assert set(browser.execute_script(values)) == {"0.00"}
    quiet(browser)


def test_the_algorithms_side_by_side(page, browser):
    browser.get(page.address + "#/algorithms")
    wait(browser, "return document.querySelectorAll('.card').length === 3", "three cards")
    browser.find_element("css selector", "input[name=scaffnew]").send_keys(" ")
    assert browser.execute_script("return document.querySelectorAll('.card').length") == 4
    curves = "return document.querySelectorAll('.stages section:not([hidden]) .curves .line').length"
    wait(browser, f"{curves} === 2 * 4", "each beside its forecast")
    browser.find_element("css selector", "input[name=fedrelax]").send_keys(" ")
    wait(browser, f"{curves} === 2 * 5", "a second chart, over a network")
    assert browser.execute_script("return document.querySelectorAll('.stages section:not([hidden])').length") == 2
    sizes = "return [...document.querySelectorAll('.card .formulas math')].map(m => m.getBoundingClientRect().height)"
    heights = browser.execute_script(sizes)
    assert len(heights) >= 8 and all(10 < h < 90 for h in heights)  # laid out as mathematics, in a line
    quiet(browser)


def test_runs_and_one_of_them(page, browser):
    browser.get(page.address + "#/runs")
    wait(browser, "return [...document.querySelectorAll('td a')].some(a => a.textContent === 'first')", "the run")
    wait(browser, "return document.querySelector('#chart-runs .curves .line')", "a curve")
    assert all(browser.execute_script(CURVES.replace("#chart", "#chart-runs")))  # drawn together
    browser.get(page.address + "#/runs/first")
    wait(browser, "return document.querySelector('main').dataset.points === '41'", "its curves")
    wait(browser, "return document.querySelector('main').dataset.forecast", "its forecast")
    lines = browser.execute_script(CURVES.replace("#chart", "#chart-error"))
    assert len(lines) == 4 + 8  # run, forecast, floor, bias; the repeats one by one
    assert len(browser.execute_script("return [...document.querySelectorAll('#chart-error .curves .band')]")) == 1
    assert browser.find_element("css selector", ".verdict").text.startswith("As forecast, ")
    browser.get(browser.find_element("link text", "Report").get_attribute("href"))
    assert "As forecast, " in browser.find_element("css selector", ".verdict").text
    assert browser.execute_script("return document.querySelectorAll('figure .fp-curves').length") >= 2
    quiet(browser)


def test_a_run_that_has_only_begun_shows_its_forecast(page, browser):
    begun(page.runs / "begun")
    browser.get(page.address + "#/runs/begun")
    wait(browser, "return document.querySelector('main').dataset.forecast", "its forecast")
    assert browser.execute_script("return document.querySelector('main').dataset.points") == "1"
    run, *forecast = browser.execute_script(CURVES.replace("#chart", "#chart-error").replace("line'", "line.thick'"))
    assert "L" not in run and not forecast  # a point, so far
    assert (
        browser.execute_script(
            "return document.querySelector('#chart-error .curves .ink[stroke-dasharray]').getTotalLength()"
        )
        > 100
    )
    quiet(browser)


def test_dark_and_light(page, browser):
    browser.get(page.address + "#/algorithms")
    wait(browser, "return document.querySelector('.card')", "a card")
    colour = "return getComputedStyle(document.documentElement).backgroundColor"
    before = browser.execute_script(colour)
    browser.find_element("id", "theme").click()
    assert browser.execute_script(colour) != before
    browser.find_element("id", "theme").click()
    assert browser.execute_script(colour) == before
    quiet(browser)


def test_on_a_phone_nothing_is_cut_off(page, browser):
    size = {"width": 380, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        for name in ("coupling", "algorithms", "runs/first"):
            browser.get(page.address + f"#/{name}")
            wait(browser, "return document.querySelector('.fp-curves, .card')", name)
            assert browser.execute_script("return document.documentElement.scrollWidth") <= 380, name
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    quiet(browser)


def test_a_link_leads_to_a_setting(page, browser):
    browser.get(page.address + "#/averaging")
    first = drawn(browser)
    press(browser, "#slider-step", "\ue014", times=2)
    drawn(browser, first)
    shown = "return [...document.querySelectorAll('.control output')].map(o => o.textContent)"
    link, values = browser.current_url, browser.execute_script(shown)
    browser.get(page.address + "#/algorithms")
    wait(browser, "return document.querySelector('.card')", "another page")
    browser.get(link)
    drawn(browser)
    assert browser.execute_script(shown) == values
    browser.get(link.replace("step=", "step=nonsense&other="))  # what is no setting is passed over
    drawn(browser)
    quiet(browser)


TAKE = """
window.taken = [];
const made = URL.createObjectURL;
URL.createObjectURL = (blob) => {
  blob.text().then((text) => taken.push([blob.type, text]));
  return made.call(URL, blob);
};
"""


def taken(browser, label):
    """What a button downloads: its type and its text."""
    browser.execute_script("window.taken.length = 0")
    button = browser.find_element("xpath", f"//button[contains(., '{label}')]")
    browser.execute_script("arguments[0].click()", button)
    return wait(browser, "return window.taken[0]", f"what {label} saves")


def test_figures_and_tables_are_downloaded(page, browser):
    browser.get(page.address + "#/runs")
    wait(browser, "return document.querySelector('#chart-runs .curves .line')", "a curve")
    assert "drawn=first" in browser.current_url  # a link shows these runs, whatever has been run since
    browser.execute_script(TAKE)
    kind, svg = taken(browser, "figure")
    assert kind == "image/svg+xml" and 'stroke="rgb(' in svg and "class=" not in svg and "var(" not in svg
    kind, text = taken(browser, "numbers")
    rows = list(csv.reader(io.StringIO(text)))
    assert kind == "text/csv" and rows[0] == ["line", "x", "y", "low", "high"]
    first = [row for row in rows if row[0] == "first"]
    assert len(first) == 41 and float(first[0][2]) > float(first[-1][2]) > 0
    table = list(csv.reader(io.StringIO(taken(browser, "table")[1])))
    assert ["first", "fedavg", "40"] in [row[:3] for row in table]
    quiet(browser)


def test_a_run_is_started_from_the_form_by_keyboard(page, browser):
    browser.get(page.address + "#/new?problem=quadratic&algorithm=scaffold&algorithm.step=0.2&rounds=25")
    wait(browser, "return Number(document.querySelector('main').dataset.file)", "the file")
    assert 'name = "scaffold"' in browser.find_element("css selector", "pre.file").text
    step = browser.find_element("id", "algorithm-step")
    step.clear()
    step.send_keys("fast\n")
    wait(browser, "return document.querySelector('[role=alert]').textContent.includes('not a number')", "a message")
    step.clear()
    step.send_keys("0.1\n")  # Enter starts it
    wait(browser, "return location.hash.startsWith('#/runs/form-')", "its page")
    wait(browser, "return document.querySelector('main').dataset.points === '26'", "its curves")
    assert "step=0.1" not in browser.current_url
    browser.get_log("browser")  # the refused request of the mistake is noted there


HOSTILE = "<img src=x onerror=hit=1>'\"&`${hit=1}"


def test_names_are_text_and_nothing_else(page, browser):
    """Names of folders and files reach every page: as text."""
    begun(page.runs / HOSTILE)
    hurt = "return window.hit !== undefined || document.querySelector('img, main script') !== null"
    try:
        browser.get(page.address + "#/runs")
        wait(browser, "return [...document.querySelectorAll('td a')].some(a => a.textContent.startsWith('<img'))", "it")
        assert not browser.execute_script(hurt)
        browser.execute_script(
            "const row = [...document.querySelectorAll('tr')].find(r => r.textContent.includes('<img'));"
            "row.querySelector('input').click()"
        )
        wait(browser, "return document.querySelector('.compared').textContent.includes('<img')", "it is compared")
        wait(browser, "return location.hash.includes('img')", "a link with it")
        assert not browser.execute_script(hurt)
        browser.find_element("partial link text", "<img").click()
        wait(browser, "return document.querySelector('main').dataset.points", "its page")
        assert browser.find_element("tag name", "h1").text == HOSTILE and not browser.execute_script(hurt)
        browser.get(browser.find_element("link text", "Report").get_attribute("href"))
        wait(browser, "return document.querySelector('h1')", "its report")
        assert browser.execute_script("return window.hit === undefined && !document.querySelector('img[src=x]')")
        browser.get(
            page.address + "#/new?problem=" + "<img src=x onerror=hit=1>" + "&algorithm.step=<script>hit=1</script>"
        )
        wait(browser, "return document.querySelector('[role=alert]')?.textContent", "a message")
        assert not browser.execute_script(hurt)
        quiet_but_refused(browser)
    finally:
        shutil.rmtree(page.runs / HOSTILE)


def quiet_but_refused(browser):
    """Nothing but answers that say what is wrong."""
    assert all("status of 400" in entry["message"] for entry in browser.get_log("browser"))


ASKED = {"button", "link", "slider", "checkbox", "textbox", "combobox", "img", "figure", "graphics-document"}


@pytest.mark.parametrize("name", ["averaging", "coupling", "algorithms", "new", "runs", "runs/first"])
def test_screen_readers_and_the_keyboard_reach_everything(page, browser, name):
    """A screen reader is told a name of everything that can be used, and one main heading; Tab goes from one to the
    next."""
    browser.get(page.address + f"#/{name}")
    wait(browser, "return document.querySelector('main h1')", name)
    wait(browser, "return document.querySelector('.fp-curves, .card, .file')", name)
    nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    told = [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes if not n.get("ignored")]
    nameless = [role for role, said in told if role in ASKED and not said.strip()]
    assert not nameless, nameless
    roles = [role for role, _ in told]
    assert {"main", "navigation", "banner"} <= set(roles) and "status" in roles
    assert browser.execute_script("return document.querySelectorAll('h1').length") == 1
    usable = "main button:not([disabled]), main input, main select, main a[href], main .plot, main pre, main summary"
    missed = browser.execute_script(
        f"const all = [...document.querySelectorAll({usable!r})];"
        "return all.filter(e => e.checkVisibility() && e.tabIndex < 0).map(e => e.outerHTML)"
    )
    assert not missed, missed
    browser.execute_script("document.activeElement.blur(); document.querySelector('.skip').focus()")
    body, seen = browser.find_element("tag name", "body"), set()
    for _ in range(12):
        browser.switch_to.active_element.send_keys("\ue004")  # Tab
        seen.add(browser.execute_script("return document.activeElement.outerHTML.slice(0, 120)"))
    assert len(seen) >= 10 and body
