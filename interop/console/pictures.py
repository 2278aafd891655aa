#!/usr/bin/env python3
"""Takes the pictures of the console in docs/console/: each page in light, dark, on a phone and in Chinese.

usage: pictures.py --mainstay PATH [--console PATH] [--only TEXT] [--out FOLDER]

It starts three members with sample data and some load, and needs Chromium, a font with Chinese characters, and Pillow, which makes the
files small. All files together have less than 3 MB.
"""

import argparse
import io
import os
import sys
import threading
import time

import sample
from browser import Browser
from clusters import Cluster, Console, b64, end_cleanly

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "console")
BYTES_MAX = 3_000_000
COLOURS = 128

# What a page says that has no data yet, in both languages. Columns of charts need not all have some.
WAITING = ["Querying the members", "正在询问各成员", "Loading", "正在查询", "measuring", "测量中"]
# Nothing of that is on the page, and each member has answered.
SETTLED = f"document.querySelector('.cluster-state')?.dataset.kind === 'good' && !{WAITING!r}.some((text) => document.querySelector('main').innerText.includes(text))"

# Name of the picture, address, and what has to be there.
VIEWS = [
    ("overview", "overview", "document.querySelectorAll('.page-overview tbody .state.good').length === 3"),
    ("charts", "charts", "document.querySelectorAll('.plot:not(.hidden)').length > 14 && document.querySelectorAll('.chart:nth-child(2) .legend li').length > 4"),
    ("keys", "keys?prefix=%2Fconfig%2F&key=%2Fconfig%2Fapp", "document.querySelector('.versions .diff')"),
    ("kubernetes", "keys?prefix=%2Fregistry%2Fpods%2Fshop%2F&key=%2Fregistry%2Fpods%2Fshop%2Fweb-0", "document.querySelector('.value')"),
    ("conflict", "keys?prefix=%2Fconfig%2F&key=%2Fconfig%2Fflag", "document.querySelector('.conflict .diff')"),
    ("watch", "watch?prefix=%2Fservice%2F", "document.querySelectorAll('.page-watch tbody tr').length > 8"),
    ("leases", "leases", "document.querySelectorAll('.page-leases tbody li').length > 3"),
    ("members", "members", "document.querySelectorAll('.page-members tbody tr').length > 5"),
    ("past", "keys?prefix=%2Fconfig%2F&key=%2Fconfig%2Fold", "document.querySelectorAll('.versions .event-kind').length === 4"),
    ("requests", "requests", "document.querySelectorAll('.heavy tbody tr').length > 1 && document.querySelectorAll('.stages').length > 5 && document.querySelectorAll('.page-requests section:last-child tbody tr').length > 0"),
    ("space", "space", "document.querySelectorAll('.page-space tbody tr').length > 8"),
    ("users", "users", "document.querySelectorAll('.page-users tbody tr').length > 3"),
]
LOOKS = [
    ("light", {"width": 1280, "height": 800}),
    ("dark", {"width": 1280, "height": 800, "scheme": "dark"}),
    ("phone", {"width": 360, "height": 740, "scale": 2}),
    ("zh", {"width": 1280, "height": 800, "language": "zh-CN"}),
]
# A page of charts is watched for so long before its picture is taken.
CHARTS_S = 24


def small(png):
    """The same picture with few colours."""
    from PIL import Image

    image = Image.open(io.BytesIO(png)).convert("RGB").quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    out = io.BytesIO()
    image.save(out, "PNG", optimize=True)
    return out.getvalue()


class Load(threading.Thread):
    """Some reads and writes all the time."""

    def __init__(self, cluster):
        super().__init__(daemon=True)
        self.cluster, self.is_running = cluster, True

    def run(self):
        turn = 0
        while self.is_running:
            member = self.cluster[turn % len(self.cluster.members)]
            number = turn * 7 % 160
            try:
                member.put(f"/service/web/{number:03d}", f"10.0.{number // 100}.{number % 100}:{8080 + turn % 3}")
                for each in range(2):
                    member.call("kv/range", {"key": b64(f"/service/web/{(number + each) % 160:03d}")})
                if turn % 20 == 0:
                    member.call("kv/range", {"key": b64("/registry/"), "range_end": b64("/registry0")})
            except (OSError, RuntimeError):
                pass
            turn += 1
            time.sleep(0.03)


