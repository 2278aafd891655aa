#!/usr/bin/env python3
"""Flame graphs of a member under a load, as SVG: where the processor time of a request goes, the kernel's part included.

    interop/flame.py --server target/release/mainstay --load put --svg docs/flame-put.svg [--seconds 6]

The member serves on loopback with its data in a directory of its own; h2load (Debian: nghttp2-client) asks on 100 connections of ten
streams, for `put` writing 1 KiB to one key, for `range` reading it; `perf` (Debian: linux-perf) looks 499 times a second at what
each of the member's threads does. The width of a box is the share of the samples, of all threads, in which the function was
on the stack; threads are the lowest row. Inlined functions are shown of a build with CARGO_PROFILE_RELEASE_DEBUG=line-tables-only. The samples are of the processor's time only: who sleeps is not seen.
"""

import argparse
import collections
import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

from side_by_side import Server, frame

WIDTH, ROW, FONT = 1200, 17, 11
# Narrower boxes are left out: nobody can read them.
NARROWEST = 0.8
LOADS = {"put": ("Put", [(1, b"flame"), (2, b"v" * 1024)]), "range": ("Range", [(1, b"flame")])}


def recorded(server, load, seconds, work):
    """Stacks from the root to the leaf, with the number of samples of each."""
    method, fields = LOADS[load]
    url = f"http://127.0.0.1:{server.port}/etcdserverpb.KV"
    headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    put = frame(os.path.join(work, "put"), *LOADS["put"][1])
    subprocess.run(["curl", "-sf", "-o", os.devnull, "--http2-prior-knowledge", *headers, "--data-binary", f"@{put}", f"{url}/Put"],
                   check=True)
    body, data = frame(os.path.join(work, "body"), *fields), os.path.join(work, "perf.data")
    asking = subprocess.Popen(["h2load", "-t1", "-c100", "-m10", f"-D{seconds + 4}", "-d", body, *headers, f"{url}/{method}"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(2)  # Until the load is at its full rate and the memory has been touched.
        subprocess.run(["perf", "record", "-q", "-e", "cpu-clock", "-F", "499", "--call-graph", "dwarf,16384", "-o", data,
                        "-p", str(server.process.pid), "--", "sleep", str(seconds)], check=True)
    finally:
        asking.terminate()
        asking.wait()
    script = subprocess.run(["perf", "script", "-i", data, "-F", "comm,ip,sym"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                            text=True, check=True).stdout
    stacks = collections.Counter()
    for sample in script.split("\n\n"):
        lines = sample.strip().split("\n")
        if len(lines) < 2:
            continue
        names = [name_of(line) for line in lines[1:]]
        stacks[(lines[0].strip().rstrip(":").strip(), *reversed(names))] += 1
    return stacks


def name_of(line):
    """A function's name from a line of `perf script`, without its hash."""
    words = line.strip().split(None, 1)
    name = words[1] if len(words) > 1 else "?"
    return re.sub(r"::h[0-9a-f]{16}$", "", re.sub(r"\+0x[0-9a-f]+$", "", name))


def drawn(stacks, title):
    """The picture. Who is on more stacks stands further to the left."""
    total = sum(stacks.values())
    tree = lambda: {"count": 0, "below": {}}
    root, deepest = tree(), 0
    for stack, count in stacks.items():
        at = root
        at["count"] += count
        for name in stack:
            at = at["below"].setdefault(name, tree())
            at["count"] += count
    boxes = []

    def lay(node, left, depth):
        nonlocal deepest
        for name, below in sorted(node["below"].items(), key=lambda one: -one[1]["count"]):
            width = below["count"] / total * WIDTH
            if width >= NARROWEST:
                deepest = max(deepest, depth)
                boxes.append((name, left, width, depth, below["count"]))
                lay(below, left, depth + 1)
            left += width

    lay(root, 0, 0)
    height = (deepest + 1) * ROW + 40
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="monospace" font-size="{FONT}">',
           f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
           f'<text x="6" y="18" font-size="14">{html.escape(title)}, {total} samples</text>']
    for name, left, width, depth, count in boxes:
        top = height - (depth + 1) * ROW - 6
        kernel = "_" in name and "::" not in name
        colour = "#c9d7ee" if kernel else f"hsl({28 + sum(map(ord, name)) % 22},75%,{76 + sum(map(ord, name)) % 9}%)"
        shown = name if len(name) * 6.7 < width - 4 else name[:max(int((width - 10) / 6.7), 0)]
        out.append(f'<g><title>{html.escape(name)}: {count / total:.1%}</title><rect x="{left:.1f}" y="{top}" width="{max(width - 0.4, 0.4):.1f}" '
                   f'height="{ROW - 1}" fill="{colour}"/>' + (f'<text x="{left + 2:.1f}" y="{top + 12}">{html.escape(shown)}</text>' if len(shown) > 2 else "") + "</g>")
    return "\n".join([*out, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, metavar="PATH")
    parser.add_argument("--load", required=True, choices=LOADS)
    parser.add_argument("--svg", required=True, metavar="FILE")
    parser.add_argument("--seconds", type=int, default=6)
    parser.add_argument("--port", type=int, default=23790)
    parser.add_argument("--leaves", type=int, default=0, help="also print the functions that the samples were in, so many")
    args = parser.parse_args()
    for program in ("perf", "h2load", "curl"):
        if not shutil.which(program):
            sys.exit(f"{program} is not installed")
    server = Server("mainstay", args.server, args.port)
    try:
        with tempfile.TemporaryDirectory() as work:
            stacks = recorded(server, args.load, args.seconds, work)
    finally:
        server.stop()
        server.clean()
    with open(args.svg, "w", encoding="utf-8") as file:
        file.write(drawn(stacks, f"{args.load}, 100 connections of ten streams"))
    leaves, total = collections.Counter(), sum(stacks.values())
    for stack, count in stacks.items():
        leaves[stack[0], stack[-1]] += count
    for (thread, name), count in leaves.most_common(args.leaves):
        print(f"{count / total:6.1%}  {thread:<12} {name}")


if __name__ == "__main__":
    main()
