"""How does the built site look? Pictures of every page, and what is wrong with it: `make docs-check`.

Checked: links and anchors lead somewhere; formulas are drawn on one line; no page is wider than the window, on a desk
and on a phone; pictures are there; nothing is fetched from another host. Pictures go to build/look.
"""

from __future__ import annotations

import contextlib
import functools
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

ROOT = Path(__file__).resolve().parent.parent
SITE, PICTURES = ROOT / "build" / "site", ROOT / "build" / "look"
WIDTHS = {"desk": 1280, "phone": 390}
TALLEST = 12_000  # pixels of a picture
FAULTS = """
const found = [], wide = document.documentElement.scrollWidth - window.innerWidth;
if (wide > 0) found.push(`the page is ${wide} pixels wider than the window`);
for (const math of document.querySelectorAll("article math")) {
  let row = math;
  while (row.children.length === 1) row = row.children[0];
  const boxes = [...row.children].map((child) => child.getBoundingClientRect()).filter((box) => box.height > 0);
  if (row.closest("mfrac, munder, mover, munderover, msub, msup, msubsup, msqrt")) continue;
  if (boxes.some((box) => box.top >= boxes[0].bottom || box.bottom <= boxes[0].top))
    found.push(`a formula is drawn one symbol below the other: ${math.textContent.slice(0, 40)}`);
}
for (const image of document.images)
  if (image.complete && image.naturalWidth === 0) found.push(`a picture is missing: ${image.src}`);
for (const entry of performance.getEntriesByType("resource"))
  if (!entry.name.startsWith(location.origin) && !entry.name.startsWith("data:"))
    found.push(`it fetches ${entry.name}`);
return found;
"""


class Page(HTMLParser):
    """The anchors of a page, and where its links lead."""

    def __init__(self, text: str):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        said = dict(attributes)
        self.anchors |= {said[name] or "" for name in ("id", "name") if said.get(name)}
        self.links += [said[name] or "" for name in ("href", "src") if said.get(name)]


def dead_links(site: Path) -> list[str]:
    """Links of the site's pages to files or anchors that are not there."""
    pages = {path: Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    return [
        f"{path.relative_to(site)}: {link}"
        for path, page in pages.items()
        for link in page.links
        if _dead(path, link, site, pages)
    ]


def _dead(path: Path, link: str, site: Path, pages: dict[Path, Page]) -> bool:
    address, anchor = urldefrag(link)
    if re.match(r"[a-z]+:|//", address):
        return False
    base = site if address.startswith("/") else path.parent
    target = (base / unquote(address.split("?")[0]).lstrip("/")).resolve() if address else path
    target = target / "index.html" if target.is_dir() else target
    known = pages.get(target)
    return not target.exists() or bool(anchor and known and unquote(anchor) not in known.anchors)


@contextlib.contextmanager
def served(site: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()


@contextlib.contextmanager
def browsing() -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "hide-scrollbars"):
        options.add_argument(f"--{argument}")
    for argument in ("disable-background-networking", "disable-sync"):
        options.add_argument(f"--{argument}")
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    browser.set_page_load_timeout(60)
    try:
        yield browser
    finally:
        browser.quit()


def looked_at(browser: Any, address: str, width: int, picture: Path, dark: bool = False) -> list[str]:
    """What is wrong with a page at a width; its picture is kept."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(address)
    found = browser.execute_script(FAULTS)
    height = browser.execute_script("return document.documentElement.scrollHeight")
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {**size, "height": min(height, TALLEST)})
    browser.save_screenshot(str(picture))
    return found


def main() -> None:
    if not (SITE / "index.html").exists():
        raise SystemExit("build the site first: make docs")
    wrong = dead_links(SITE)
    PICTURES.mkdir(parents=True, exist_ok=True)
    only = sys.argv[1:]
    pages = [path for path in sorted(SITE.rglob("index.html")) if not only or any(word in str(path) for word in only)]
    with served(SITE) as host, browsing() as browser:
        for path in pages:
            where = path.parent.relative_to(SITE).as_posix()
            name = "home" if where == "." else where.replace("/", "-")
            for window, width in WIDTHS.items():
                picture = PICTURES / f"{name}-{window}.png"
                found = looked_at(browser, host + ("" if where == "." else where + "/"), width, picture)
                wrong += [f"{where}, {window}: {fault}" for fault in found]
    print(f"{len(pages)} pages looked at; pictures in {PICTURES.relative_to(ROOT)}")
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
