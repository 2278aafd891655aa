#!/usr/bin/env python3
"""The chart in README.md: processor time of a request, of etcd, of Mainstay and of a server that does nothing.

    interop/comparison_chart.py [--check]

Reads the tables of docs/benchmarks.md with the columns load, figure, etcd, Mainstay, bare, ratio and goal, and writes docs/comparison.svg. With --check it says whether that is up to
date, and changes nothing. Standard library only.
"""

import html
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TABLE, CHART = os.path.join(ROOT, "docs/benchmarks.md"), os.path.join(ROOT, "docs/comparison.svg")
THEME = os.path.join(ROOT, "crates/html-report/assets/theme.css")
# Loads of these tables, with what the chart calls them.
LOADS = [
    ("put 1 KiB, h2load 100 x 10", "put, 1,000 at a time"),
    ("range 1 KiB, h2load 100 x 10", "read, 1,000 at a time"),
    ("range, 1000 connections of one stream", "read, 1,000 connections"),
    ("put 1 KiB, one client", "put, one client"),
    ("range, one client", "read, one client"),
    ("three members, put 1 KiB, 500 clients", "put, three members"),
    ("three members, range, 1000 clients", "read, three members"),
    ("watch fan-out, 1000 watchers, an event", "watch event"),
    ("lease renewals, 100 clients", "lease renewal"),
]
ROW, BAR, LEFT, WIDTH, RIGHT = 46, 13, 200, 420, 150


def figures():
    """CPU of each load, in us: etcd, Mainstay, and the server that does nothing, or None."""
    found = {}
    with open(TABLE, encoding="utf-8") as file:
        for line in file:
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if len(cells) == 7 and cells[1] == "CPU us":
                number = lambda cell: float(cell.replace(",", "")) if cell else None
                found.setdefault(cells[0], [number(cell) for cell in cells[2:5]])
    if missing := [name for name, _ in LOADS if name not in found]:
        sys.exit(f"{TABLE} has no CPU of: {', '.join(missing)}")
    return found


def style():
    """The colours of the console and of the reports, light and dark."""
    with open(THEME, encoding="utf-8") as file:
        pairs = dict((name, pair) for name, *pair in re.findall(r"--([\w-]+): light-dark\((#\w+), (#\w+)\);", file.read()))

    def rules(at):
        return (f"text{{fill:{pairs['text'][at]}}}.etcd{{fill:{pairs['edge'][at]}}}.own{{fill:{pairs['accent'][at]}}}"
                f".bare{{stroke:{pairs['text'][at]}}}.quiet{{fill:{pairs['soft'][at]}}}")

    return f"<style>{rules(0)}@media(prefers-color-scheme:dark){{{rules(1)}}}</style>"


def chart():
    found = figures()
    height = 74 + ROW * len(LOADS)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + RIGHT} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13">',
        "<title>Processor time of a request: etcd 3.6 and Mainstay</title>",
        style(),
        '<text x="0" y="16" font-weight="600">Processor time of the server for a request, as a share of etcd 3.6’s</text>',
        '<rect class="etcd" x="0" y="30" width="13" height="13"/><text x="19" y="41">etcd 3.6</text>',
        '<rect class="own" x="92" y="30" width="13" height="13"/><text x="111" y="41">Mainstay</text>',
        '<line class="bare" x1="192" y1="29" x2="192" y2="44" stroke-width="2"/>',
        '<text x="199" y="41">a server that does nothing but answer</text>',
    ]
    for row, (name, label) in enumerate(LOADS):
        etcd, own, bare = found[name]
        top = 60 + ROW * row
        said = f"{label}: etcd {etcd:g} µs, Mainstay {own:g} µs"
        out.append(f"<g><title>{html.escape(said)}</title>")
        out.append(f'<text x="{LEFT - 10}" y="{top + 18}" text-anchor="end">{html.escape(label)}</text>')
        out.append(f'<rect class="etcd" x="{LEFT}" y="{top}" width="{WIDTH}" height="{BAR}"/>')
        out.append(f'<text class="quiet" x="{LEFT + WIDTH + 8}" y="{top + 11}">{etcd:,.4g} µs</text>')
        width = WIDTH * own / etcd
        out.append(f'<rect class="own" x="{LEFT}" y="{top + BAR + 2}" width="{width:.1f}" height="{BAR}"/>')
        beside = LEFT + max(width, WIDTH * (bare or 0) / etcd) + 8
        out.append(f'<text x="{beside:.1f}" y="{top + BAR + 13}">{own:,.3g} µs, 1/{etcd / own:.2g}</text>')
        if bare is not None:
            at = LEFT + WIDTH * bare / etcd
            out.append(f'<line class="bare" x1="{at:.1f}" y1="{top + BAR}" x2="{at:.1f}" y2="{top + 2 * BAR + 4}" stroke-width="2"/>')
        out.append("</g>")
    out.append("</svg>\n")
    return "\n".join(out)


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    made = chart()
    if sys.argv[1:]:
        with open(CHART, encoding="utf-8") as file:
            if file.read() != made:
                sys.exit("docs/comparison.svg is not that of docs/benchmarks.md: interop/comparison_chart.py writes it")
        return
    with open(CHART, "w", encoding="utf-8") as file:
        file.write(made)


main()
