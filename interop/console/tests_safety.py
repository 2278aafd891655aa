"""What goes wrong without a failure: members that hang, URLs that lead elsewhere, bytes that look alike, outcomes that nobody waits for."""

import os
import signal
import subprocess
from contextlib import contextmanager

import sample
from clusters import Cluster, Console, Member, b64, wait_for
from world import check, console_of, log_in, same, settle, test


@contextmanager
def hanging(member):
    """The member takes connections and answers nothing."""
    member.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        member.process.send_signal(signal.SIGCONT)


def hang_cluster(world):
    return world.get("hang", lambda: Cluster(world.options.mainstay, 3))


@test
def hung_member_is_one_of_three(world):
    cluster = hang_cluster(world)
    page = world.page(world.console("hang", cluster).url, "requests")
    page.wait_text("3 of 3 members answer", ".cluster-state", 30)
    with hanging(cluster[2]):
        page.js("window.stopped = performance.now(); window.least = 3; setInterval(() => { window.least = Math.min(window.least, parseInt(document.querySelector('.cluster-state').innerText, 10)) }, 100); 0")
        page.wait("performance.now() - window.stopped > 40000", "forty seconds", 60)
        check("2 of 3 members answer" in page.text(".cluster-state"), f"the others answer: {page.text('.cluster-state')}")
        same(page.js("window.least"), 2, "members that answered all the time")
        page.wait_text("No answer from: m3", ".page-requests")
        took = page.js("(async () => { const { cluster } = await import('/assets/cluster.mjs'); const began = performance.now(); await cluster.range('kv/range', { key: 'YQ==' }); return performance.now() - began; })()")
        check(took < 2000, f"a read takes {took} ms")
    page.wait_text("3 of 3 members answer", ".cluster-state", 60)


@test
def reads_and_watches_leave_a_hung_member(world):
    cluster = hang_cluster(world)
    cluster[1].put("/hang/key", "value")
    url = world.console("hang", cluster).url
    watching = world.page(url, "watch?prefix=%2Fhang%2F")
    watching.wait_text("Live", ".watch-state")
    first = watching.js("import('/assets/cluster.mjs').then(({ cluster }) => cluster.inOrder()[0].name)")
    hung, other = cluster[int(first[1]) - 1], cluster[int(first[1]) % 3]
    with hanging(hung):
        # It was not asked before it hung.
        page = world.page(url, "keys?prefix=%2Fhang%2F")
        page.wait_text("1 shown", ".listing", 40)
        wait_for("a write at another member", lambda: "header" in other.call("kv/put", {"key": b64("/hang/late"), "value": b64("x")}, check=False))
        watching.wait_text("/hang/late", ".page-watch tbody", 60)
    page.wait_text("3 of 3 members answer", ".cluster-state", 60)


@test
def a_watch_leaves_a_member_that_was_not_polled_yet(world):
    page = world.page(console_of(world, "small"), "overview")
    page.wait_text("1 of 1 members answer", ".cluster-state", 30)
    page.js("""Promise.all(['cluster', 'watcher'].map((name) => import(`/assets/${name}.mjs`))).then(([{ cluster }, { Watcher }]) => {
      const member = { endpoint: cluster.members[0].endpoint, name: 'm1', isUp: null };
      cluster.inOrder = () => [member];
      window.told = [];
      new Watcher({ key: 'YQ==' }, 0, ({ kind }) => {
        window.told.push(kind);
        // It begins the watch and hangs: the first poll finds that.
        if (kind === 'live' && member.isUp === null) {
          member.isUp = false;
          cluster.dispatchEvent(new Event('update'));
        }
      });
    })""")
    page.wait("window.told.slice(0, 3).join(' ') === 'connecting live lost'", "the watch to leave the member")


@test
def urls_that_lead_to_another_member_are_seen(world):
    # Each member advertises the URL of the first one.
    cluster = world.get("alike", lambda: Cluster(world.options.mainstay, 2, advertised_by=0))
    url = world.get("console alike", lambda: Console(world.options.console, cluster[0].url)).url
    page = world.page(url, "members")
    page.wait_text("The URL of m2 leads to another member (m1)", ".page-members", 30)
    check(page.js("![...document.querySelectorAll('button')].some((each) => each.getAttribute('aria-label') === 'Make leader: m2')"), "nothing is done at m2")
    cluster[1].kill()
    page.wait_text("1 of 2 voters answer", ".page-members", 30)
    page.wait_text("1 of 2 members answer", ".cluster-state")
    # A poll of everything later it is still so.
    asked = len(page.requests)
    wait_for("more polls", lambda: len([each for each in page.requests[asked:] if each.endswith("maintenance/status")]) >= 4)
    check("1 of 2 members answer" in page.text(".cluster-state"), page.text(".cluster-state"))
    world.show(page, "overview")
    page.wait_text("The URL of m2 leads to another member (m1)", ".page-overview tbody")


