#!/usr/bin/env python3
"""Uses the web console as a person does, in a headless Chromium, against members that it starts.

usage: console.py --mainstay PATH [--etcd PATH] [--console PATH] [--axe FILE] [--only TEXT[,TEXT]] [--list]

`--console` is the program that serves the pages, by default that of `--mainstay`. `--axe` is axe-core's `axe.min.js`; without it the
package is fetched from npm's registry for the time of the run. Last line: "N passed, M failed"; exit status 1 if something failed, 2 if
the run was not possible. What cannot be run is named in a line that begins with SKIPPED.
"""

import argparse
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback

import sample
from browser import Browser, BrowserError, find
from clusters import Cluster, Console, b64, end_cleanly, wait_for

ASSETS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "crates", "console", "assets")
PAGES = ["overview", "charts", "keys", "watch", "leases", "members", "requests", "space", "users"]
AXE = "axe-core@4"
TESTS = []


def test(function):
    TESTS.append(function)
    return function


class Failed(Exception):
    """A check that did not hold."""


class Skipped(Exception):
    """A test that cannot be run here."""


def check(condition, what):
    if not condition:
        raise Failed(what)


def same(found, wanted, what):
    check(found == wanted, f"{what}: {found!r}, and not {wanted!r}")


class World:
    """Clusters and pages, made when they are first asked for."""

    def __init__(self, options):
        self.options = options
        self.browser = Browser()
        self.made = {}
        self.pages = []

    def get(self, name, make):
        if name not in self.made:
            self.made[name] = make()
        return self.made[name]

    def console(self, name, cluster):
        return self.get(f"console {name}", lambda: Console(self.options.console, cluster.endpoints))

    @property
    def small(self):
        """One member with some hundred keys, good and bad ones, and every request counted as slow."""
        def make():
            cluster = Cluster(self.options.mainstay, flags=["--warning-unary-request-duration=1us"])
            sample.fill_small(cluster[0])
            sample.fill_hostile(cluster[0])
            lease = cluster[0].call("lease/grant", {"TTL": "3600"})["ID"]
            for number in range(8):
                cluster[0].put(f"/session/{number}", "held", lease=lease)
            return cluster
        return self.get("small", make)

    @property
    def three(self):
        def make():
            cluster = Cluster(self.options.mainstay, 3)
            sample.fill_small(cluster[0])
            return cluster
        return self.get("three", make)

    @property
    def guarded(self):
        """One member with users: root, and reader who may read below /config/ and write below /config/own/."""
        def make():
            cluster = Cluster(self.options.mainstay, flags=["--auth-token-ttl=2"])
            sample.fill_small(cluster[0])
            member = cluster[0]
            member.put("/config/own/a", "mine")
            for name, password in (("root", "secret"), ("reader", "word")):
                member.call("auth/user/add", {"name": name, "password": password})
            member.call("auth/role/add", {"name": "root"})
            member.call("auth/user/grant", {"user": "root", "role": "root"})
            member.call("auth/role/add", {"name": "config"})
            for key, right in (("/config/", "READ"), ("/config/own/", "READWRITE")):
                end = key[:-1] + "0"
                member.call("auth/role/grant", {"name": "config", "perm": {"permType": right, "key": b64(key), "range_end": b64(end)}})
            member.call("auth/user/grant", {"user": "reader", "role": "config"})
            member.call("auth/enable")
            return cluster
        return self.get("guarded", make)

    def page(self, url, address="", **options):
        """A page of the console at an address such as `keys?prefix=/a/`."""
        page = self.browser.page(**options)
        self.pages.append(page)
        page.open(f"{url}#/{address}")
        page.wait("document.querySelector('main h1')", "the page")
        return page

    def show(self, page, address):
        page.js(f"location.hash = {json.dumps('#/' + address)}")

    def end_test(self):
        """Closes the pages of a test. None may have complained, and nothing planted may have run."""
        pages, self.pages = self.pages, []
        found = []
        for page in pages:
            try:
                found += page.complaints + (page.js("window.violations ?? []") or [])
                harmed = page.js("window.harmed ?? null")
                if harmed is not None:
                    found.append(f"a planted text was executed: {harmed}")
            finally:
                page.close()
        check(not found, f"the page complained: {found}")

    def close(self):
        self.browser.close()
        for each in reversed(self.made.values()):
            if hasattr(each, "close"):
                each.close()


def console_of(world, name):
    return world.console(name, getattr(world, name)).url


def settle(page, name):
    """Waits until a page shows what it is about."""
    ready = {
        "overview": "document.querySelectorAll('.page-overview tbody tr').length > 0 && !document.querySelector('.page-overview').innerText.includes('measuring')",
        "charts": "document.querySelectorAll('.plot:not(.hidden)').length > 8",
        "keys": "document.querySelectorAll('.page-keys tbody tr').length > 0",
        "watch": "document.querySelector('.watch-form')",
        "leases": "document.querySelectorAll('.page-leases tbody tr').length > 0 || document.querySelector('.page-leases .empty:not([hidden])')",
        "members": "document.querySelectorAll('.page-members tbody tr').length > 1",
        "requests": "document.querySelectorAll('.page-requests tbody tr').length > 0",
        "space": "document.querySelectorAll('.page-space tbody tr').length > 2",
        "users": "!/Looking|正在查询/.test(document.querySelector('.page-users').innerText)",
    }
    page.wait(f"document.querySelector('.page-{name}') && ({ready[name]})", f"page {name} with its data", 30)


# Overview and charts


