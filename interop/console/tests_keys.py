"""Keys: the tree, values, history, changes."""

import json

import sample
from clusters import b64, wait_for
from world import check, console_of, same, settle, test


@test
def tree_is_walked_without_loading_the_keys(world):
    sample.fill_many(world.small[0], 20000, "/many", 1000)
    page = world.page(console_of(world, "small"), "keys?prefix=%2Fmany%2F")
    page.wait_text("00019/", ".listing")
    asked = [url for url in page.requests if url.endswith("kv/range")]
    check(len(asked) <= 60, f"20 folders of 1,000 keys in {len(asked)} ranges")
    page.click("button", "Count the keys under /many/00003/")
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
    page.wait_text("someone else changed the key", ".conflict")
    same(member.get("/swap"), b"theirs\nline\n", "the value of the other")
    check("theirs" in page.text(".conflict"), "what they changed is shown")
    same(page.js("document.querySelector('textarea').value"), "mine\nline\n", "what was typed")
    page.click("button", "Continue with my text")
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
    page.wait_text("No keys start with this prefix", ".listing")
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
    page.wait_text("No keys start with this prefix", ".listing")


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
    page.wait_text("No keys start with this prefix", ".listing")
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


@test
def history_goes_past_a_deletion(world):
    member = world.small[0]
    for life in ("first", "second"):
        member.put("/lives", f"{life}\n{sample.MARKUP}\n")
        member.put("/lives", f"{life} again\n{sample.MARKUP}\n")
        gone = int(member.call("kv/deleterange", {"key": b64("/lives")})["header"]["revision"])
    page = world.page(console_of(world, "small"), "keys?key=%2Flives")
    page.wait_text("There is no such key", ".detail")
    page.click("button", "History")
    kinds = "[...document.querySelectorAll('.versions .event-kind')].map((each) => each.innerText)"
    page.wait(f"({kinds}).length === 6", "the changes of both lives")
    same(page.js(kinds), ["DELETE", "PUT", "CREATE"] * 2, "the newest first")
    check("second again" in page.text(".versions .plus") and "second" in page.text(".versions .minus"), "the difference")
    same(page.js("document.querySelectorAll('main img').length"), 0, "elements from values")
    # It is watched: what comes now is shown too.
    member.put("/lives", "third")
    page.wait(f"({kinds}).join() === 'CREATE,DELETE,PUT,CREATE,DELETE,PUT,CREATE'", "the third life")
    world.show(page, "keys")
    page.wait_text("Choose a key", ".detail")
    world.show(page, "keys?key=%2Flives")
    page.wait_text("third", ".value")
    page.click("button", "History")
    page.click("button", "Show earlier history")
    page.wait_text("6 changes since revision", ".detail")
    page.wait_text("all that is kept", ".detail")
    member.call("kv/compaction", {"revision": str(gone)})
    world.show(page, "keys")
    page.wait_text("Choose a key", ".detail")
    world.show(page, "keys?key=%2Flives")
    page.wait_text("third", ".value")
    page.click("button", "History")
    page.click("button", "Show earlier history")
    page.wait_text("No history is kept", ".detail")
    page.wait_text("Older history was compacted", ".detail")