@test
def members_that_are_not_asked_are_counted(world):
    # Where they listen leads to the console's own machine, as seen from there: only the one that was given is asked.
    cluster = world.get("unspecified", lambda: Cluster(world.options.mainstay, 2, ["--advertise-client-urls", "http://0.0.0.0:2379"]))
    url = world.get("console unspecified", lambda: Console(world.options.console, cluster[0].url)).url
    page = world.page(url, "overview")
    page.wait_text("Members that are not queried: 1", ".problems", 30)
    page.wait_text("m2: not queried: its client URL is an unspecified address", ".problems")
    page.wait_text("1 of 2 voters answer (needed: 2). Not queried: 1,", ".problems")
    page.wait_text("1 of 2 members answer", ".cluster-state")
    check("do not answer" not in page.text(".problems"), f"it is not said to be down: {page.text('.problems')}")
    world.show(page, "members")
    page.wait_text("1 of 2 voters answer (needed: 2). Not queried: 1,", ".page-members")
    page.wait_text("its client URL is an unspecified address", ".page-members tbody")
    same(page.js("document.querySelector('.cluster-state').dataset.kind"), "good", "the colour of those that are asked")
    page.click("button", "Remove: m1")
    page.wait_text("Afterwards 0 of 1 voters answer (needed: 1). Not queried: 1, so it is unknown", "dialog")
    check("This is not offered" not in page.text("dialog") and page.js("document.querySelector('dialog button[type=submit]') !== null"), f"it is offered: {page.text('dialog')}")
    page.click("dialog button", "Cancel")
    page.click("button", "Remove: m2")
    page.wait_text("Afterwards 1 of 1 voters answer (needed: 1): 0 more may fail.", "dialog")
    page.click("dialog button", "Cancel")
    page.click("button", "Add a member")
    page.wait("document.querySelector('dialog')")
    page.click("dialog input[name=learner]")
    page.wait_text("Afterwards 1 of 3 voters answer (needed: 2). Not queried: 1, so it is unknown", "dialog")
    page.click("dialog button", "Cancel")
    asked = [each for each in page.requests if "/endpoint/" in each and "/endpoint/0/" not in each]
    same(asked, [], "requests to members that are not asked")
    page = world.page(url, "overview", language="zh-CN")
    page.wait_text("未询问的成员：1 个", ".problems", 30)
    page.wait_text("m2：未询问，因为它的客户端 URL 是未指定地址", ".problems")


def replaced(cluster, flags):
    """Another cluster of one member at the same addresses."""
    old = cluster[0]
    old.stop()
    folder = os.path.join(cluster.folder, "other")
    os.makedirs(folder, exist_ok=True)
    member = Member(cluster.program, old.name, old.port, old.peer, cluster.everyone, folder, flags)
    cluster.members.append(member)
    member.start()
    wait_for("the other cluster", member.is_ready)
    return member


@test
def another_cluster_is_not_changed(world):
    cluster = world.get("replaced", lambda: Cluster(world.options.mainstay))
    for number in range(3):
        cluster[0].put(f"/twin/{number}", "first")
    console = world.console("replaced", cluster)
    deleting = world.page(console.url, "keys?prefix=%2Ftwin%2F")
    deleting.wait_text("3 shown", ".listing")
    deleting.click("button", "Delete all of these keys")
    deleting.wait("document.querySelector('dialog')")
    deleting.fill("dialog input[name=word]", "3")
    saving = world.page(console.url, "keys?key=%2Ftwin%2F2")
    saving.wait_text("first", ".value")
    saving.click("button", "Edit")
    saving.fill("textarea", "changed")
    saving.click(".detail button", "Save")
    saving.wait("document.querySelector('dialog')")
    other = replaced(cluster, ["--initial-cluster-token", "another"])
    # The same keys, each at the same revision.
    for number in range(3):
        other.put(f"/twin/{number}", "second")
    for page in (deleting, saving):
        page.click("dialog button[type=submit]")
        page.wait_text("belongs to another cluster", "dialog", 30)
    for number in range(3):
        same(other.get(f"/twin/{number}"), b"second", f"key {number} of the other cluster")