@test
def overview_of_three_members(world):
    page = world.page(console_of(world, "three"))
    settle(page, "overview")
    page.wait_text("3 of 3 answer", ".page-overview")
    page.wait_text("Nothing is wrong")
    rows = page.js("[...document.querySelectorAll('.page-overview tbody tr')].map((row) => [...row.children].map((cell) => cell.innerText.trim()))")
    same(sorted(row[0] for row in rows), ["m1", "m2", "m3"], "members")
    same(sorted(row[2] for row in rows), ["follower", "follower", "leader"], "roles")
    leader = world.three.leader().name
    same([row[0] for row in rows if row[2] == "leader"], [leader], "leader")
    check(leader in page.text(".facts"), "the figures name the leader")
    check(all("not told" not in " ".join(row) for row in rows), f"all is told: {rows}")


@test
def problems_name_a_full_quota(world):
    cluster = world.get("full", lambda: Cluster(world.options.mainstay, flags=["--quota-backend-bytes=600000"]))
    for number in range(40):
        cluster[0].call("kv/put", {"key": b64(f"/fill/{number}"), "value": b64("x" * 20000)}, check=False)
    url = world.console("full", cluster).url
    page = world.page(url)
    page.wait_text("Alarm NOSPACE", ".problems", 30)
    same(page.js("document.querySelector('.problems li .state').innerText"), "error", "the worst comes first")
    world.show(page, "space")
    page.wait_text("Alarm NOSPACE of member m1", ".page-space")
    page.click("button", "Take back the alarm")
    page.wait("document.querySelector('dialog')")
    page.click("dialog button[type=submit]")
    page.wait("!document.querySelector('dialog')")


@test
def charts_have_lines_tables_and_summaries(world):
    page = world.page(console_of(world, "three"), "charts")
    for _ in range(120):
        world.three[0].put("/charts/key", "v")
        time.sleep(0.02)
    settle(page, "charts")
    page.wait("[...document.querySelectorAll('.chart')].find((c) => c.querySelector('h3').innerText === 'Sync of the log')?.querySelector('.plot:not(.hidden) path')", "the chart of syncs", 30)
    requests = "[...document.querySelectorAll('.chart')].find((c) => c.querySelector('h3').innerText === 'Requests')"
    label = page.wait(f"{requests}.querySelector('svg.plot').getAttribute('aria-label')")
    check(re.search(r"put: now .*/s, from .* to ", label), f"summary: {label}")
    page.js(f"{requests}.querySelector('button').click()")
    check(page.js(f"{requests}.querySelectorAll('.chart-table tbody tr').length") >= 2, "the chart has a table")
    check("/s" in page.js(f"{requests}.querySelector('.chart-table').innerText"), "its figures have units")
    memory = page.js("[...document.querySelectorAll('.chart')].find((c) => c.querySelector('h3').innerText === 'Memory').querySelector('.legend').innerText")
    check(all(name in memory for name in ("m1", "m2", "m3", "all")) and "MiB" in memory, f"memory of each and of all: {memory}")
    page.js("(() => { const s = document.querySelector('.page-charts select'); s.value = 'm2'; s.dispatchEvent(new Event('change')); })()")
    memory = page.js("[...document.querySelectorAll('.chart')].find((c) => c.querySelector('h3').innerText === 'Memory').querySelector('.legend').innerText")
    check("m2" in memory and "m1" not in memory, f"memory of one: {memory}")


@test
def nothing_is_asked_while_the_page_is_not_seen(world):
    page = world.page(console_of(world, "three"))
    settle(page, "overview")
    before = len([url for url in page.requests if url.endswith("/metrics")])
    time.sleep(6)
    polls = len([url for url in page.requests if url.endswith("/metrics")]) - before
    check(3 <= polls <= 4 * 3, f"at most one poll a member in two seconds: {polls} in 6 s of 3 members")
    page.js("Object.defineProperty(document, 'visibilityState', { get: () => 'hidden' }); document.dispatchEvent(new Event('visibilitychange'))")
    time.sleep(1.5)
    before = len(page.requests)
    time.sleep(5)
    same(len(page.requests) - before, 0, "requests while hidden")


# Keys


@test
def tree_is_walked_without_loading_the_keys(world):
    sample.fill_many(world.small[0], 20000, "/many", 1000)
    page = world.page(console_of(world, "small"), "keys?prefix=%2Fmany%2F")
    page.wait_text("00019/", ".listing")
    asked = [url for url in page.requests if url.endswith("kv/range")]
    check(len(asked) <= 60, f"20 folders of 1,000 keys in {len(asked)} ranges")
    page.click("button", "Count the keys below /many/00003/")
    page.wait_text("1,000 keys", ".listing")
    world.show(page, "keys?prefix=%2Fmany%2F00003%2F")
    page.wait_text("50 shown", ".listing")
    same(page.js("document.querySelectorAll('.listing tbody tr').length"), 50, "rows of a page")
    page.click(".listing > button", "Show more")
    page.wait("document.querySelectorAll('.listing tbody tr').length === 100", "the second page")
    same(page.js("[...document.querySelectorAll('.listing tbody tr a')].at(-1).innerText"), "0099", "the hundredth key")


@test
def path_of_one_folder_is_one_step(world):
    page = world.page(console_of(world, "small"), "keys")
    settle(page, "keys")
    page.click(".listing tbody a", "/")
    page.wait_text("registry/", ".listing")
    page.click(".listing tbody a", "registry/")
    page.wait_text("pods/", ".listing")
    check("namespaces/" in page.text(".listing"), "both kinds of objects are listed")
    page.key("Backspace")
    page.wait_text("registry/", ".listing tbody")


@test
def kubernetes_objects_are_read(world):
    page = world.page(console_of(world, "small"), "keys?key=%2Fregistry%2Fpods%2Fshop%2Fweb-0")
    page.wait_text('kind: "Pod"', ".value")
    text = page.text(".value")
    for wanted in ('apiVersion: "v1"', 'name: "web-0"', 'namespace: "shop"', "2026-01-01T00:00:00.000Z", '"app" = "web-0"', "registry.example/web:1.8"):
        check(wanted in text, f"{wanted} is in {text}")
    page.click("button", "Hex")
    page.wait_text("6b 38 73 00", ".value")