def prepare(cluster):
    member = cluster[0]
    sample.fill_small(member)
    for name, ttl, keys in (("session", 3600, 3), ("lock", 1800, 1), ("election", 1200, 2)):
        lease = member.call("lease/grant", {"TTL": str(ttl)})["ID"]
        for number in range(keys):
            member.put(f"/{name}/holder-{number}", "10.0.0.7", lease=lease)
    for value in ('{"replicas": 1}', '{"replicas": 2}', '{"replicas": 2, "paused": true}'):
        member.put("/config/old", value)
    member.call("kv/deleterange", {"key": b64("/config/old")})
    member.call("auth/role/add", {"name": "root"})
    for role, grants in (("config-reader", [("/config/", "READ")]), ("shop", [("/registry/pods/shop/", "READWRITE"), ("/service/", "READ")])):
        member.call("auth/role/add", {"name": role})
        for key, right in grants:
            member.call("auth/role/grant", {"name": role, "perm": {"permType": right, "key": b64(key), "range_end": b64(key[:-1] + "0")}})
    for user, role in (("root", "root"), ("alice", "shop"), ("bob", "config-reader")):
        member.call("auth/user/add", {"name": user, "password": user})
        member.call("auth/user/grant", {"user": user, "role": role})


def arrange(page, name, member):
    """Brings a page into the state that its picture shows."""
    if name == "keys":
        page.wait("document.querySelector('.detail .value')")
        page.js("document.querySelectorAll('.detail .line-up button')[1].click()")
    elif name == "conflict":
        page.wait("document.querySelector('.detail .value')")
        page.js("document.querySelectorAll('.detail .line-up button')[0].click()")
        page.fill("textarea", "off")
        member.put("/config/flag", "on, for shop only")
        page.js("document.querySelector('.detail button.primary').click()")
        page.wait("document.querySelector('dialog .diff')")
        page.click("dialog button[type=submit]")
    elif name == "past":
        page.wait("document.querySelector('.detail .empty')")
        page.js("document.querySelectorAll('.detail .line-up button')[1].click()")
    elif name == "charts":
        time.sleep(CHARTS_S)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mainstay", metavar="PATH", required=True)
    parser.add_argument("--console", metavar="PATH")
    parser.add_argument("--only", metavar="TEXT", default="")
    parser.add_argument("--out", metavar="FOLDER", default=OUT)
    options = parser.parse_args()
    end_cleanly()
    os.makedirs(options.out, exist_ok=True)
    cluster = Cluster(options.mainstay, 3, ["--warning-unary-request-duration=3ms", "--zone=north", "--metrics=extensive"])
    console = browser = load = None
    try:
        prepare(cluster)
        console = Console(options.console or options.mainstay, cluster.endpoints)
        browser = Browser()
        load = Load(cluster)
        load.start()
        for look, how in LOOKS:
            for name, address, ready in VIEWS:
                if options.only not in f"{name}-{look}":
                    continue
                cluster[0].put("/config/flag", "on")
                page = browser.page(**how)
                page.open(f"{console.url}#/{address}")
                page.wait("document.querySelector('main h1')")
                arrange(page, name, cluster[0])
                page.wait(f"({ready}) && ({SETTLED})", f"{name} with its data", 60)
                page.js("document.activeElement?.blur(); scrollTo(0, 0)")
                height = min(1500 if look != "phone" else 1000, int(page.js("Math.max(innerHeight, document.documentElement.scrollHeight)")))
                page.size(how["width"], height, how.get("scale", 1))
                page.js("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
                data = small(page.picture())
                with open(os.path.join(options.out, f"{name}-{look}.png"), "wb") as file:
                    file.write(data)
                print(f"{name}-{look}.png: {len(data):,} bytes", flush=True)
                if page.complaints:
                    print(f"{name}: the page complained: {page.complaints}", file=sys.stderr)
                page.close()
    finally:
        if load:
            load.is_running = False
            load.join(5)
        for each in (browser, console, cluster):
            if each:
                each.close()
    total = sum(os.path.getsize(os.path.join(options.out, name)) for name in os.listdir(options.out) if name.endswith(".png"))
    print(f"all together: {total:,} bytes")
    return 0 if total < BYTES_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