@test
def nothing_is_changed_where_the_cluster_is_not_told(world):
    member = world.small[0]
    member.put("/safety/untold", "before")
    page = world.page(console_of(world, "small"), "keys?key=%2Fsafety%2Funtold")
    page.wait_text("before", ".value")
    # The user may see neither the status nor the list of members, and no answer has told the cluster yet.
    page.js("""(() => {
      const real = window.fetch;
      window.asked = [];
      window.fetch = (url, request) => {
        window.asked.push(String(url));
        if (!/maintenance\\/status|member\\/list/.test(url)) return real(url, request);
        return Promise.resolve(new Response('{"code":7,"message":"etcdserver: permission denied"}', { status: 403 }));
      };
    })()""")
    change = """import('/assets/cluster.mjs').then(async ({ cluster }) => {
      cluster.clusterId = null;
      for (const member of cluster.members) member.status = null;
      try {
        await %s;
        return 'done';
      } catch (error) {
        return error.forUser;
      }
    })"""
    for call in ("cluster.change('kv/put', { key: '%s', value: 'eA==' })" % b64("/safety/untold"), "cluster.changeAt(cluster.members[0], 'maintenance/defragment', {})"):
        text = page.js(change % call)
        check("does not tell this user which cluster it belongs to" in text, f"{call}: {text}")
    same(member.get("/safety/untold"), b"before", "the value")
    check(not page.js("window.asked.some((url) => /kv\\/put|defragment/.test(url))"), "nothing was sent")


@test
def a_round_that_is_wanted_meanwhile_follows(world):
    page = world.page(console_of(world, "small"), "overview")
    rounds = page.js("""import('/assets/rounds.mjs').then(async ({ repeat }) => {
      const ends = [];
      const seen = [];
      const begun = () => new Promise((resolve) => { window.onround = resolve; });
      const work = (options) => {
        seen.push(options.quiet === true ? 'quiet' : 'asked for');
        window.onround?.();
        return new Promise((resolve) => ends.push(resolve));
      };
      const { now, stop } = repeat(work, 1e6);
      now();
      now();
      const second = begun();
      ends[0]();
      await second;
      // Nothing was wanted since it began: no third one. What is wanted when the page is left is not done.
      ends[1]();
      await new Promise((resolve) => setTimeout(resolve));
      const two = seen.length;
      now();
      now();
      stop();
      ends[2]();
      await new Promise((resolve) => setTimeout(resolve));
      return [two, seen];
    })""")
    same(rounds, [2, ["asked for"] * 3], "rounds")


@test
def a_poll_that_is_wanted_meanwhile_follows(world):
    page = world.page(console_of(world, "small"), "keys")
    page.wait_text("1 of 1 members answer", ".cluster-state", 30)
    page.js("""import('/assets/cluster.mjs').then(({ cluster }) => {
      clearTimeout(cluster.timer);
      cluster.pace = 1e8;
      window.polls = 0;
      const real = cluster.ask;
      cluster.ask = (...all) => {
        window.polls += 1;
        // A login, or another page, while the answer is awaited.
        if (window.polls === 1) cluster.schedule(0);
        return real.apply(cluster, all);
      };
      cluster.poll();
    })""")
    page.wait("window.polls === 2", "a second poll")


@test
def points_belong_to_their_members(world):
    page = world.page(world.console("hang", hang_cluster(world)).url, "keys")
    page.wait_text("3 of 3 members answer", ".cluster-state", 30)
    told = page.js("""import('/assets/cluster.mjs').then(async ({ cluster }) => {
      clearTimeout(cluster.timer);
      cluster.schedule = () => {};
      const order = [...cluster.members];
      cluster.ask = async (member) => {
        // The list of members comes while they are polled, in another order.
        cluster.members = [...order].reverse();
        return member.name;
      };
      cluster.isPolling = false;
      for (const member of order) Object.assign(member, { isBusy: false, nextAt: 0 });
      await cluster.poll();
      return order.map((member) => [member.name, member.points.at(-1)]);
    })""")
    same(told, [[name, name] for name in ("m1", "m2", "m3")], "points")