@test
def hostile_keys_are_shown_and_not_executed(world):
    page = world.page(console_of(world, "small"), "keys?prefix=%2Fhostile%2F")
    page.wait_text("binary", ".listing")
    text = page.text(".listing")
    for wanted in (sample.MARKUP, sample.LINK, r"a\xe2\x80\xaegpj.exe", r"\xff\xfe\x00binary", r"back\\slash", r"\x20spaces\x20", r"new\x0aline", r"\xe2\x80\x8bzero"):
        check(wanted in text, f"{wanted} is shown")
    # With "/" in it, this one is a folder of a folder.
    world.show(page, "keys?prefix=%2Fhostile%2F%3C%2Fscript%3E%3Cscript%3Ewindow.harmed%3D2%3C%2F")
    page.wait_text("script>", ".listing")
    for key in sample.HOSTILE_KEYS:
        raw = key if isinstance(key, bytes) else key.encode()
        address = page.js(f"""import('/assets/bytes.mjs').then((b) => new URLSearchParams({{ key: b.escapeBytes(b.fromBase64({json.dumps(b64(raw))})) }}).toString())""")
        world.show(page, f"keys?{address}")
        page.wait(f"document.querySelector('.detail .value')?.innerText.includes('onerror')", f"the value of {raw[:40]!r}")
        page.click("button", "History")
        page.wait("document.querySelector('.versions li')", "its history")
        world.show(page, f"watch?{address}")
        page.wait_text("Live", ".watch-state")
        world.small[0].put(raw, sample.SCRIPT + sample.MARKUP)
        page.wait("document.querySelector('.page-watch tbody tr')", "its event")
        world.small[0].put(raw, sample.MARKUP + sample.SCRIPT)
    page.js("new Promise((done) => setTimeout(done, 300))")
    same(page.js("document.querySelectorAll('main img, main script, main iframe').length"), 0, "elements from values")


@test
def markup_reaches_no_other_page(world):
    member = world.small[0]
    lease = member.call("lease/grant", {"TTL": "600"})["ID"]
    member.put(f"/hostile-lease/{sample.MARKUP}", "x", lease=lease)
    member.call("auth/role/add", {"name": sample.MARKUP}, check=False)
    member.call("auth/user/add", {"name": sample.SCRIPT, "password": "p"}, check=False)
    page = world.page(console_of(world, "small"), "leases")
    page.wait_text(sample.MARKUP, ".page-leases")
    world.show(page, "users")
    page.wait_text(sample.MARKUP, ".page-users")
    page.wait_text(sample.SCRIPT, ".page-users")
    world.show(page, "requests")
    settle(page, "requests")
    member.call("lease/revoke", {"ID": lease})


@test
def large_values_are_shown_in_part(world):
    page = world.page(console_of(world, "small"), "keys?key=%2Fhostile%2Flarge")
    page.wait_text("1.00\u00a0MiB", ".facts")
    check(len(page.js("document.querySelector('.value').textContent")) <= 16384, "a part is shown")
    page.click("button", "Show more of it")
    page.wait("document.querySelector('.value').textContent.length > 200000", "more of it")


@test
def bytes_survive_the_editor(world):
    member = world.small[0]
    raw = b"a\0b\r\nc\xff\\x41"
    page = world.page(console_of(world, "small"), "keys?key=%2Fhostile%2Fnul")
    page.wait_text(r"a\x00b\x0d", ".value")
    page.click("button", "Edit")
    same(page.js("document.querySelector('textarea').value"), "a\\x00b\\x0d\nc\\xff\\\\x41", "the editor")
    page.js("document.querySelector('textarea').setRangeText('!', 0, 0); document.querySelector('textarea').dispatchEvent(new Event('input'))")
    page.click(".detail button", "Save")
    page.wait("document.querySelector('dialog')")
    page.click("dialog button[type=submit]")
    wait_for("the new value", lambda: member.get("/hostile/nul") == b"!" + raw, 10)
    page.wait("!document.querySelector('textarea')")
    page.click("button", "Edit")
    page.click(".detail button", "Hex")
    check(page.js("document.querySelector('textarea').value").startswith("21 61 00 62 0d 0a"), "the same as digits")
    page.fill("textarea", raw.hex())
    page.click(".detail button", "Save")
    page.wait("document.querySelector('dialog')")
    page.click("dialog button[type=submit]")
    wait_for("the old value", lambda: member.get("/hostile/nul") == raw, 10)


@test
def swap_is_refused_when_somebody_was_faster(world):
    member = world.small[0]
    member.put("/swap", "first\nline\n")
    lease = member.call("lease/grant", {"TTL": "600"})["ID"]
    member.put("/swap", "first\nline\n", lease=lease)
    page = world.page(console_of(world, "small"), "keys?key=%2Fswap")
    page.wait_text("first", ".value")
    page.click("button", "Edit")
    page.fill("textarea", "mine\nline\n")
    member.put("/swap", "theirs\nline\n", lease=lease)
    page.click(".detail button", "Save")
    page.wait("document.querySelector('dialog .diff .plus')")
    page.click("dialog button[type=submit]")
    page.wait_text("somebody else changed the key", ".conflict")
    same(member.get("/swap"), b"theirs\nline\n", "the value of the other")
    check("theirs" in page.text(".conflict"), "what they changed is shown")
    same(page.js("document.querySelector('textarea').value"), "mine\nline\n", "what was typed")
    page.click("button", "Go on with my text")
    page.click(".detail button", "Save")
    page.wait("document.querySelector('dialog')")
    page.click("dialog button[type=submit]")
    wait_for("my value", lambda: member.get("/swap") == b"mine\nline\n", 10)
    kv = member.call("kv/range", {"key": b64("/swap")})["kvs"][0]
    same(kv.get("lease"), lease, "the lease")


