#!/usr/bin/env python3
"""Tables of docs/benchmarks.md and docs/profile.md, which the programs that measure write themselves.

A table stands between `<!-- NAME -->` and `<!-- end -->`. Below the first mark is a line with the date, Mainstay's commit and the
number of runs. Run as a program, says which tables are still empty, and fails if there are any.
"""

import datetime
import os
import re
import subprocess
import sys

END = "<!-- end -->"


def commit(path):
    """The commit of a build of Mainstay; None for another server."""
    out = subprocess.run([path, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    return re.search(r"Git SHA: (\w+)", out).group(1)[:8] if "Mainstay Version" in out else None


def measured_commit(servers):
    """The commit of the Mainstay among these pairs of a name and a path; fails if there is not exactly one."""
    commits = {found for _, path in servers if (found := commit(path))}
    if len(commits) != 1:
        raise SystemExit(f"of Mainstay there have to be measurements of one build, not {len(commits)}")
    return commits.pop()


def dated(runs, build, date=None):
    """The line above a table."""
    return f"{date or datetime.date.today()}, {build}; " + (f"medians of {runs} runs." if runs > 1 else "one run.")


def shown(number):
    """A number with four digits, or whole from a thousand on."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"


def markdown(head, lines):
    """A table; a line may have numbers as they are to be shown."""
    rows = [head, ["---"] * len(head), *lines]
    return "".join("| " + " | ".join(str(cell) for cell in row) + " |\n" for row in rows).replace("| --- ", "|---").replace("--- |", "---|")


def replaced(text, name, heading, table):
    """The page with another table under a name; fails if it has no such table."""
    begin = text.index(f"<!-- {name} -->\n") + len(f"<!-- {name} -->\n")
    return text[:begin] + f"{heading}\n\n{table}" + text[text.index(END, begin):]


def write_table(path, name, heading, table):
    """Prints the table, and writes it into the page at `path` unless that is None."""
    print(table, end="", flush=True)
    if path:
        with open(path, encoding="utf-8") as page:
            text = page.read()
        with open(path, "w", encoding="utf-8") as page:
            page.write(replaced(text, name, heading, table))


def main():
    docs = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "docs")
    empty = []
    for name in ("benchmarks.md", "profile.md"):
        with open(os.path.join(docs, name), encoding="utf-8") as file:
            empty += [f"docs/{name}: {mark}" for mark in re.findall(rf"^<!-- (.*) -->\n{END}", file.read(), re.M)]
    if empty:
        sys.exit("without a table:\n" + "\n".join(empty))


if __name__ == "__main__":
    main()