@test
def a_poll_that_fails_is_not_the_last_one(world):
    page = world.page(console_of(world, "small"), "keys")
    page.wait_text("1 of 1 members answer", ".cluster-state", 30)
    page.js("""import('/assets/cluster.mjs').then(({ cluster }) => {
      const real = cluster.note;
      window.notes = 0;
      cluster.note = (...all) => {
        window.notes += 1;
        if (window.notes === 1) throw new Error('a mistake');
        return real.apply(cluster, all);
      };
      cluster.pace = 1;
      const polled = cluster.poll;
      cluster.poll = () => polled.call(cluster).catch(() => {});
      cluster.schedule(0);
    })""")
    page.wait("window.notes > 1", "a second poll")


@test
def no_password_goes_to_what_answers_in_a_members_place(world):
    cluster = world.get("guest", lambda: Cluster(world.options.mainstay))
    page = world.page(world.console("guest", cluster).url, "overview")
    page.wait_text("1 of 1 members answer", ".cluster-state", 30)
    page.js("import('/assets/cluster.mjs').then(({ cluster }) => { window.cluster = cluster; })")
    other = replaced(cluster, ["--initial-cluster-token", "another"])
    page.wait("window.cluster.members[0].isElsewhere", "another cluster", 60)
    page.click("button", "Log in")
    log_in(page, "root", "secret")
    page.wait_text("belongs to another cluster", "dialog")
    # It is still the other one when it does not answer in time, and when nobody has asked it yet.
    with hanging(other):
        page.wait("window.cluster.members[0].error.isUnreachable", "a poll without an answer", 90)
        page.click("dialog button[type=submit]")
        page.wait_text("Stop waiting", "dialog")
        page.wait_text("Cancel", "dialog", 30)
    page.js("Object.assign(window.cluster.members[0], { isUp: null, isElsewhere: false, error: null }); 0")
    page.click("dialog button[type=submit]")
    page.wait_text("belongs to another cluster", "dialog")
    same([each for each in page.requests if each.endswith("auth/authenticate")], [], "logins")


@test
def long_json_is_shown_as_it_is_stored(world):
    value = '{"list":[' + ",".join(str(number) for number in range(60000)) + "]}"
    world.small[0].put("/safety/long", value)
    page = world.page(console_of(world, "small"), "keys?key=%2Fsafety%2Flong")
    page.wait_text("Not parsed as JSON because it is longer than 256", ".detail", 20)
    shown = page.js("document.querySelector('.value').textContent")
    same(shown, value[:len(shown)], "the value")
    same(page.js("document.querySelector('.detail .tabs [aria-pressed=true]').innerText"), "Text", "how it is shown")
    views = page.js("import('/assets/values.mjs').then(({ viewsOf }) => viewsOf(new TextEncoder().encode(JSON.stringify(Array(1 << 20).fill(1000)))))")
    same(views, ["text", "escaped", "hex"], "views of 5 MiB")


@test
def the_past_shows_what_differs(world):
    member = world.small[0]
    for key, values in (("/safety/past", ('{"a": 1}', '{"a":1}')), ("/safety/cut", ("x" * 5000 + "1", "x" * 5000 + "2")), ("/safety/cut-before", ("x" * 5000, "x" * 4096))):
        for value in values:
            member.put(key, value)
        member.call("kv/deleterange", {"key": b64(key)})
    page = world.page(console_of(world, "small"), "keys?key=%2Fsafety%2Fpast")
    page.wait_text("There is no such key", ".detail")
    page.click("button", "History")
    page.wait("document.querySelectorAll('.versions li').length === 3", "the changes")
    text = page.text(".versions li:nth-child(2) .diff")
    check('{"a": 1}' in text and '{"a":1}' in text, f"spaces that went: {text}")
    for name in ("cut", "cut-before"):
        world.show(page, f"keys?key=%2Fsafety%2F{name}")
        page.wait(f"document.querySelector('.detail .key-text')?.innerText === '/safety/{name}'")
        page.wait_text("There is no such key", ".detail")
        page.click("button", "History")
        page.wait("document.querySelectorAll('.versions li').length === 3", "the changes")
        page.wait_text("The part of the value that is kept here is the same as before", ".versions li:nth-child(2)")


def edit(world, key, value):
    """Opens the editor of a key with this value."""
    world.small[0].put(key, value)
    page = world.page(console_of(world, "small"), "keys?key=" + key.replace("/", "%2F"))
    page.wait("document.querySelector('.detail .value')")
    page.click("button", "Edit")
    page.wait("document.querySelector('textarea')")
    return page