@test
def drafts_are_kept_while_looking_elsewhere(world):
    page = world.page(console_of(world, "small"), "keys?key=%2Fconfig%2Fmotd")
    page.wait_text("Maintenance", ".value")
    page.click("button", "Edit")
    page.fill("textarea", "half a sen")
    world.show(page, "overview")
    page.wait("document.querySelector('.page-overview')")
    world.show(page, "keys?key=%2Fconfig%2Fmotd")
    page.wait("document.querySelector('textarea')?.value === 'half a sen'", "the draft")
    page.click(".detail button", "Cancel")
    page.wait_text("Maintenance", ".value")


@test
def key_is_created_and_deleted(world):
    member = world.small[0]
    page = world.page(console_of(world, "small"), "keys?prefix=%2Fmade%2F")
    page.wait_text("No keys begin so", ".listing")
    page.click("button", "New key")
    page.wait("document.querySelector('dialog input')")
    page.fill("dialog input", r"/made/\x00\xff")
    page.click("dialog button[type=submit]")
    page.wait_text("There is no such key", ".detail")
    page.click("button", "Create the key")
    page.fill("textarea", "value")
    page.click(".detail button", "Save")
    page.wait("document.querySelector('dialog')")
    page.click("dialog button[type=submit]")
    wait_for("the key", lambda: member.get(b"/made/\x00\xff") == b"value", 10)
    page.wait_text(r"\x00\xff", ".listing")
    page.wait_text("value", ".value")
    page.click(".detail button", "Delete")
    page.wait("document.querySelector('dialog')")
    page.click("dialog button[type=submit]")
    wait_for("its end", lambda: member.get(b"/made/\x00\xff") is None, 10)
    page.wait_text("No keys begin so", ".listing")


@test
def prefix_is_deleted_after_its_number_was_typed(world):
    member = world.small[0]
    for number in range(7):
        member.put(f"/gone/{number}", "x")
    page = world.page(console_of(world, "small"), "keys?prefix=%2Fgone%2F")
    page.wait_text("7 shown", ".listing")
    page.click("button", "Delete all of these keys")
    page.wait("document.querySelector('dialog')")
    check(page.js("document.querySelector('dialog button[type=submit]').disabled"), "the button waits for the number")
    page.fill("dialog input[name=word]", "7")
    page.click("dialog button[type=submit]")
    page.wait_text("No keys begin so", ".listing")
    same(member.get("/gone/3"), None, "a key of it")


@test
def history_goes_back_until_compaction(world):
    member = world.small[0]
    revisions = [int(member.put("/history", f"line one\nnumber {number}\nline three\n")["header"]["revision"]) for number in range(30)]
    page = world.page(console_of(world, "small"), "keys?key=%2Fhistory")
    page.wait_text("number 29", ".value")
    page.click("button", "History")
    page.wait("document.querySelectorAll('.versions > li').length === 11")
    check("number 29" in page.text(".versions .diff .plus") and "number 28" in page.text(".versions .diff .minus"), "the newest difference")
    for _ in range(2):
        page.click("button", "Older versions")
        page.wait("!document.querySelector('.detail section:last-child > button')?.disabled")
    page.wait_text("since the key was created", ".detail")
    same(page.js("document.querySelectorAll('.versions > li').length"), 30, "versions")
    member.call("kv/compaction", {"revision": str(revisions[20])})
    world.show(page, "keys")
    page.wait_text("Choose a key", ".detail")
    world.show(page, "keys?key=%2Fhistory")
    page.wait_text("number 29", ".value")
    page.click("button", "History")
    page.wait_text("Older versions were compacted", ".detail")


# Watch


@test
def watch_shows_events_pauses_and_filters(world):
    member = world.small[0]
    page = world.page(console_of(world, "small"), "watch?prefix=%2Fw%2F")
    page.wait_text("Live", ".watch-state")
    member.put("/w/a", "1")
    member.put("/w/b", "2")
    member.call("kv/deleterange", {"key": b64("/w/a")})
    page.wait("document.querySelectorAll('.page-watch tbody tr').length === 3")
    rows = page.js("[...document.querySelectorAll('.page-watch tbody tr')].map((row) => [...row.children].slice(1, 4).map((cell) => cell.innerText).join(' '))")
    same(rows, ["DELETE /w/a ", "CREATE /w/b 2", "CREATE /w/a 1"], "the events, newest first")
    page.click("button", "Pause")
    member.put("/w/c", "3")
    page.wait_text("1 came since the pause", ".page-watch")
    same(page.js("document.querySelectorAll('.page-watch tbody tr').length"), 3, "rows while paused")
    page.click("button", "Go on")
    page.wait("document.querySelectorAll('.page-watch tbody tr').length === 4")
    page.js("(() => { const f = [...document.querySelectorAll('.page-watch section input.escaped')][0]; f.value = '/w/b'; f.dispatchEvent(new Event('input')); })()")
    page.wait("document.querySelectorAll('.page-watch tbody tr').length === 1")


@test
def watch_says_what_it_dropped(world):
    page = world.page(console_of(world, "small"), "watch?prefix=%2Fflood%2F")
    page.wait_text("Live", ".watch-state")
    sample.fill_many(world.small[0], 3000, "/flood", 1000)
    page.wait_text("3,000 events received", ".page-watch")
    page.wait_text("2,000 of the oldest were dropped", ".page-watch")
    check(page.js("document.querySelectorAll('.page-watch tbody tr').length") <= 200, "rows are bounded")


