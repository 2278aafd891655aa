"""Overview and charts: what members tell, drawn and judged."""

import re
import time

from clusters import Cluster, b64, wait_for
from traffic import Traffic
from world import check, console_of, same, settle, test


def only_the_machine(page):
    """Nothing is wrong, or only that this machine, which others use too, is slow."""
    told = "[...document.querySelectorAll('.problems li')].map((each) => each.querySelector('.rule')?.innerText ?? each.innerText)"
    page.wait(f"({told}).length > 0 && ({told}).every((each) => ['slow-disk', 'fsync-stall', 'slow-peer-link', 'cpu', 'leader-changes', 'slow-reads'].includes(each) || each.includes('No problems found'))",
              "a cluster without problems", 40)


@test
def overview_of_three_members(world):
    page = world.page(console_of(world, "three"))
    settle(page, "overview")
    page.wait_text("3 of 3 answer", ".page-overview")
    only_the_machine(page)

    def told():
        """The rows, once they agree with the cluster on who leads: it may change at any time, and the page asks now and then."""
        rows = page.js("[...document.querySelectorAll('.page-overview tbody tr')].map((row) => [...row.children].map((cell) => cell.innerText.trim()))")
        leader = world.three.leader().name
        agrees = [row[0].split()[0] for row in rows if row[2] == "leader"] == [leader] and leader in page.text(".facts")
        return rows if agrees and all("not reported" not in " ".join(row) for row in rows) else None

    rows = wait_for("the page tells all, and who leads", told)
    same(sorted(row[0].split() for row in rows), [[name, "zone", "north"] for name in ("m1", "m2", "m3")], "members and their zones")
    same(sorted(row[2] for row in rows), ["follower", "follower", "leader"], "roles")


@test
def problems_name_a_full_quota(world):
    cluster = world.get("full", lambda: Cluster(world.options.mainstay, flags=["--quota-backend-bytes=600000"]))
    for number in range(40):
        cluster[0].call("kv/put", {"key": b64(f"/fill/{number}"), "value": b64("x" * 20000)}, check=False)
    url = world.console("full", cluster).url
    page = world.page(url)
    page.wait_text("Alarm NOSPACE", ".problems", 30)
    same(page.js("document.querySelector('.problems li .state').innerText"), "error", "the worst comes first")
    same(page.js("document.querySelector('.problems .rule').innerText"), "alarm-nospace", "by the doctor's name")
    page.wait_text("Alarm NOSPACE of member m1", ".problems")
    world.show(page, "space")
    page.wait_text("Alarm NOSPACE of member m1", ".page-space")
    page.click("button", "Disarm the alarm")
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
    of = lambda share: f"[...[...document.querySelectorAll('.chart')].find((c) => c.querySelector('h3').innerText === 'Stages of requests, {share}').querySelectorAll('.legend li')].map((entry) => [entry.querySelector('.name').innerText, entry.querySelector('.key').getAttribute('class')])"
    # One request of 64 is measured.
    traffic = Traffic(world.three[0], "127.0.0.1", lambda turn: ("kv/put", {"key": b64("/charts/key"), "value": b64("v")}))
    try:
        page.wait(f"({of('p99')}).length > 3", "stages of some requests", 40)
    finally:
        traffic.close()
    colours = page.js(f"[{of('p50')}, {of('p99')}]")
    same(colours[0], colours[1], "colours of stages in both charts")
    check(len(colours[0]) > 3 and len({colour for _, colour in colours[0]}) == len(colours[0]), f"each stage has its own: {colours[0]}")
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
    time.sleep(4)
    polls = len([url for url in page.requests if url.endswith("/metrics")]) - before
    check(3 <= polls <= 3 * 3, f"at most one poll a member in two seconds: {polls} in 4 s of 3 members")
    page.js("Object.defineProperty(document, 'visibilityState', { get: () => 'hidden' }); document.dispatchEvent(new Event('visibilitychange'))")
    time.sleep(1.5)
    before = len(page.requests)
    time.sleep(3)
    same(len(page.requests) - before, 0, "requests while hidden")
