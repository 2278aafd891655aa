#!/usr/bin/env python3
"""Plants three problems in real members, and finds who causes each through the console alone: docs/console-session.md.

usage: session.py --mainstay PATH [--console PATH] [--only TEXT] [--pictures FOLDER]

For each: three members, clients from addresses of their own, one of which means trouble. Then the console is opened at its first page, and
nothing but what is to be seen there is read, and followed where the page itself says to go on. Told are the seconds from opening the page
until the culprit's name stood on the screen. Exit status 1 if a page did not tell, or told it after more than a minute.

`--pictures` takes a picture of each step that shows something else into a folder; it needs Pillow, which makes the files small.
"""

import argparse
import http.client
import os
import sys
import time
import traceback

from browser import Browser, BrowserError, find
from clusters import Cluster, Console, b64, end_cleanly, wait_for
from pictures import small
from traffic import DeafWatchers, Traffic

SECONDS_MAX = 60
QUOTA = 24 << 20


class Session:
    """One look at the console: steps, each of which waits for what a person would read, in the part of the page that is on the screen."""

    def __init__(self, browser, url, name, pictures):
        self.page = browser.page(width=1280, height=800)
        self.name, self.pictures, self.steps, self.last = name, pictures, 0, None
        self.began = time.monotonic()
        self.page.open(url)
        self.page.wait("document.querySelector('main h1')", "the first page")

    @property
    def seconds(self):
        return time.monotonic() - self.began

    def read(self, *texts, within="main"):
        """Waits until an element on the screen holds all of these texts, and has its picture taken."""
        of = f"[...document.querySelectorAll({within!r})]"
        is_there = f"{of}.find((each) => each.getClientRects().length > 0 && {list(texts)!r}.every((text) => each.innerText.replaceAll('\\u00a0', ' ').includes(text)))"
        left = max(1, SECONDS_MAX - self.seconds)
        self.page.wait(is_there, f"{' and '.join(texts)} in {within}", left)
        # A person scrolls to what is below the edge.
        self.page.js(f"((found) => found.getBoundingClientRect().bottom > innerHeight && found.scrollIntoView({{ block: 'center' }}))({is_there})")
        box = self.page.js(f"((box) => [box.top, box.bottom, innerHeight])({is_there}.getBoundingClientRect())")
        if not (box[0] < box[2] and box[1] > 0):
            raise BrowserError(f"{texts} is not on the screen: {box}")
        print(f"  {self.seconds:5.1f} s  {within}: {', '.join(texts)}", flush=True)
        self.picture()

    def follow(self, problem, page):
        """Goes where the problem's own link leads."""
        self.page.click(".problems a", f"See {page}: {problem}")
        self.page.wait(f"document.querySelector('.page-{page.lower()}')", f"the page {page}")

    def picture(self):
        self.steps += 1
        if self.pictures:
            seen_after = self.seconds
            data = small(self.page.picture())
            if data == self.last:
                self.steps -= 1
            self.last = data
            with open(os.path.join(self.pictures, f"session-{self.name}-{self.steps}.png"), "wb") as file:
                file.write(data)
            # A picture is no part of the search.
            self.began += self.seconds - seen_after

    def close(self):
        complaints = self.page.complaints + (self.page.js("window.violations ?? []") or [])
        self.page.close()
        if complaints:
            raise BrowserError(f"the page complained: {complaints}")


def calm(cluster):
    """Clients as any cluster has them."""
    return [
        Traffic(cluster[0], "127.0.0.11", lambda turn: ("kv/put", {"key": b64(f"/service/web/{turn % 40}"), "value": b64("10.0.0.1:8080")}), 15),
        Traffic(cluster[1], "127.0.0.12", lambda turn: ("kv/range", {"key": b64(f"/service/web/{turn % 40}")}), 20),
        Traffic(cluster[2], "127.0.0.13", lambda turn: ("kv/put", {"key": b64(f"/config/app/{turn % 5}"), "value": b64("on")}), 10),
    ]


def metric(member, name):
    """A metric without labels."""
    connection = http.client.HTTPConnection("127.0.0.1", member.port, timeout=20)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()
    return next((float(line.split()[-1]) for line in lines if line.startswith(f"{name} ")), 0.0)


