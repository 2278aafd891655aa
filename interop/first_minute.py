#!/usr/bin/env python3
"""Records the first minute with Mainstay as an SVG: a real session, in which a member of real etcd becomes Mainstay's and etcd's again.

    interop/first_minute.py --mainstay PATH --etcd PATH --out docs/first-minute.svg

The commands run in one shell (bash), in an empty folder; what they print is what the picture shows, with ports, sizes and times as they came.
Lines appear at the pace of the session, shortened where it waits; where a reader wants no motion, all of them are there at once. A
command that fails ends the recording with exit code 1. Python 3.9+, standard library only.
"""

import argparse
import html
import os
import shutil
import subprocess
import sys
import tempfile
import time

from ports import free_ports

# What is typed, and what waits unseen before the next command.
SESSION = [
    ("etcd --data-dir data {flags} 2> etcd.log &", "until etcdctl endpoint health 2> /dev/null; do sleep 0.2; done > /dev/null"),
    ("etcdctl put greeting hello", ""),
    ("kill $!; wait; mainstay --data-dir data {flags} 2> mainstay.log &", "until etcdctl get greeting > /dev/null 2>&1; do sleep 0.2; done"),
    ("grep -o 'took this member over from etcd' mainstay.log", ""),
    ("etcdctl get greeting", ""),
    ("etcdctl put greeting 'hello from Mainstay'", ""),
    ("mainstay doctor --for 1s | head -n 2", ""),
    ("kill $!; wait; mainstay utl export --data-dir data --to back --release {release} 2> export.log", ""),
    ("etcd --data-dir back {flags} 2> etcd.log &", "until etcdctl get greeting > /dev/null 2>&1; do sleep 0.2; done"),
    ("etcdctl get greeting", ""),
]
# Longest pause of the picture before a line, and shortest before a command.
PAUSE_MAX_S = 1.2
TYPING_S = 0.9
COLUMNS = 90
LINES_OF_OUTPUT = 3
PATIENCE_S = 60
LINE = 19


def record(mainstay, etcd):
    """Runs the session; returns (seconds since the last line, "command" or "output", text)."""
    folder = tempfile.mkdtemp(prefix="first-minute-")
    os.mkdir(os.path.join(folder, "bin"))
    for name, program in (("mainstay", mainstay), ("etcdctl", mainstay), ("etcd", etcd)):
        os.symlink(os.path.abspath(program), os.path.join(folder, "bin", name))
    client, peer = free_ports(2)
    version = subprocess.run([etcd, "--version"], text=True, stdout=subprocess.PIPE, check=True).stdout.split()[2]
    release = ".".join(version.split(".")[:2])
    flags = (f"--listen-client-urls http://127.0.0.1:{client} --advertise-client-urls http://127.0.0.1:{client} "
             f"--listen-peer-urls http://127.0.0.1:{peer} --initial-advertise-peer-urls http://127.0.0.1:{peer} "
             f"--initial-cluster default=http://127.0.0.1:{peer}")
    environment = {"PATH": f"{folder}/bin:/usr/bin:/bin", "ETCDCTL_ENDPOINTS": f"127.0.0.1:{client}"}
    shell = subprocess.Popen(["bash", "--norc"], cwd=folder, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, start_new_session=True)
    lines = [(0.0, "output", f"# etcd {version}, and Mainstay on its data directory")]
    try:
        for shown, waits in SESSION:
            # The flags are ports of this machine, which say nothing to a reader.
            command = shown.format(flags=flags, release=release)
            began = time.monotonic()
            shell.stdin.write(f"{command}\necho \"MARK $?\"\n{waits}\necho \"MARK $?\"\n")
            shell.stdin.flush()
            printed, marks = [], []
            while len(marks) < 2:
                line = shell.stdout.readline()
                if not line or time.monotonic() - began > PATIENCE_S:
                    raise RuntimeError(f"the session ended at: {command}\n{''.join(printed)}")
                if line.startswith("MARK "):
                    marks.append(line.split()[1])
                elif not marks:
                    printed.append(line.rstrip("\n"))
            if marks[0] != "0":
                raise RuntimeError(f"{command}: exit code {marks[0]}\n" + "\n".join(printed))
            lines.append((TYPING_S, "command", shown.replace(" {flags}", "").format(release=release)))
            took = min(PAUSE_MAX_S, time.monotonic() - began)
            for line in printed[:LINES_OF_OUTPUT]:
                lines.append((took, "output", line))
                took = 0.05
    finally:
        os.killpg(shell.pid, 9)
        shell.wait()
        shutil.rmtree(folder, ignore_errors=True)
    return lines


def draw(lines):
    rows, at = [], 0.3
    y = 46
    for pause, kind, text in lines:
        at += pause
        text = text if len(text) <= COLUMNS else text[:COLUMNS - 1] + "…"
        words = html.escape(text, quote=False)
        if kind == "command":
            words = f'<tspan class="p">$ </tspan>{words}'
        rows.append(f'<text xml:space="preserve" x="16" y="{y}" class="{kind[0]}" style="animation-delay:{at:.2f}s">{words}</text>')
        y += LINE
    height = y + 6
    spoken = html.escape("; ".join(text for _, kind, text in lines if kind == "command"))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 {height}" width="800" height="{height}" role="img" '
            f'aria-label="A terminal: {spoken}">\n'
            '<style>text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre;animation:s .01s both}'
            '.o{fill:#a8b3c2}.c{fill:#eef2f7}.p{fill:#5fbf8f}@keyframes s{from{opacity:0}to{opacity:1}}'
            '@media (prefers-reduced-motion:reduce){text{animation:none}}</style>\n'
            f'<rect width="800" height="{height}" rx="8" fill="#14181f"/>'
            '<circle cx="18" cy="16" r="5" fill="#e0645c"/><circle cx="36" cy="16" r="5" fill="#e0b04f"/>'
            '<circle cx="54" cy="16" r="5" fill="#5fbf8f"/>\n' + "\n".join(rows) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mainstay", required=True)
    parser.add_argument("--etcd", required=True, help="a real etcd, 3.5 to 3.7")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    try:
        lines = record(args.mainstay, args.etcd)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    with open(args.out, "w", encoding="utf-8") as file:
        file.write(draw(lines))
    print(f"wrote {args.out}: {len(lines)} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
