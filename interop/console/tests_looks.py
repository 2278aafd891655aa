"""Languages, phones, themes, keyboards, accessibility, clocks, members of etcd."""

import glob
import json
import os
import re
import subprocess
import tempfile

import sample
from clusters import Cluster, Console, b64, wait_for
from world import ASSETS, check, console_of, PAGES, same, settle, Skipped, test

AXE = "axe-core@4"


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
        page.wait("document.activeElement.tagName === 'H1'", f"the focus on {name}")
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
    page.wait_text("This browser's clock is 2\u00a0h", "body")


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
        for put in (True, False, True):
            world.small[0].call("kv/put" if put else "kv/deleterange", {"key": b64("/axe")})
        world.show(page, "keys?key=%2Faxe")
        page.wait_text("The value is empty", ".detail")
        page.click("button", "History")
        page.wait_text("since the key was created", ".detail")
        page.click("button", "Show earlier history")
        page.wait_text("all that is kept", ".detail")
        found += [f"a key's past, {scheme}: {each}" for each in violations(page, source)]
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
    page.wait_text("not reported by this member", ".page-space")
    world.show(page, "charts")
    page.wait_text("The members do not report this.", ".page-charts", 40)
    world.show(page, "keys?key=%2Fconfig%2Fapp")
    page.wait_text("replicas", ".value")
    page.click("button", "History")
    page.wait_text("since the key was created", ".detail")
    cluster[0].put("/lives", "first")
    cluster[0].call("kv/deleterange", {"key": b64("/lives")})
    world.show(page, "keys?key=%2Flives")
    page.wait_text("no such key", ".detail")
    page.click("button", "History")
    page.wait_text("DELETE", ".versions")
    check("first" in page.text(".versions"), "what the key held")
    world.show(page, "keys?key=%2Fconfig%2Fapp")
    page.wait_text("replicas", ".value")
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
    page.wait_text("not reported by this member", ".page-requests")
    page.wait_text("Not reported by m1: members of etcd", ".heavy")
    world.show(page, "space")
    page.wait_text("Defragment", ".page-space")
    world.show(page, "members")
    page.wait_text("leader", ".page-members tbody")
