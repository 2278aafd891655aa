"""What programs that draw curves share: their options, loads of `mainstay bench`, and diagrams in SVG."""

import argparse
import json
import math
import subprocess
import sys
from xml.sax.saxutils import escape

from cluster_side_by_side import KEY, call

COLOURS = ("#8a5a00", "#0b5fa5", "#2f7d32", "#7a3e9d")
# Connections and clients of each load.
MANY = ("--conns=20", "--clients=200")


def arguments(doc, port):
    """A parser with the options that all of these programs take."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mainstay", required=True, help="whose `bench` makes the loads")
    parser.add_argument("--server", action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--members", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--port", type=int, default=port, help="first of 2 ports for each member")
    parser.add_argument("--page", help="write the table into this file, docs/benchmarks.md")
    parser.add_argument("--svg", help="draw into this file")
    return parser


class Bench:
    """A load of `mainstay bench`, which goes to all members in turn."""

    def __init__(self, args, cluster, *words):
        command = [args.mainstay, "bench", "--json=-", "--endpoints=" + ",".join(cluster.endpoints), *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def row(self):
        out, error = self.process.communicate(timeout=300)
        if self.process.returncode:
            sys.exit(error)
        return json.loads(out)["rows"][0]["median"]


def first_key(cluster):
    """Writes the key of 256 bytes that the loads of reads ask for."""
    call(cluster, "Put", (1, KEY.encode()), (2, b"v" * 256))


def linear(low, high):
    """Where a value stands on an axis, from 0 to 1; one beyond its ends stands at the end."""
    return lambda value: min(max((value - low) / (high - low), 0), 1)


def logarithmic(low, high):
    """The same for an axis on which equal factors are equally far."""
    place = linear(math.log(low), math.log(high))
    return lambda value: place(math.log(max(value, low)))


def decades(values):
    """The powers of ten around all of these values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [10.0 ** power for power in range(low, max(high, low + 1) + 1)]


class Diagram:
    """Axes and lines in a part of a picture, of which `left`, `top`, `width` and `height` are those between the axes. `across` and
    `up` say where a value stands on its axis, as `linear` and `logarithmic` do."""

    def __init__(self, left, top, width, height, across, up):
        self.left, self.top, self.width, self.height, self.across, self.up, self.out = left, top, width, height, across, up, []

    def x(self, value):
        return self.left + self.across(value) * self.width

    def y(self, value):
        return self.top + (1 - self.up(value)) * self.height

    def text(self, x, y, text, anchor="middle", more=""):
        self.out.append(f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{more}>{escape(text)}</text>')

    def up_axis(self, marks, title=None):
        """Marks are values with their texts."""
        for value, text in marks:
            y = self.y(value)
            self.out.append(f'<line x1="{self.left}" x2="{self.left + self.width}" y1="{y:.0f}" y2="{y:.0f}" stroke="#ddd"/>')
            self.text(self.left - 8, y + 4, text, "end")
        if title:
            x, y = self.left - 46, self.top + self.height / 2
            self.text(x, y, title, more=f' transform="rotate(-90 {x:.0f} {y:.0f})"')

    def across_axis(self, marks, title, lines=False):
        bottom = self.top + self.height
        for value, text in marks:
            x = self.x(value)
            if lines:
                self.out.append(f'<line x1="{x:.0f}" x2="{x:.0f}" y1="{self.top}" y2="{bottom}" stroke="#ddd"/>')
            self.text(x, bottom + 18, text)
        self.text(self.left + self.width / 2, bottom + 34, title)

    def line(self, points, colour, more=""):
        places = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        self.out.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="2"{more}/>')

    def dot(self, x, y, colour, hollow=False):
        fill = "white" if hollow else colour
        self.out.append(f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="4" fill="{fill}" stroke="{colour}" stroke-width="2"/>')


def picture(width, height, diagrams):
    """An SVG of all of these diagrams."""
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
            f'<rect width="{width}" height="{height}" fill="white"/>']
    return "\n".join([*head, *(part for diagram in diagrams for part in diagram.out), "</svg>", ""])