def plant_slow_client(cluster):
    """127.0.0.31 watches at m2 and never reads; 127.0.0.14 writes what it watches."""
    watch = {"key": b64("/orders/"), "range_end": b64("/orders0")}
    deaf = DeafWatchers(cluster[1], "127.0.0.31", watch, 3)
    writer = Traffic(cluster[0], "127.0.0.14", lambda turn: ("kv/put", {"key": b64(f"/orders/{turn % 20}"), "value": b64("x" * 60000)}), 100)
    wait_for("watches that are behind", lambda: metric(cluster[1], "etcd_debugging_mvcc_slow_watcher_total") >= 3, 90)
    return [deaf, writer]


def find_slow_client(session):
    session.read("Watches do not keep up", "m2: 3 watches have fallen behind", "127.0.0.31: 3 of its 3 watches", within=".problems li")
    session.follow("Watches do not keep up", "Requests")
    session.read("127.0.0.31", "m2", within="[aria-labelledby=heavyClients-title] tbody tr:first-child")


def plant_hot_prefix(cluster):
    """127.0.0.41 and 42 ask for the same few keys without a pause."""
    hot = lambda turn: ("kv/range", {"key": b64(f"/sessions/hot/{turn % 3}")})
    clients = [Traffic(member, address, hot) for member, address in ((cluster[0], "127.0.0.41"), (cluster[1], "127.0.0.42"))]
    wait_for("some thousands of requests", lambda: sum(client.done for client in clients) > 12000, 90)
    return clients


def find_hot_prefix(session):
    session.read("Most requests are for /sessions/hot/", within=".problems li")
    session.follow("Most requests are for /sessions/hot/", "Requests")
    session.read("/sessions/hot/", within="[aria-labelledby=heavy-prefix] tbody tr:first-child")
    session.read("127.0.0.41", "127.0.0.42", within="[aria-labelledby=heavy-client] tbody")


def plant_full_quota(cluster):
    """127.0.0.51 writes a log into the cluster until its quota is used up, and goes on to try."""
    def fill(turn):
        return "kv/put", {"key": b64(f"/logs/billing/{turn:06}"), "value": b64("x" * 50000)}

    writer = Traffic(cluster[0], "127.0.0.51", fill, 300, stubborn=True)
    wait_for("the alarm", lambda: cluster[0].call("maintenance/alarm", {"action": "GET"}).get("alarms"), 120)
    return [writer]


def find_full_quota(session):
    session.read("Alarm NOSPACE: the quota is used up", "Alarm NOSPACE of member m1", "of 24.0 MiB", within=".problems li")
    session.read("Most bytes are read and written under /logs/billing/", within=".problems li")
    session.follow("Most bytes are read and written under /logs/billing/", "Requests")
    session.page.click("button", "By bytes")
    session.read("/logs/billing/", within="[aria-labelledby=heavy-prefix] tbody tr:first-child")
    session.read("127.0.0.51", within="[aria-labelledby=heavy-client] tbody tr:first-child")


# Name, what is planted, how it is found, flags of the members.
CASES = [
    ("slow-client", plant_slow_client, find_slow_client, []),
    ("hot-prefix", plant_hot_prefix, find_hot_prefix, []),
    ("full-quota", plant_full_quota, find_full_quota, [f"--quota-backend-bytes={QUOTA}"]),
]


def run(options, browser, name, plant, look, flags):
    """Plants a problem, looks for it, and returns the seconds that it took."""
    cluster = Cluster(options.mainstay, 3, flags)
    opened = []
    try:
        opened += calm(cluster)
        opened += plant(cluster)
        console = Console(options.console or options.mainstay, cluster.endpoints)
        opened.append(console)
        print(f"{name}: {plant.__doc__}", flush=True)
        session = Session(browser, console.url, name, options.pictures)
        opened.append(session)
        look(session)
        return session.seconds
    finally:
        for each in reversed(opened):
            each.close()
        cluster.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mainstay", metavar="PATH", required=True)
    parser.add_argument("--console", metavar="PATH")
    parser.add_argument("--only", metavar="TEXT", default="")
    parser.add_argument("--pictures", metavar="FOLDER")
    options = parser.parse_args()
    end_cleanly()
    if not find():
        print("SKIPPED session: no chromium on the path (CHROMIUM names another)")
        print("0 passed, 0 failed")
        return 0
    passed = failed = 0
    browser = Browser()
    try:
        for name, plant, look, flags in CASES:
            if options.only not in name:
                continue
            try:
                seconds = run(options, browser, name, plant, look, flags)
                passed += 1
                print(f"ok      {name}: the culprit's name after {seconds:.1f} s", flush=True)
            except Exception as error:  # Whatever one case does, the others are run.
                failed += 1
                print(f"FAILED  {name}: {error if isinstance(error, BrowserError) else traceback.format_exc()}", flush=True)
    finally:
        browser.close()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
