"""Members, requests, space, leases, users."""

import json
import re
import time

from clusters import Cluster, b64, wait_for
from world import check, console_of, log_in, same, settle, test


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
    page.wait("/[\\d.]+\\s%/.test(document.querySelector('.page-space').innerText)", "the share of the quota")
    log = "[...document.querySelectorAll('[aria-labelledby=log-title] tbody td')].slice(1, 4).map((cell) => cell.innerText)"
    page.wait(f"/^[1-9]/.test(({log})[0]) && ({log}).slice(1).every((cell) => /[KM]iB$/.test(cell))", "segments of the log and their bytes")
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


@test
def users_and_grants_are_shown_and_changed(world):
    page = world.page(console_of(world, "guarded"), "users")
    log_in(page, "root", "wrong")
    page.wait_text("Wrong name or password", "dialog")
    log_in(page, "root", "secret")
    page.wait_text("Authentication is on", ".page-users")
    page.wait_text("read and write", ".page-users")
    text = page.text(".page-users")
    check("read and write" in text and "all keys that start with" in text and "/config/own/" in text, f"grants in words: {text}")
    page.click("button", "Add a user")
    page.wait("document.querySelector('dialog input[name=name]')")
    page.fill("dialog input[name=name]", "writer")
    page.fill("dialog input[name=password]", "pass")
    page.click("dialog button[type=submit]")
    page.wait_text("writer", ".page-users tbody")
    page.click("button", "Grant a role: writer")
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
