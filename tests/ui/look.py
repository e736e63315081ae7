"""How does the live page look, and how quickly does it answer? Pictures for the documentation, and times.

PYTHONPATH=src python tests/ui/look.py pictures docs     what docs/ui.md shows; or only some: pictures docs runs new
PYTHONPATH=src python tests/ui/look.py times             from a slider's move to what is painted, after warm-up
PYTHONPATH=src python tests/ui/look.py answers           from a request to its two answers, without a browser
"""

import contextlib
import io
import json
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlencode

from on_loopback import serving

SCREENS = {
    "averaging": 840,
    "coupling": 1220,
    "local-steps": 790,
    "algorithms": 1130,
    "new": 1000,
    "runs": 780,
    "run": 640,
}
PLACES = {"run": "runs/fedavg", "new": "new?problem=logistic&algorithm=scaffold&algorithm.step=0.1&rounds=300"}
COPY = "[...document.querySelectorAll('button')].find((b) => b.textContent === 'Copy link').click()"
PRESSED = {"runs": COPY}  # before the picture is taken
MARKS = {
    "algorithms": "document.querySelector('.stages .curves .line')",
    "new": "document.getElementById('main').dataset.file > 0",
    "runs": "document.querySelector('#chart-runs .curves .line')",
    "run": "document.getElementById('main').dataset.forecast",
}
RUN = """
rounds = 300
repeats = 8
[problem]
kind = "quadratic"
agents = 20
dim = 5
curvature = [0.2, 2.0]
spread = 4.0
noise = 0.5
[algorithm]
"""
DARK = ("averaging", "coupling")

# Two frames after the change is in the document, it has been painted.
MOVE = """
const [id, value, done] = arguments, main = document.getElementById("main"), slider = document.getElementById(id);
const painted = (then) => requestAnimationFrame(() => requestAnimationFrame(then));
const begun = performance.now();
let forecast = null;
const watcher = new MutationObserver(() => {
  const kind = main.dataset.drawn.split(" ")[0];
  if (kind === "forecast") painted(() => { forecast = performance.now() - begun; });
  if (kind === "simulate") { watcher.disconnect(); painted(() => done([forecast, performance.now() - begun])); }
});
watcher.observe(main, {attributeFilter: ["data-drawn"]});
slider.value = value;
slider.dispatchEvent(new Event("input", {bubbles: true}));
"""
DRAG = """
const [id, done] = arguments, main = document.getElementById("main"), slider = document.getElementById(id);
const painted = (then) => requestAnimationFrame(() => requestAnimationFrame(then));
let moves = 0;
const timer = setInterval(() => {
  slider.value = (Number(slider.value) + 2) % (Number(slider.max) + 1);
  slider.dispatchEvent(new Event("input", {bubbles: true}));
  if (++moves < 30) return;
  clearInterval(timer);
  const begun = performance.now(), before = main.dataset.drawn;
  const watcher = new MutationObserver(() => {
    if (!main.dataset.drawn.startsWith("simulate") || main.dataset.drawn === before) return;
    watcher.disconnect();
    painted(() => done(performance.now() - begun));
  });
  watcher.observe(main, {attributeFilter: ["data-drawn"]});
}, 16);
"""


@contextlib.contextmanager
def browsing(width=1240, height=900, dark=False):
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    try:
        yield browser
    finally:
        browser.quit()


def until(browser, script):
    end = time.monotonic() + 900  # on a busy machine
    while not browser.execute_script(script):
        if time.monotonic() > end:
            raise SystemExit(f"never: {script}")
        time.sleep(0.05)


def ready(browser, address):
    browser.get(address)
    until(browser, "return document.getElementById('compilation').textContent === 'ready'")


def shown(browser, address, name):
    browser.get(f"{address}#/{PLACES.get(name, name)}")
    drawn = "document.getElementById('main').dataset.drawn?.startsWith('simulate')"
    until(browser, f"return {MARKS.get(name, drawn)}")
    browser.execute_script(PRESSED.get(name, ""))
    time.sleep(0.3)


def save(browser, path):
    from PIL import Image

    picture = Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")
    picture.quantize(255, dither=Image.Dither.NONE).save(path, optimize=True)
    print(path, f"{path.stat().st_size / 1000:.0f} kB")