@test
def watch_goes_on_when_its_member_dies(world):
    cluster = world.three
    page = world.page(console_of(world, "three"), "watch?prefix=%2Fdies%2F")
    page.wait_text("Live", ".watch-state")
    cluster[0].put("/dies/1", "before")
    page.wait("document.querySelectorAll('.page-watch tbody tr').length === 1")
    name = re.search(r"from (m\d)", page.text(".watch-state")).group(1)
    watched = next(member for member in cluster.members if member.name == name)
    others = [member for member in cluster.members if member is not watched]
    page.js("window.states = []; new MutationObserver(() => states.push(document.querySelector('.watch-state').innerText)).observe(document.querySelector('.watch-state'), { childList: true, characterData: true, subtree: true })")
    watched.kill()
    wait_for("a leader", others[0].is_ready)
    for _ in range(100):
        try:
            others[0].put("/dies/2", "meanwhile")
            break
        except (OSError, RuntimeError):
            time.sleep(0.2)
    page.wait("document.querySelectorAll('.page-watch tbody tr').length === 2", "the event after it died", 30)
    check(any("does not answer any more" in state and name in state for state in page.js("states")), f"it was said: {page.js('states')}")
    world.show(page, "overview")
    page.wait_text("Members that do not answer: 1", ".problems", 30)
    page.wait_text("2 of 3 voters answer (needed: 2): 0 more may fail", ".problems")
    watched.start()
    wait_for("the member", watched.is_ready)
    page.wait_text("Nothing is wrong", ".problems", 60)


@test
def watch_that_was_compacted_says_so(world):
    member = world.small[0]
    first = int(member.put("/old/1", "x")["header"]["revision"])
    for number in range(5):
        last = int(member.put("/old/1", f"x{number}")["header"]["revision"])
    member.call("kv/compaction", {"revision": str(last)})
    page = world.page(console_of(world, "small"), f"watch?prefix=%2Fold%2F&revision={first}")
    page.wait_text("are lost", ".page-watch")
    page.wait_text("Live", ".watch-state")
    member.put("/old/2", "new")
    page.wait_text("/old/2", ".page-watch tbody")


# Members, requests, space, leases, users


@test
def leader_is_moved(world):
    cluster = world.three
    page = world.page(console_of(world, "three"), "members")
    settle(page, "members")
    page.wait_text("leader", ".page-members tbody")
    before = cluster.leader()
    to = next(member.name for member in cluster.members if member is not before)
    page.click("button", f"Make leader: {to}")
    page.wait("document.querySelector('dialog')")
    page.click("dialog button[type=submit]")
    wait_for("the new leader", lambda: cluster.leader().name == to, 10)
    page.wait(f"[...document.querySelectorAll('.page-members tr')].find((row) => row.innerText.startsWith('{to}')).innerText.includes('leader')", "its role", 20)


@test
def members_are_added_and_removed_with_guard_rails(world):
    cluster = world.get("pair", lambda: Cluster(world.options.mainstay, 2))
    page = world.page(world.console("pair", cluster).url, "members")
    settle(page, "members")
    page.wait_text("2 of 2 voters answer (needed: 2): 0 more may fail", ".page-members")
    page.click("button", "Add a member")
    page.wait("document.querySelector('dialog')")
    page.fill("dialog input[name=urls]", "nonsense")
    page.click("dialog button[type=submit]")
    page.wait_text("A URL has the form", "dialog")
    page.fill("dialog input[name=urls]", "http://127.0.0.1:1")
    check("does not change the quorum" in page.text("dialog"), "the effect of a learner")
    # A cluster that has just begun refuses it until its members have been connected for some seconds.
    for _ in range(20):
        page.click("dialog button[type=submit]")
        page.js("new Promise((done) => setTimeout(done, 700))")
        if "--initial-cluster-state existing" in page.text("dialog"):
            break
    page.wait_text("--initial-cluster-state existing", "dialog")
    page.click("dialog button", "Close")
    page.wait_text("not started", ".page-members")
    # Removing a voter of two that answer would be safe for the quorum: 1 of 1.
    page.click("button", "Remove: m2")
    page.wait_text("Afterwards 1 of 1 voters answer (needed: 1): 0 more may fail", "dialog")
    check(page.js("document.querySelector('dialog button[type=submit]').disabled"), "its name has to be typed")
    page.click("dialog button", "Cancel")
    cluster[1].kill()
    page.wait_text("1 of 2 voters answer (needed: 2): the cluster cannot write", ".page-members", 30)
    cluster[1].start()
    wait_for("m2", cluster[1].is_ready)
    page.wait_text("2 of 2 voters answer", ".page-members", 60)
    learner = next(each for each in cluster[0].call("cluster/member/list")["members"] if each.get("isLearner"))
    page.click("button", f"Remove: {int(learner['ID']):x}")
    page.wait("document.querySelector('dialog')")
    page.fill("dialog input[name=word]", f"{int(learner['ID']):x}")
    page.click("dialog button[type=submit]")
    wait_for("its removal", lambda: len(cluster[0].call("cluster/member/list")["members"]) == 2, 10)


@test
def last_voters_are_not_removed(world):
    page = world.page(console_of(world, "small"), "members")
    settle(page, "members")
    page.click("button", "Remove: m1")
    page.wait_text("This is the last voter", "dialog")
    check(page.js("!document.querySelector('dialog button[type=submit]')"), "there is no button to do it")


@test
def slow_requests_have_stages(world):
    member = world.small[0]
    member.put("/slow", "x")
    member.call("kv/range", {"key": b64("/service/"), "range_end": b64("/service0")})
    page = world.page(console_of(world, "small"), "requests")
    settle(page, "requests")
    page.wait("document.querySelector('.stages rect')", "a bar of stages")
    label = page.js("[...document.querySelectorAll('.stages')].map((bar) => bar.getAttribute('aria-label')).find((text) => text.includes('fsync'))")
    check(label and re.search(r"fsync [\d.]+\s(µs|ms)", label), f"a write with its stages: {label}")
    check("KV/Put" in page.text(".page-requests") or "KV/Txn" in page.text(".page-requests"), "the methods")
    page.wait("[...document.querySelectorAll('.page-requests section')].at(-1).querySelectorAll('tbody tr').length > 0", "clients")
    check("127.0.0.1" in page.js("[...document.querySelectorAll('.page-requests section')].at(-1).innerText"), "the client's address")


