"""What the members are busy with: prefixes, users and clients, named or withheld."""

import json
import subprocess

import sample
from clusters import Cluster, b64
from traffic import Client, Traffic
from world import add_users, check, log_in, same, test

HOSTILE = f"/{sample.MARKUP}/\"'\\{sample.RIGHT_TO_LEFT}/"
HOSTILE_SHOWN = f"/{sample.MARKUP}/\"'" + r"\\a\xe2\x80\xaegpj.exe/"
ROWS = "[...document.querySelectorAll('[aria-labelledby=heavy-%s] tbody tr')].map((row) => [...row.children].map((cell) => cell.innerText.trim()))"


def put(prefix, size=10):
    return lambda turn: ("kv/put", {"key": b64(f"{prefix}{turn % 50}"), "value": b64("x" * size)})


def busy(world):
    return world.get("busy", lambda: Cluster(world.options.mainstay))


@test
def hot_prefixes_and_clients_are_named(world):
    cluster = busy(world)
    for number in range(3):
        cluster[0].put(f"/hot/orders/{number}", "x")
    read = lambda turn: ("kv/range", {"key": b64(f"/hot/orders/{turn % 3}")})
    traffic = [Traffic(cluster[0], "127.0.0.11", read), Traffic(cluster[0], "127.0.0.12", put("/calm/things/", 50000), 20),
               Traffic(cluster[0], "127.0.0.13", put(HOSTILE), 100)]
    try:
        page = world.page(world.console("busy", cluster).url, "requests")
        rows = ROWS % "prefix"
        page.wait(f"({rows}).length >= 3 && ({rows})[0][0] === '/hot/orders/'", "the hot prefix before all others", 40)
        check(page.js(f"({rows})[0][1]").endswith("/s") and page.js(f"({rows})[0][2]").endswith("B/s") and page.js(f"({rows})[0][3]").endswith("s/s"), f"units: {page.js(rows)}")
        page.wait(f"({ROWS % 'client'})[0]?.[0] === '127.0.0.11'", "the busiest client")
        # A backslash and a letter that turns the line around are written as codes; markup is text.
        page.wait(f"({rows}).some((row) => row[0] === {json.dumps(HOSTILE_SHOWN)})", f"the prefix {HOSTILE_SHOWN}", 30)
        same(page.js("document.querySelectorAll('main img').length"), 0, "elements from names")
        page.click("button", "By bytes")
        page.wait(f"({rows})[0][0] === '/calm/things/'", "the prefix of large values first", 30)
        same(page.js("document.activeElement.innerText"), "By bytes", "the focus stays")
        page.click("[aria-labelledby=heavy-prefix] a", "/hot/orders/")
        page.wait_text("3 shown", ".listing")
        world.show(page, "overview")
        page.wait_text("Most requests are for /hot/orders/", ".problems", 40)
        page.wait_text("Most requests come from 127.0.0.11", ".problems")
        same([each.failure for each in traffic], [None] * 3, "failures of the clients")
    finally:
        for each in traffic:
            each.close()


@test
def amounts_that_may_be_too_high_say_so(world):
    cluster = busy(world)
    # More names than the lists have places for.
    subprocess.run([world.options.mainstay, "bench", "--endpoints", f"127.0.0.1:{cluster[0].port}", "--conns", "8", "--clients", "64", "put", "--total", "30000",
                    "--key-space-size", "1000000", "--val-size", "8"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)
    page = world.page(world.console("busy", cluster).url, "requests")
    page.wait_text("too high", "[aria-labelledby=heavy-prefix]", 30)
    page.wait("document.querySelectorAll('[aria-labelledby=heavy-prefix] tbody tr').length === 5")
    page.click("button", "Show more: Prefixes")
    page.wait("document.querySelectorAll('[aria-labelledby=heavy-prefix] tbody tr').length >= 20", "all names that are told")


@test
def names_are_withheld_from_all_but_root(world):
    def make():
        cluster = Cluster(world.options.mainstay)
        sample.fill_small(cluster[0])
        add_users(cluster[0])
        return cluster
    cluster = world.get("named", make)
    member = cluster[0]
    token = member.call("auth/authenticate", {"name": "reader", "password": "word"})["token"]
    client = Client(member, "127.0.0.14", token)
    for _ in range(1500):
        client.call("kv/range", {"key": b64("/config/motd")})
    client.close()
    page = world.page(world.console("named", cluster).url, "requests")
    page.wait_text("prefixes, users and keys are withheld", ".page-requests")
    page.wait_text("Withheld: only a user with the role root sees it", "[aria-labelledby=heavy-prefix]")
    page.wait_text("127.0.0.14", "[aria-labelledby=heavy-client]")
    text = page.text(".page-requests")
    check("/config/" not in text and "reader" not in text, f"no names: {text}")
    page.click("button", "Log in")
    log_in(page, "root", "secret")
    page.wait_text("/config/", "[aria-labelledby=heavy-prefix]")
    page.wait_text("reader", "[aria-labelledby=heavy-user]")
    check("withheld" not in page.text(".page-requests").lower(), "nothing is withheld from root")
    page.click("button", "Log out")
    page.wait_text("prefixes, users and keys are withheld", ".page-requests")
    check("/config/" not in page.text(".page-requests"), "what root saw is gone")