def save(page):
    page.click(".detail button", "Save")
    page.wait("document.querySelector('dialog')")
    page.click("dialog button[type=submit]")
    page.wait("!document.querySelector('dialog')")


@test
def no_view_of_the_editor_changes_bytes(world):
    for view, typed, raw in (("Escaped", r"a\x0db", b"a\rb"), ("Escaped", r"a\x0d\x0ab\xff", b"a\r\nb\xff"), ("Hex", "ff fe 00 01", b"\xff\xfe\x00\x01"), ("Hex", "61 0d 0a 62", b"a\r\nb")):
        page = edit(world, "/safety/bytes", "plain")
        page.click(".detail .tabs button", view)
        page.fill("textarea", typed)
        page.click(".detail .tabs button", "Text")
        same(page.js("document.querySelector('textarea').value"), typed, "what was typed")
        check(page.js("[...document.querySelectorAll('.detail .tabs button')].find((each) => each.innerText === 'Text').disabled"), "text is not offered")
        save(page)
        same(world.small[0].get("/safety/bytes"), raw, f"what {typed} stands for")
    page = edit(world, "/safety/bytes", "plain")
    page.click(".detail .tabs button", "Hex")
    page.fill("textarea", "ff")
    page.fill("textarea", "c3 a9 0a 09 62")
    page.click(".detail .tabs button", "Text")
    same(page.js("document.querySelector('textarea').value"), "é\n\tb", "text is offered again")
    page.click(".detail button", "Cancel")


def long_object(last):
    """An object of Kubernetes with more lines than are shown."""
    entries = [sample.field(1, f"entry {number}") for number in range(5000)]
    return sample.kubernetes("v1", "ConfigMap", "long", "shop", sample.field(2, b"".join(entries) + sample.field(1, last)))


@test
def differences_show_what_differs(world):
    member = world.small[0]
    for before, after, minus, plus in (
            ('{"id":9007199254740993}', '{"id":9007199254740992}', "9007199254740993", "9007199254740992"),
            ('{"a":1.0,"b":1}', '{"a":1,"b":2}', '"a": 1.0', '"a": 1,'),
            ('{"a":1,"a":2}', '{"a":3,"a":2}', '"a": 1', '"a": 3'),
            ('{"a":1e400}', '{"a":1e500}', "1e400", "1e500"),
            ('{"a":"\\u0041"}', '{"a":"A"}', r"\u0041", '"A"'),
            ('{"a": 1}', '{"a":1}', '{"a": 1}', '{"a":1}'),
            ("x" * 5500 + "1", "x" * 5500 + "2", "x1", "x2")):
        page = edit(world, "/safety/json", before)
        page.fill("textarea", after)
        page.click(".detail button", "Save")
        page.wait("document.querySelector('dialog .diff') || document.querySelector('dialog')?.innerText.includes('Same value.')")
        shown = {kind: page.js(f"[...document.querySelectorAll('dialog .diff .{kind}')].map((each) => each.textContent).join('\\n')") for kind in ("minus", "plus")}
        check(minus in shown["minus"] and plus in shown["plus"], f"{before[-30:]} to {after[-30:]} is seen: {shown}")
        # Somebody else's change is seen as well.
        member.put("/safety/json", before.replace("1", "7"))
        page.click("dialog button[type=submit]")
        page.wait("document.querySelector('.conflict .diff .plus')", "the other's change")
        page.click("button", "Continue with my text")
        page.click(".detail button", "Cancel")
        member.put("/safety/json", before)
        member.put("/safety/json", after)
        world.show(page, "keys?key=%2Fconfig%2Fmotd")
        page.wait_text("Maintenance", ".value")
        world.show(page, "keys?key=%2Fsafety%2Fjson")
        page.wait("document.querySelector('.detail .key-text')?.innerText === '/safety/json' && document.querySelector('.detail .value')")
        page.click("button", "History")
        page.wait("document.querySelector('.versions li .diff .plus')", "the history shows it")
    member.put("/safety/object", long_object("one"))
    member.put("/safety/object", long_object("two"))
    world.show(page, "keys?key=%2Fsafety%2Fobject")
    page.wait_text("ConfigMap", ".value")
    page.click("button", "History")
    page.wait("document.querySelector('.versions li .diff')")
    text = page.text(".versions li .diff")
    check("one" in text and "two" in text, f"a change behind what is shown of an object: {text[-300:]}")