@test
def space_is_shown_and_compacted(world):
    member = world.small[0]
    page = world.page(console_of(world, "small"), "space")
    settle(page, "space")
    page.wait_text("Revisions kept", ".page-space")
    check(re.search(r"[\d.]+\s%", page.text(".page-space")), "the share of the quota")
    revision = int(member.put("/space", "x")["header"]["revision"])
    page.click("button", "Compact")
    page.wait("document.querySelector('dialog')")
    page.fill("dialog input[name=revision]", "none")
    page.click("dialog button[type=submit]")
    page.wait_text("A revision is a whole number", "dialog")
    page.fill("dialog input[name=revision]", str(revision))
    page.click("dialog button[type=submit]")
    page.wait("!document.querySelector('dialog')")
    answer = member.call("kv/range", {"key": b64("/space"), "revision": str(revision - 1)}, check=False)
    check("compacted" in answer.get("message", ""), f"the member compacted: {answer}")
    page.wait("document.querySelector('.facts').innerText.includes(%s)" % json.dumps(f"{revision:,}"), "its new revision", 20)


@test
def leases_show_time_left_and_keys(world):
    member = world.small[0]
    lease = member.call("lease/grant", {"TTL": "500"})["ID"]
    member.put("/leased/one", "x", lease=lease)
    page = world.page(console_of(world, "small"), "leases")
    page.wait_text("/leased/one", ".page-leases")
    row = f"[...document.querySelectorAll('.page-leases tbody tr')].find((row) => row.innerText.includes('/leased/one'))"
    check(re.search(r"8\smin", page.js(f"{row}.innerText")), f"time left: {page.js(f'{row}.innerText')}")
    check("3 more keys" in page.text(".page-leases"), "a lease with many keys shows a part")
    page.js(f"{row}.querySelector('button').click()")
    page.wait("document.querySelector('dialog')")
    page.click("dialog button[type=submit]")
    wait_for("the end of its key", lambda: member.get("/leased/one") is None, 10)
    page.wait(f"!({row})", "the row is gone")


def log_in(page, name, password):
    page.wait("document.querySelector('dialog input[name=password]')", "the question for a password")
    page.fill("dialog input[name=name]", name)
    page.fill("dialog input[name=password]", password)
    page.click("dialog button[type=submit]")


@test
def users_and_grants_are_shown_and_changed(world):
    page = world.page(console_of(world, "guarded"), "users")
    log_in(page, "root", "wrong")
    page.wait_text("Name or password is wrong", "dialog")
    log_in(page, "root", "secret")
    page.wait_text("Users are switched on", ".page-users")
    page.wait_text("read and write", ".page-users")
    text = page.text(".page-users")
    check("read and write" in text and "all that begin with" in text and "/config/own/" in text, f"grants in words: {text}")
    page.click("button", "Add a user")
    page.wait("document.querySelector('dialog input[name=name]')")
    page.fill("dialog input[name=name]", "writer")
    page.fill("dialog input[name=password]", "pass")
    page.click("dialog button[type=submit]")
    page.wait_text("writer", ".page-users tbody")
    page.click("button", "Give a role: writer")
    page.wait("document.querySelector('dialog select')")
    page.js("document.querySelector('dialog select').value = 'config'")
    page.click("dialog button[type=submit]")
    page.wait("[...document.querySelectorAll('.page-users tr')].find((row) => row.innerText.startsWith('writer'))?.innerText.includes('config')", "the role")


@test
def refused_permission_is_said_plainly(world):
    page = world.page(console_of(world, "guarded"), "keys?prefix=%2Fconfig%2F")
    log_in(page, "reader", "word")
    page.wait_text("motd", ".listing")
    world.show(page, "keys?prefix=%2Fconfig%2F&key=%2Fconfig%2Fmotd")
    page.wait_text("Maintenance", ".value")
    page.click("button", "Edit")
    page.fill("textarea", "changed")
    page.click(".detail button", "Save")
    page.wait("document.querySelector('dialog')")
    page.click("dialog button[type=submit]")
    page.wait_text("User reader may not do this", "dialog")
    page.click("dialog button", "Cancel")
    same(page.js("document.querySelector('textarea').value"), "changed", "what was typed")
    page.click(".detail button", "Cancel")
    world.show(page, "keys?prefix=%2Fregistry%2F")
    page.wait_text("User reader may not do this", ".listing")


@test
def ended_session_asks_again_and_loses_nothing(world):
    page = world.page(console_of(world, "guarded"), "keys?prefix=%2Fconfig%2Fown%2F&key=%2Fconfig%2Fown%2Fa")
    log_in(page, "reader", "word")
    page.wait_text("mine", ".value")
    page.click("button", "Edit")
    page.fill("textarea", "typed before the end")
    # The member forgets tokens that were not used for two seconds.
    page.js("Object.defineProperty(document, 'visibilityState', { get: () => 'hidden', configurable: true }); document.dispatchEvent(new Event('visibilitychange'))")
    time.sleep(5)
    page.click(".detail button", "Save")
    page.wait("document.querySelector('dialog')")
    page.click("dialog button[type=submit]")
    page.wait_text("The session has ended", "dialog:last-of-type")
    page.fill("dialog:last-of-type input[name=password]", "word")
    page.click("dialog:last-of-type button[type=submit]")
    page.wait_text("typed before the end", ".value")
    kept = page.js("JSON.stringify([Object.entries(localStorage), Object.entries(sessionStorage), document.cookie])")
    check("word" not in kept and "reader" not in kept and json.loads(kept)[2] == "", f"nothing of the session is stored: {kept}")


# Looks, languages, keyboards