def pictures(folder: Path, names: list[str]) -> None:
    from click.testing import CliRunner

    from fedpoint.cli import main

    with tempfile.TemporaryDirectory() as made:
        runs = Path(made) / "runs"
        runs.mkdir()
        for name, more in (("scaffold", ""), ("fedprox", "pull = 1.0"), ("fedavg", "normalise = false")):
            file = runs / f"{name}.toml"
            file.write_text(f'{RUN}name = "{name}"\nstep = 0.01\nlocal_steps = 20\n{more}\n')
            command = ["run", str(file), "--folder", str(runs / name), "-q", "--no-figure"]
            CliRunner().invoke(main, command, catch_exceptions=False)
        compiled = any(name not in MARKS for name in names)  # a playground: nothing else waits for it
        with serving(runs, warm=compiled) as client:
            for name in names:
                for dark in (False, True)[: 1 + (name in DARK)]:
                    with browsing(height=SCREENS[name], dark=dark) as browser:
                        if compiled:
                            ready(browser, client.address)
                        shown(browser, client.address, name)
                        if not compiled:
                            browser.execute_script("document.getElementById('compilation').hidden = true")
                        save(browser, folder / f"ui-{name}{'-dark' if dark else ''}.png")
            if "coupling" in names:
                with browsing(390, 1500) as browser:
                    ready(browser, client.address)
                    shown(browser, client.address, "coupling")
                    save(browser, folder / "ui-phone.png")


def times(moves: int = 60) -> None:
    luck = random.Random(1)
    with tempfile.TemporaryDirectory() as made, serving(Path(made), warm=True) as client, browsing() as browser:
        begun = time.perf_counter()
        ready(browser, client.address)
        print(f"ready after {time.perf_counter() - begun:.1f} s")
        for name in ("averaging", "coupling", "local-steps"):
            shown(browser, client.address, name)
            listed = "return [...document.querySelectorAll('.control input')].map(i => [i.id, Number(i.max)])"
            sliders = browser.execute_script(listed)
            found = []
            for _ in range(moves):
                slider, most = luck.choice(sliders)
                found.append(browser.execute_async_script(MOVE, slider, luck.randint(0, most)))
            print(name, "forecast", _said([f for f, _ in found if f]), "simulation", _said([s for _, s in found]))
            drags = [browser.execute_async_script(DRAG, sliders[0][0]) for _ in range(10)]
            print(name, "from the last of 30 quick moves to its simulation", _said(drags))


def answers(moves: int = 30) -> None:
    luck = random.Random(1)
    with tempfile.TemporaryDirectory() as made, serving(Path(made), warm=True) as client:
        begun = time.perf_counter()
        client.get("/api/compilation")  # a stream that ends when all is compiled
        print(f"ready after {time.perf_counter() - begun:.1f} s")
        for play in json.loads(client.get("/api/state").text)["playgrounds"]:
            values, found = {c["name"]: c["start"] for c in play["controls"]}, []
            for number in range(moves):
                control = luck.choice(play["controls"])
                values[control["name"]] = luck.choice(control["values"])
                asked = urlencode(values | {"reader": "look", "number": number + 1})
                begun, used = time.perf_counter(), time.process_time()
                with client.open(f"/api/play/{play['name']}?{asked}") as answer:
                    lines = [(json.loads(answer.readline()), time.perf_counter() - begun) for _ in range(2)]
                assert [line["kind"] for line, _ in lines] == ["forecast", "simulate"], lines
                found.append([1000 * s for s in (*(seconds for _, seconds in lines), time.process_time() - used)])
            forecast, simulation, used_by_both = zip(*found, strict=True)
            print(play["name"], "forecast", _said(forecast), "simulation", _said(simulation), end=" ")
            print("processor time of both", _said(used_by_both), flush=True)


def _said(values: list[float]) -> str:
    ordered = sorted(values)
    middle, high = ordered[len(ordered) // 2], ordered[int(0.95 * (len(ordered) - 1))]
    return f"median {middle:.0f} ms, 95 % {high:.0f} ms, at most {ordered[-1]:.0f} ms;"


if __name__ == "__main__":
    if sys.argv[1:2] == ["pictures"] and len(sys.argv) >= 3 and set(sys.argv[3:]) <= set(SCREENS):
        pictures(Path(sys.argv[2]), sys.argv[3:] or list(SCREENS))
    elif sys.argv[1:] in (["times"], ["answers"]):
        {"times": times, "answers": answers}[sys.argv[1]]()
    else:
        raise SystemExit(__doc__)