@test
def views_of_json_show_what_is_stored(world):
    world.small[0].put("/safety/view", '{"id":9007199254740993,"id":1.0,"list":[],"none":{}}')
    page = world.page(console_of(world, "small"), "keys?key=%2Fsafety%2Fview")
    page.wait("document.querySelector('.value')?.textContent.includes('list')")
    same(page.js("document.querySelector('.value').textContent"), '{\n  "id": 9007199254740993,\n  "id": 1.0,\n  "list": [],\n  "none": {}\n}', "as JSON")
    world.small[0].put("/safety/view", "[" * 3000 + "]" * 3000)
    page.click("button", "Reload")
    page.wait("document.querySelector('.value')?.textContent.startsWith('[[[')", "what is too deep for lines")


@test
def outcome_is_said_when_nobody_waits(world):
    cluster = world.get("late", lambda: Cluster(world.options.mainstay))
    member = cluster[0]
    member.put("/late", "before")
    page = world.page(world.console("late", cluster).url, "keys?key=%2Flate")
    page.wait_text("before", ".value")
    for value, how in (("clicked", lambda: page.click("dialog button", "Stop waiting")), ("escaped", lambda: page.key("Escape"))):
        page.click("button", "Edit")
        page.fill("textarea", value)
        page.click(".detail button", "Save")
        page.wait("document.querySelector('dialog')")
        with hanging(member):
            page.click("dialog button[type=submit]")
            page.wait_text("Stop waiting", "dialog")
            how()
            page.wait("!document.querySelector('dialog')")
        page.wait_text("Save this change: done.", "#announcements")
        same(member.get("/late"), value.encode(), "the value")
        page.click("#announcements button", "Close")
        page.click(".detail button", "Cancel")
        page.click("button", "Reload")
        page.wait_text(value, ".value")
    # A failure is told as well: a lease that is gone meanwhile.
    lease = member.call("lease/grant", {"TTL": "600"})["ID"]
    world.show(page, "leases")
    page.wait("document.querySelector('.page-leases tbody tr')")
    page.click(".page-leases tbody button")
    page.wait("document.querySelector('dialog')")
    member.call("lease/revoke", {"ID": lease})
    with hanging(member):
        page.click("dialog button[type=submit]")
        page.click("dialog button", "Stop waiting")
    page.wait_text("requested lease not found", "#announcements")


@test
def command_line_for_a_new_member_is_quoted(world):
    name = "m$(touch harmed)'\"`x`"
    cluster = world.get("quoted", lambda: Cluster(world.options.mainstay, names=[name]))
    page = world.page(world.console("quoted", cluster).url, "members")
    settle(page, "members")
    page.click("button", "Add a member")
    page.wait("document.querySelector('dialog')")
    page.fill("dialog input[name=urls]", "http://127.0.0.1:1")
    page.click("dialog button[type=submit]")
    page.wait_text("--initial-cluster-state existing", "dialog", 30)
    line = page.text("dialog pre")
    done = subprocess.run(["sh", "-c", "mainstay() { printf '%s\\n' \"$@\"; }\n" + line], cwd=cluster.folder, capture_output=True, text=True, check=True)
    words = done.stdout.split("\n")
    listed = words[words.index("--initial-cluster") + 1]
    check(f"{name}=http://127.0.0.1:{cluster[0].peer}" in listed.split(","), f"the shell reads {listed!r} from {line!r}")
    check("harmed" not in os.listdir(cluster.folder), "nothing was executed")


@test
def log_out_takes_values_and_drafts_off_the_page(world):
    page = world.page(console_of(world, "guarded"), "keys?key=%2Fconfig%2Fown%2Fa")
    log_in(page, "reader", "word")
    page.wait("document.querySelector('.detail .value')?.textContent.length > 0")
    value = page.js("document.querySelector('.detail .value').textContent")
    page.click("button", "Edit")
    page.fill("textarea", "a secret draft")
    page.click("button", "Log out")
    page.wait("document.querySelector('dialog input[name=password]')", "the question for a password")
    shown = page.js("document.body.innerText + [...document.querySelectorAll('input, textarea')].map((each) => each.value).join(' ')")
    check("a secret draft" not in shown and value not in page.text(".content"), f"nothing is left: {shown}")
    log_in(page, "root", "secret")
    page.wait("document.querySelector('.detail .value')?.textContent.length > 0", "the value for the next user")
    check(page.js("!document.querySelector('textarea')"), "no draft of the user before")