@test
def both_languages_have_all_texts(world):
    page = world.page(console_of(world, "small"))
    english, chinese = (page.js(f"import('/assets/texts-{name}.mjs').then((module) => module.TEXTS)") for name in ("en", "zh"))
    same(sorted(english), sorted(chinese), "names of texts")
    holes = [name for name in english if set(re.findall(r"\{\w+\}", english[name])) != set(re.findall(r"\{\w+\}", chinese[name]))]
    same(holes, [], "texts with other values")
    same([name for name, text in chinese.items() if text.strip() == ""], [], "empty texts")
    used = set()
    for path in glob.glob(os.path.join(ASSETS, "*.mjs")):
        with open(path, encoding="utf-8") as file:
            used.update(re.findall(r"\bt\('(\w+)'", file.read()))
    same(sorted(used - set(english)), [], "texts that are used and not there")


@test
def browser_language_and_switch_decide(world):
    page = world.page(console_of(world, "small"), language="zh-CN")
    page.wait_text("概览")
    same(page.js("document.documentElement.lang"), "zh-CN", "lang")
    page.js("(() => { const s = [...document.querySelectorAll('.settings select')][0]; s.value = 'en'; s.dispatchEvent(new Event('change')); })()")
    page.wait_text("Overview")
    same(page.js("document.documentElement.lang"), "en", "lang")


@test
def every_page_fits_a_phone(world):
    for language in ("en-US", "zh-CN"):
        page = world.page(console_of(world, "small"), width=360, height=720, language=language)
        for name in PAGES:
            world.show(page, name)
            settle(page, name)
            width = page.js("document.documentElement.scrollWidth")
            wide = page.js("[...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > 361 && !e.closest('.scroll, pre, .diff, .unseen')).slice(0, 5).map((e) => e.outerHTML.slice(0, 120))")
            check(width <= 360 and not wide, f"{name} in {language} is {width} px wide: {wide}")
        for address in ("keys?key=%2Fconfig%2Fapp", "keys?prefix=%2Fhostile%2F", "watch?prefix=%2F"):
            world.show(page, address)
            page.js("new Promise((done) => setTimeout(done, 600))")
            width = page.js("document.documentElement.scrollWidth")
            check(width <= 360, f"{address} is {width} px wide")


@test
def themes_follow_the_system_and_the_switch(world):
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    page = world.page(console_of(world, "small"), scheme="dark")
    dark = page.js(ground)
    page.scheme("light")
    light = page.js(ground)
    check(dark != light, "the system's theme")
    page.js("(() => { const s = [...document.querySelectorAll('.settings select')][1]; s.value = 'dark'; s.dispatchEvent(new Event('change')); })()")
    same(page.js(ground), dark, "the switch")


@test
def keyboard_alone_reaches_everything(world):
    page = world.page(console_of(world, "small"))
    settle(page, "overview")
    page.js("document.activeElement.blur()")
    page.key("Tab")
    same(page.js("document.activeElement.className"), "skip", "the first stop is the link to the content")
    page.key("Enter")
    same(page.js("document.activeElement.id"), "main", "it leads there")
    page.key("?")
    page.wait("document.querySelector('dialog[open]')", "the list of shortcuts")
    page.key("Escape")
    page.wait("!document.querySelector('dialog')")
    for letter, name in zip("ockwlmrsu", PAGES):
        page.key("g")
        page.key(letter)
        page.wait(f"document.querySelector('.page-{name}')", f"page {name}")
        same(page.js("document.activeElement.tagName"), "H1", f"the focus on {name}")
    page.key("g")
    page.key("k")
    page.wait("document.querySelectorAll('.listing tbody a').length > 0")
    page.js("document.querySelector('main h1').focus()")
    page.key("/")
    same(page.js("document.activeElement.matches('.keys-bar input')"), True, "the field for a key")
    page.js("document.activeElement.value = ''")
    page.type("/config/")
    page.key("Enter")
    page.wait_text("motd", ".listing")
    for _ in range(20):
        page.key("Tab")
        if page.js("document.activeElement.closest('.listing tbody') !== null"):
            break
    first = page.js("document.activeElement.innerText")
    page.key("ArrowDown")
    second = page.js("document.activeElement.innerText")
    check(first != second and page.js("document.activeElement.closest('tbody') !== null"), f"rows are walked: {first}, {second}")
    page.key("End")
    page.key("Home")
    page.key("Enter")
    page.wait("document.querySelector('.detail .value')", "the chosen key")
    same(page.js("getComputedStyle(document.activeElement).outlineStyle !== 'none' || document.activeElement.tagName"), True, "the focus can be seen")


@test
def single_key_shortcuts_can_be_switched_off(world):
    page = world.page(console_of(world, "small"))
    page.key("?")
    page.wait("document.querySelector('dialog input[type=checkbox]')")
    page.click("dialog input[type=checkbox]")
    page.key("Escape")
    page.wait("!document.querySelector('dialog')")
    page.key("g")
    page.key("k")
    page.js("new Promise((done) => setTimeout(done, 300))")
    check(page.js("!document.querySelector('.page-keys')"), "the page stays")


@test
def clock_that_is_off_is_said(world):
    page = world.browser.page()
    world.pages.append(page)
    page.call("Page.addScriptToEvaluateOnNewDocument", {"source": "const now = Date.now; Date.now = () => now() + 7200000;"})
    page.open(console_of(world, "small"))
    page.wait_text("The clock of this browser is 2\u00a0h", "body")


@test
def lost_server_is_said_and_found_again(world):
    console = Console(world.options.console, world.small.endpoints)
    try:
        page = world.page(console.url)
        settle(page, "overview")
        console.kill()
        page.wait_text("The console's server does not answer", "body", 40)
        console.start()
        page.wait("document.querySelector('.banner').hidden", "the end of the message", 60)
        page.wait_text("1 of 1 answer", ".page-overview", 60)
    finally:
        console.close()


