"""Watches: events, bounds, a member that dies meanwhile."""

import re
import time

import sample
from clusters import b64, wait_for
from world import check, console_of, same, test


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
    page.wait_text("1 received since the pause", ".page-watch")
    same(page.js("document.querySelectorAll('.page-watch tbody tr').length"), 3, "rows while paused")
    page.click("button", "Continue")
    page.wait("document.querySelectorAll('.page-watch tbody tr').length === 4")
    page.js("(() => { const f = [...document.querySelectorAll('.page-watch section input.escaped')][0]; f.value = '/w/b'; f.dispatchEvent(new Event('input')); })()")
    page.wait("document.querySelectorAll('.page-watch tbody tr').length === 1")


@test
def watch_says_what_it_dropped(world):
    page = world.page(console_of(world, "small"), "watch?prefix=%2Fflood%2F")
    page.wait_text("Live", ".watch-state")
    sample.fill_many(world.small[0], 3000, "/flood", 1000)
    page.wait_text("3,000 events received", ".page-watch")
    page.wait_text("The oldest 2,000 were dropped", ".page-watch")
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
    check(any("no longer answers" in state and name in state for state in page.js("states")), f"it was said: {page.js('states')}")
    world.show(page, "overview")
    page.wait_text("Members that do not answer: 1", ".problems", 30)
    page.wait_text("2 of 3 voters answer (needed: 2): 0 more may fail", ".problems")
    watched.start()
    wait_for("the member", watched.is_ready)
    page.wait("!document.querySelector('.problems').innerText.includes('do not answer')", "the end of the problem", 60)


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
