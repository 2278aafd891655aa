"""What all tests share: members with data, pages, and what is checked after each test."""

import json
import os

import sample
from browser import Browser
from clusters import Cluster, Console, b64

ASSETS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "crates", "console", "assets")
PAGES = ["overview", "charts", "keys", "watch", "leases", "members", "requests", "space", "users"]
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


def add_users(member):
    """Switches users on: root, and reader who may read below /config/ and write below /config/own/."""
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
            cluster = Cluster(self.options.mainstay, 3, ["--zone=north"])
            sample.fill_small(cluster[0])
            return cluster
        return self.get("three", make)

    @property
    def guarded(self):
        """One member with users, who are forgotten after two seconds."""
        def make():
            cluster = Cluster(self.options.mainstay, flags=["--auth-token-ttl=2"])
            sample.fill_small(cluster[0])
            member = cluster[0]
            member.put("/config/own/a", "mine")
            add_users(member)
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


def log_in(page, name, password):
    page.wait("document.querySelector('dialog input[name=password]')", "the question for a password")
    page.fill("dialog input[name=name]", name)
    page.fill("dialog input[name=password]", password)
    page.click("dialog button[type=submit]")