def axe_source(world):
    def make():
        if world.options.axe:
            with open(world.options.axe, encoding="utf-8") as file:
                return file.read()
        with tempfile.TemporaryDirectory() as folder:
            try:
                subprocess.run(["npm", "pack", AXE], cwd=folder, check=True, capture_output=True, timeout=120)
                [archive] = glob.glob(os.path.join(folder, "*.tgz"))
                subprocess.run(["tar", "xzf", archive, "package/axe.min.js"], cwd=folder, check=True, capture_output=True)
            except (OSError, subprocess.SubprocessError, ValueError) as error:
                raise Skipped(f"axe-core cannot be had ({error}); give its file with --axe") from error
            with open(os.path.join(folder, "package", "axe.min.js"), encoding="utf-8") as file:
                return file.read()
    return world.get("axe", make)


def violations(page, source):
    if not page.js("typeof axe !== 'undefined'"):
        page.js(f"{source}; 1")
    found = page.js("""axe.run(document, { runOnly: { type: 'tag', values: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'] } })
        .then((result) => result.violations.map((each) => each.id + ': ' + each.nodes.slice(0, 3).map((node) => node.html.slice(0, 160) + ' ' + node.failureSummary.slice(0, 240)).join(' | ')))""")
    return found


@test
def accessible_by_axe(world):
    source = axe_source(world)
    found = []
    for replicas in (2, 3):
        world.small[0].put("/config/app", json.dumps({"replicas": replicas, "image": "web:1.8"}))
    for scheme in ("light", "dark"):
        page = world.page(console_of(world, "small"), scheme=scheme)
        for name in PAGES:
            world.show(page, name)
            settle(page, name)
            found += [f"{name}, {scheme}: {each}" for each in violations(page, source)]
        world.show(page, "keys?prefix=%2Fconfig%2F&key=%2Fconfig%2Fapp")
        page.wait_text("replicas", ".value")
        page.click("button", "History")
        page.wait("document.querySelector('.versions .diff')")
        found += [f"a key, {scheme}: {each}" for each in violations(page, source)]
        page.click("button", "Edit")
        found += [f"the editor, {scheme}: {each}" for each in violations(page, source)]
        page.fill("textarea", '{"replicas": 4}')
        page.click(".detail button", "Save")
        page.wait("document.querySelector('dialog')")
        found += [f"a question, {scheme}: {each}" for each in violations(page, source)]
        page.key("Escape")
        page.click(".detail button", "Cancel")
        world.show(page, "watch?prefix=%2Fconfig%2F&revision=2")
        page.wait("document.querySelector('.page-watch tbody tr') || document.querySelector('.page-watch .problem').innerText")
        found += [f"a watch, {scheme}: {each}" for each in violations(page, source)]
    page = world.page(console_of(world, "small"), width=360, height=720)
    page.click("button.menu")
    found += [f"the menu, phone: {each}" for each in violations(page, source)]
    same(found, [], "violations of WCAG A and AA")


@test
def members_of_etcd_are_shown_as_far_as_they_tell(world):
    if not world.options.etcd:
        raise Skipped("no etcd (--etcd)")
    cluster = world.get("etcd", lambda: Cluster(world.options.etcd, 1))
    sample.fill_small(cluster[0])
    page = world.page(world.console("etcd", cluster).url)
    settle(page, "overview")
    page.wait_text("1 of 1 answer", ".page-overview")
    world.show(page, "space")
    page.wait_text("this member does not tell", ".page-space")
    world.show(page, "charts")
    page.wait_text("The members do not tell.", ".page-charts", 40)
    world.show(page, "keys?key=%2Fconfig%2Fapp")
    page.wait_text("replicas", ".value")
    page.click("button", "History")
    page.wait_text("since the key was created", ".detail")
    page.click("button", "Edit")
    page.fill("textarea", "swapped")
    page.click(".detail button", "Save")
    page.wait("document.querySelector('dialog')")
    page.click("dialog button[type=submit]")
    wait_for("the value", lambda: cluster[0].get("/config/app") == b"swapped", 10)
    world.show(page, "watch?prefix=%2Fe%2F")
    page.wait_text("Live", ".watch-state")
    cluster[0].put("/e/1", "x")
    page.wait_text("/e/1", ".page-watch tbody")
    world.show(page, "requests")
    page.wait_text("does not tell", ".page-requests")
    world.show(page, "space")
    page.wait_text("Defragment", ".page-space")
    world.show(page, "members")
    page.wait_text("leader", ".page-members tbody")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mainstay", metavar="PATH")
    parser.add_argument("--etcd", metavar="PATH")
    parser.add_argument("--console", metavar="PATH")
    parser.add_argument("--axe", metavar="FILE")
    parser.add_argument("--only", metavar="TEXT[,TEXT]", default="")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    end_cleanly()
    if options.list:
        print("\n".join(each.__name__ for each in TESTS))
        return 0
    if not options.mainstay:
        parser.error("--mainstay is needed")
    options.console = options.console or options.mainstay
    if not find():
        print("SKIPPED console: no chromium on the path (CHROMIUM names another)")
        print("0 passed, 0 failed")
        return 0
    passed = failed = 0
    world = World(options)
    try:
        for each in TESTS:
            if not any(part in each.__name__ for part in options.only.split(",")):
                continue
            began = time.monotonic()
            try:
                each(world)
                world.end_test()
                passed += 1
                print(f"ok      {each.__name__} ({time.monotonic() - began:.1f} s)", flush=True)
            except Skipped as why:
                print(f"SKIPPED {each.__name__}: {why}", flush=True)
            except Exception as error:  # Whatever one test does, the others are run.
                failed += 1
                known = isinstance(error, (Failed, BrowserError))
                print(f"FAILED  {each.__name__}: {error if known else traceback.format_exc()}", flush=True)
                complaints = [text for page in world.pages for text in page.complaints]
                if complaints:
                    print(f"        the page complained: {complaints}", flush=True)
                try:
                    world.end_test()
                except Exception:  # It has failed already.
                    pass
    finally:
        world.close()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
