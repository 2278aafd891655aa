#!/usr/bin/env python3
"""Opens the reports of `bench`, `bench compare` and `doctor` in a headless Chromium, and torture's timeline if there is one.

usage: reports.py --mainstay PATH [--timeline FILE] [--axe FILE] [--pictures FOLDER]

Each is opened from the disk, light and dark, wide and on a phone, with and without scripts. `--pictures` keeps what was seen. Last line:
"N passed, M failed"; exit status 1 if something failed. What cannot be run is named in a line that begins with SKIPPED.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import traceback

from browser import Browser, BrowserError, find
from clusters import end_cleanly, free_ports, Member, wait_for
from tests_looks import violations
from world import Failed, check, same

# The name of a member and of a server: shown as it is, and never an element.
MARKUP = "<b onclick>m1<img>"
SIZES = ((1280, 900), (360, 720))


def reports(mainstay, folder):
    """Writes the reports; returns the files by their names."""
    files = {name: os.path.join(folder, f"{name}.html") for name in ("put", "compare", "doctor")}

    def run(*words, codes=(0,)):
        done = subprocess.run([mainstay, *words], cwd=folder, capture_output=True, text=True, timeout=240)
        check(done.returncode in codes, f"{' '.join(words)}: exit code {done.returncode}: {done.stdout[-500:]} {done.stderr[-500:]}")

    client, peer = free_ports(2)
    member = Member(mainstay, MARKUP, client, peer, f"{MARKUP}=http://127.0.0.1:{peer}", folder, ["--data-dir", os.path.join(folder, "data")])
    member.start()
    try:
        wait_for("a leader", member.is_ready)
        run("bench", "--endpoints", member.url, "put", "--duration", "3s", "--html", files["put"])
        # A large value, so that something is found.
        member.put("k", "x" * 300_000)
        run("doctor", "--endpoints", member.url, "--for", "1s", "--html", files["doctor"], codes=(5, 6))
    finally:
        member.stop()
    run("bench", "compare", "--server", f"{MARKUP}={mainstay}", "--server", f"plain={mainstay}", "--responder", "--scale", "small",
        "--workload", "put-1k", "--html", files["compare"])
    return files


def opened(browser, path, **options):
    page = browser.page(**options)
    page.open(pathlib.Path(path).as_uri())
    page.wait("document.readyState === 'complete' && document.querySelector('main h1')", "the page")
    return page


def fits(page, width, name):
    found = page.js("document.documentElement.scrollWidth")
    wide = page.js("[...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll, pre, .unseen')).slice(0, 5).map((e) => e.outerHTML.slice(0, 160))")
    check(found <= width and not wide, f"{name} is {found} px wide at {width}: {wide}")


def whole(browser, name, path, axe, pictures):
    """The report is drawn, fits, complains of nothing and asks for nothing."""
    grounds = set()
    for scheme in ("light", "dark"):
        for width, height in SIZES:
            page = opened(browser, path, width=width, height=height, scheme=scheme)
            count = page.js("document.querySelectorAll('figure[data-chart]').length")
            page.wait(f"document.querySelectorAll('svg.plot :is(path.line[d], .span)').length >= {count}", "the charts")
            same(page.js("[...document.querySelectorAll('figure')].filter((f) => !f.querySelector('table tbody tr')).length"), 0, "charts without a table")
            same(page.js("document.querySelectorAll('details[open]').length"), 0, "tables that stayed open beside their charts")
            fits(page, width, name)
            grounds.add((scheme, page.js("getComputedStyle(document.documentElement).backgroundColor")))
            same(page.requests, [pathlib.Path(path).as_uri()], "requests")
            same(page.js("violations"), [], "violations of the policy")
            if pictures:
                with open(os.path.join(pictures, f"{name}-{scheme}-{width}.png"), "wb") as file:
                    file.write(page.picture(whole=True))
            if axe:
                same(violations(page, axe), [], "violations of WCAG A and AA")
            same(page.complaints, [], "complaints")
            page.close()
    same(len(grounds), 2, f"a ground for each theme: {grounds}")


def without_scripts(browser, name, path):
    """Without scripts all figures are there, in open tables."""
    page = opened(browser, path)
    charts = page.js("document.querySelectorAll('figure[data-chart]').length")
    page.call("Emulation.setScriptExecutionDisabled", {"value": True})
    page.open("about:blank")
    page.open(pathlib.Path(path).as_uri())
    page.wait("document.readyState === 'complete' && document.querySelector('main h1')", "the page")
    same(page.js("document.querySelectorAll('svg.plot').length"), 0, "charts")
    same(page.js("document.querySelectorAll('details[open] tbody tr').length >= document.querySelectorAll('details').length"), True, "rows")
    same(page.js("document.querySelectorAll('details[open]').length"), charts, "open tables")
    fits(page, 1280, name)
    page.close()


def markup_is_text(browser, name, path):
    page = opened(browser, path)
    check(page.js("document.querySelector('main').textContent").count(MARKUP) > 0, "the name is shown as it is")
    same(page.js("document.querySelectorAll('img, [onclick], main script').length"), 0, "elements that a name became")
    page.close()


def charts_are_read_and_zoomed(browser, name, path):
    """A chart tells its values at the cursor, by pointer and by keys; dragging shows a part, in all charts over the same time."""
    page = opened(browser, path)
    page.wait("document.querySelector('svg.plot path.line[d]')")
    plot = "document.querySelector('figure[data-chart=lines] svg.plot')"
    page.js(f"{plot}.scrollIntoView({{block: 'center'}})")
    box = page.js(f"(({{ x, y, width, height }}) => ({{ x, y, width, height }}))({plot}.getBoundingClientRect())")

    def mouse(kind, share, **more):
        page.call("Input.dispatchMouseEvent", {"type": kind, "x": box["x"] + share * box["width"], "y": box["y"] + box["height"] / 2, **more})

    mouse("mouseMoved", 0.5)
    page.wait("document.querySelector('figure[data-chart=lines] .readout').textContent !== ''", "what is at the pointer")
    page.js(f"{plot}.focus()")
    page.key("Home")
    first = page.js("document.querySelector('figure[data-chart=lines] tbody th').textContent")
    same(page.js("document.querySelector('figure[data-chart=lines] .readout').textContent"), first, "the first row at the first stop")
    value = page.js("document.querySelector('figure[data-chart=lines] tbody td').textContent")
    shown = page.js("document.querySelector('figure[data-chart=lines] .legend .reading').textContent")
    same(number_and_unit(shown), number_and_unit(value), "the value of the row, with its unit")
    if page.js("document.querySelector('figure[data-zooms][data-chart=lines]') !== null"):
        ticks = "[...document.querySelectorAll('figure[data-zooms]')].map((f) => f.querySelector('svg.plot .tick:last-of-type').textContent)"
        before = page.js(ticks)
        mouse("mousePressed", 0.1, button="left", buttons=1, clickCount=1)
        mouse("mouseMoved", 0.2, button="left", buttons=1)
        mouse("mouseMoved", 0.4, button="left", buttons=1)
        mouse("mouseReleased", 0.4, button="left", clickCount=1)
        page.wait("!document.querySelector('figure[data-zooms] button').hidden", "the way back")
        check(all(old != new for old, new in zip(before, page.js(ticks))), "all charts over time show the part")
        page.click("figure[data-zooms] button")
        same(page.js(ticks), before, "the whole run again")
    same(page.complaints, [], "complaints")
    page.close()


def number_and_unit(text):
    number, unit = text.replace(",", "").split("\u00a0")
    return float(number), unit


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mainstay", metavar="PATH", required=True)
    parser.add_argument("--timeline", metavar="FILE")
    parser.add_argument("--axe", metavar="FILE")
    parser.add_argument("--pictures", metavar="FOLDER")
    options = parser.parse_args()
    end_cleanly()
    if not find():
        print("SKIPPED reports: no chromium on the path (CHROMIUM names another)")
        print("0 passed, 0 failed")
        return 0
    axe = pathlib.Path(options.axe).read_text(encoding="utf-8") if options.axe else None
    passed = failed = 0
    with tempfile.TemporaryDirectory(prefix="reports-") as folder:
        files = reports(os.path.abspath(options.mainstay), folder)
        if options.timeline:
            files["timeline"] = os.path.abspath(options.timeline)
        else:
            print("SKIPPED torture's timeline: --timeline names none")
        browser = Browser()
        try:
            for name, path in files.items():
                tests = {"whole": lambda: whole(browser, name, path, axe, options.pictures), "without scripts": lambda: without_scripts(browser, name, path)}
                if name in ("compare", "doctor"):
                    tests["markup is text"] = lambda: markup_is_text(browser, name, path)
                if name != "doctor":
                    tests["read and zoomed"] = lambda: charts_are_read_and_zoomed(browser, name, path)
                for what, test in tests.items():
                    try:
                        test()
                        passed += 1
                        print(f"ok      {name}: {what}", flush=True)
                    except Exception as error:  # Whatever one does, the others are run.
                        failed += 1
                        known = isinstance(error, (Failed, BrowserError))
                        print(f"FAILED  {name}: {what}: {error if known else traceback.format_exc()}", flush=True)
        finally:
            browser.close()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
