"""For kube_e2e.py: latencies of calls by the rules of SIG scalability, tables, and a chart."""

import collections
import html
import math
import os
import re

from page import shown

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
THEME = os.path.join(ROOT, "crates/html-report/assets/theme.css")
MUTATING = {"POST", "PUT", "PATCH", "DELETE", "APPLY"}
# Of a pair of resource and verb with fewer calls, the slowest call would be the 99th percentile.
CALLS_LEAST = 100
# The objectives, in seconds: https://github.com/kubernetes/community/tree/master/sig-scalability/slos
OBJECTIVES = {"mutating": 1, "resource": 1, "namespace": 30, "cluster": 30, "pod": 5}
LINE = re.compile(r'(apiserver_request_sli_duration_seconds|etcd_request_duration_seconds)_bucket\{(.*)\} (\S+)$')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def buckets(text):
    """From a scrape of kube-apiserver, the cumulative buckets of calls and of requests to the store: {key: {bound: count}}."""
    found = collections.defaultdict(dict)
    for line in text.splitlines():
        match = LINE.match(line)
        if not match:
            continue
        labels = dict(LABEL.findall(match[2]))
        bound = float(labels["le"].replace("+Inf", "inf"))
        if match[1].startswith("etcd"):
            key = ("store", labels["operation"])
        elif labels["verb"] in ("WATCH", "CONNECT", "WATCHLIST"):
            continue
        else:
            scope = "mutating" if labels["verb"] in MUTATING else labels["scope"]
            key = (scope, f"{labels['verb']} {labels['resource']}{'/' + labels['subresource'] if labels['subresource'] else ''}")
        found[key][bound] = found[key].get(bound, 0) + float(match[3])
    return found


def between(before, after):
    """The buckets of what happened between two scrapes of one process."""
    return {key: {bound: count - before.get(key, {}).get(bound, 0) for bound, count in counts.items()} for key, counts in after.items()}


def add(total, more):
    for key, counts in more.items():
        into = total.setdefault(key, {})
        for bound, count in counts.items():
            into[bound] = into.get(bound, 0) + count
    return total


def quantile(counts, share):
    """As Prometheus' histogram_quantile: linear within a bucket."""
    bounds = sorted(counts)
    total = counts[bounds[-1]]
    if total <= 0:
        return None
    rank, low, below = share * total, 0.0, 0.0
    for bound in bounds:
        if counts[bound] >= rank:
            if math.isinf(bound):
                return low
            return low + (bound - low) * (rank - below) / max(counts[bound] - below, 1e-9)
        low, below = bound, counts[bound]
    return low


def latencies(counts):
    """For each scope: calls, p50 and p99 of all of them, and the pair with the worst p99 among those with enough calls."""
    answer = {}
    for scope in ["mutating", "resource", "namespace", "cluster", "store"]:
        pairs = {pair: one for (own, pair), one in counts.items() if own == scope and max(one.values()) > 0}
        if not pairs:
            continue
        whole = {}
        for one in pairs.values():
            add(whole, {"": one})
        enough = {pair: quantile(one, 0.99) for pair, one in pairs.items() if max(one.values()) >= CALLS_LEAST}
        worst = max(enough, key=enough.get, default=None)
        answer[scope] = {"calls": int(max(whole[""].values())), "p50": quantile(whole[""], 0.5), "p99": quantile(whole[""], 0.99),
                         "worst": worst, "worst_p99": enough.get(worst)}
    return answer


def missed(one):
    """The objectives that a phase missed: pairs of resource and verb by their 99th percentiles, and the start of pods."""
    found = []
    for scope, least in OBJECTIVES.items():
        if scope == "pod":
            worst, name = one["clients"].get("pod started", {}).get("p99"), "pod start"
        else:
            own = one["latency"].get(scope, {})
            worst, name = own.get("worst_p99"), own.get("worst")
        if worst is not None and worst > least:
            found.append(f"{name} {worst:.1f} s")
    return ", ".join(found)


def style():
    """The colours of the console and of the reports, light and dark."""
    with open(THEME, encoding="utf-8") as file:
        pairs = dict((name, pair) for name, *pair in re.findall(r"--([\w-]+): light-dark\((#\w+), (#\w+)\);", file.read()))

    def rules(at):
        return (f"text{{fill:{pairs['text'][at]}}}.other{{fill:{pairs['edge'][at]}}}.own{{fill:{pairs['accent'][at]}}}"
                f".quiet{{fill:{pairs['soft'][at]}}}")
    return f"<style>{rules(0)}@media(prefers-color-scheme:dark){{{rules(1)}}}</style>"


def chart(runs, title):
    """Bars of two runs, phase by phase: cores of the store, and the 99th percentile of its requests as kube-apiserver sees them."""
    row, bar, left, width, gap = 40, 12, 190, 250, 110
    phases = [one["name"] for one in runs[0]["phases"] if all(one["name"] in [other["name"] for other in run["phases"]] for run in runs)]
    panels = [
        ("Cores of the store’s members", "", lambda phase: phase["cores"]["store"]),
        ("p99 of requests to the store", " ms", lambda phase: (phase["latency"].get("store", {}).get("p99") or 0) * 1000),
    ]
    height = 70 + row * len(phases)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + (width + gap) * len(panels)} {height}" role="img" '
           'font-family="system-ui, sans-serif" font-size="13">', f"<title>{html.escape(title)}</title>", style()]
    for at, run in enumerate(runs[:2]):
        out.append(f'<rect class="{["own", "other"][at]}" x="{140 * at}" y="8" width="13" height="13"/>'
                   f'<text x="{140 * at + 19}" y="19">{html.escape(run["server"])}</text>')
    for number, (heading, unit, value) in enumerate(panels):
        x = left + (width + gap) * number
        out.append(f'<text x="{x}" y="42" font-weight="600">{heading}</text>')
        values = [[value(next(one for one in run["phases"] if one["name"] == phase)) for run in runs[:2]] for phase in phases]
        most = max((one for pair in values for one in pair), default=0) or 1
        for line, phase in enumerate(phases):
            top = 54 + row * line
            if number == 0:
                out.append(f'<text x="{left - 10}" y="{top + 16}" text-anchor="end">{html.escape(phase)}</text>')
            for at, one in enumerate(values[line]):
                y = top + (bar + 1) * at
                out.append(f'<rect class="{["own", "other"][at]}" x="{x}" y="{y}" width="{max(1, width * one / most):.1f}" height="{bar}"/>'
                           f'<text class="quiet" font-size="11" x="{x + width * one / most + 6:.1f}" y="{y + 10}">{shown(one)}{unit}</text>')
    out.append("</svg>\n")
    return "\n".join(out)
