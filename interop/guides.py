#!/usr/bin/env python3
"""Runs every command of the documents, as a reader would, and compares what programs print with what the documents promise.

    interop/guides.py --mainstay target/release/mainstay [--only quickstart,tls] [--list] [--keep]

Each document runs from top to bottom in one shell (bash) of its own, in an empty directory, with `mainstay`, `etcdctl` and `etcdutl`
(links to it) on the path, and the binary as `target/release/mainstay`. Where this user may, it has namespaces for network, mounts and
processes of its own: the ports and the addresses 10.0.0.1 to 10.0.0.9 are free there, `/var/lib` is empty, several documents run at
once, and whatever one leaves running ends with it. Elsewhere the ports have to be free, and documents with such addresses are skipped.

A block that begins with three backticks and `sh` is run; every line of it must succeed. A block of `text` right behind
it is what that prints, on both streams: line by line, where `…` stands for anything within a line, and a line of `…` alone for any
lines. A comment `<!-- sh` … `-->` is run as well: what a reader of that page has already, as members that run. A block of `console`
is not run; a comment `<!-- shown: WHY -->` before it, or `<!-- shown on this page: WHY -->` for all of a page, says why. There are no
other commands: an indented block is an error.

In every document of the repository, commands of `mainstay`, `etcdctl` and `etcdutl`, in blocks and between backticks, may only have
words and flags that the completion of the binary knows, and those of programs in `interop` only flags that these have.
Last line: "N passed, M failed". Standard library only; Linux, Python 3.9+, bash, curl, openssl.
"""

import argparse
import concurrent.futures
import glob
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Documents whose commands other programs run, and those for people who change Mainstay or measure with its programs.
ELSEWHERE = {
    "docs/migration.md": "interop/migration_document.py", "docs/install.md": "interop/packages.py and packaging/try-deb",
    "docs/flags.md": "generated from the flag table, which a test of the server compares",
    "interop/README.md": "names only: the programs are run by .ci/run full", "TESTING.md": "names only: tests are run by .ci/run",
    "ARCHITECTURE.md": "names only", "CHANGELOG.md": "names only, of the release that it is about",
}
# What a block may be that is no command.
OTHER_BLOCKS = {"text", "json", "yaml", ""}
# Nothing in a document takes as long.
PATIENCE_S = 120
AT_ONCE = 3


class Step:
    """A block that is run, and what it has to print, if the document says so."""

    def __init__(self, script, line):
        self.script, self.line, self.output = script, line, None


class Page:
    """A document: the steps that are run, what is only shown, its inline code, and what is wrong with its form."""

    def __init__(self, name):
        self.name = name
        self.short = os.path.basename(name).removesuffix(".md")
        self.steps, self.blocks, self.spans, self.wrong = [], [], [], []
        with open(os.path.join(ROOT, name), encoding="utf-8") as file:
            self.read(file.read().split("\n"))

    def read(self, lines):
        why_all = why = None
        follows, prose, at = False, [], 0
        while at < len(lines):
            line, first = lines[at], at + 1
            if line.startswith("```") or line.startswith("<!-- sh") and line.rstrip() == "<!-- sh":
                end = "```" if line.startswith("```") else "-->"
                kind = line[3:].strip() if end == "```" else "sh"
                at += 1
                block = []
                while at < len(lines) and not lines[at].startswith(end):
                    block.append(lines[at])
                    at += 1
                if at == len(lines):
                    sys.exit(f"{self.name}:{first}: the block does not end")
                text = "\n".join(block) + "\n"
                if kind == "sh":
                    self.steps.append(Step(text, first))
                elif kind == "text" and follows:
                    self.steps[-1].output = text
                elif kind == "console" and not (why or why_all):
                    self.wrong.append(f"{self.name}:{first}: no <!-- shown: WHY --> before a block that is not run")
                elif kind not in OTHER_BLOCKS | {"console"}:
                    self.wrong.append(f"{self.name}:{first}: a block is sh, text, console or json, not {kind}")
                if kind in ("sh", "console"):
                    self.blocks.append((first, text))
                follows, why = kind == "sh" and end == "```", None
            elif found := re.match(r"<!-- shown( on this page)?: .*\S.* -->$", line.rstrip()):
                why = True
                why_all = why_all or found[1]
            elif line.startswith("    ") and line.strip() and (at == 0 or not lines[at - 1].strip()) and not in_list(lines, at):
                if self.name not in ELSEWHERE:
                    self.wrong.append(f"{self.name}:{first}: an indented block: make it one of sh or console")
                block = []
                while at < len(lines) and lines[at].startswith("    "):
                    block.append(lines[at].strip())
                    at += 1
                self.blocks.append((first, "\n".join(block)))
                continue
            elif line.strip():
                follows, why = False, None
                prose.append((first, line))
            else:
                prose.append((first, ""))
            at += 1
        self.spans = list(inline(prose))


def in_list(lines, at):
    """Whether an indented line belongs to the item of a list above it."""
    while at > 0:
        at -= 1
        if lines[at].strip() and not lines[at].startswith("    "):
            return bool(re.match(r" {0,3}(?:[*-]|\d+\.) ", lines[at]) or lines[at].startswith("  "))
    return False


def inline(prose):
    """What stands between backticks, with the line that it begins in. It may go on in the next line of its paragraph."""
    paragraph = []
    for at, line in [*prose, (0, "")]:
        if line.strip():
            paragraph.append((at, line))
            continue
        text = "\n".join(line for _, line in paragraph)
        for found in re.finditer(r"`([^`]+)`", text):
            yield paragraph[text[:found.start()].count("\n")][0], " ".join(found[1].split())
        paragraph = []


def pattern(expected):
    """What the output has to match as a whole."""
    out = []
    for line in expected.rstrip("\n").split("\n"):
        if line.strip() == "…":
            out.append(r"(?:[^\n]*\n)*?")
        else:
            out.append(".*?".join(re.escape(part) for part in line.rstrip().split("…")) + r"[ \t]*\n")
    return re.compile("".join(out) + r"\Z")


ADDRESSES = range(1, 10)


def wrapped():
    """The command before bash that gives it namespaces of its own, if this user may have them, and what makes them usable."""
    wrapper = ["unshare", "--net", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"]
    if os.getuid() != 0:
        wrapper.insert(1, "--map-root-user")
    before = "ip link set lo up && mount -t tmpfs none /var/lib && " + " && ".join(f"ip address add 10.0.0.{n}/32 dev lo" for n in ADDRESSES)
    try:
        done = subprocess.run([*wrapper, "sh", "-c", before], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except FileNotFoundError:
        return [], ""
    return (wrapper, f"{before} || exit\n") if done.returncode == 0 else ([], "")


MARK = "--- step "


def run(page, work, bin_dir, namespaces):
    """Runs the steps; gives one line for each failure."""
    wrapper, before = namespaces
    name = re.sub(r"\W", "-", page.name)
    directory = os.path.join(work, name)
    os.makedirs(os.path.join(directory, "target/release"))
    os.symlink(os.path.join(bin_dir, "mainstay"), os.path.join(directory, "target/release/mainstay"))
    # Each step is a file of its own that the shell reads, so that `set -e` ends the document at the first command that fails, and
    # what a step prints can be told from what the next one does.
    script = [before, "exec 2>&1\nset -e\n"]
    for number, step in enumerate(page.steps):
        path = os.path.join(work, f"{name}-{number}.sh")
        with open(path, "w", encoding="utf-8") as file:
            file.write(step.script)
        script.append(f"printf '\\n%s\\n' '{MARK}{number} begins'\n. {path}\n")
    script.append(f"printf '\\n%s\\n' '{MARK}{len(page.steps)} begins'\n")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("ETCD", "MAINSTAY"))}
    environment.update(PATH=f"{bin_dir}:{environment.get('PATH', '')}", HOME=directory, LC_ALL="C.UTF-8", TERM="dumb",
                       # On a busy machine a start may take longer than the tool waits by itself.
                       ETCDCTL_COMMAND_TIMEOUT="30s")
    log = os.path.join(work, f"{name}.log")
    with open(log, "wb") as out:
        process = subprocess.Popen([*wrapper, "bash", "--norc", "-c", "".join(script)], cwd=directory, env=environment,
                                   stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        try:
            process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # What runs without namespaces ends with its group.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
    with open(log, encoding="utf-8", errors="replace") as file:
        parts = re.split(rf"\n{MARK}\d+ begins\n", file.read())
    failures = []
    if len(parts) == 1:
        return [f"{page.name}: the shell did not start: {parts[0].strip()}"]
    for number, step in enumerate(page.steps):
        if number + 2 >= len(parts):
            said = parts[-1].strip()
            return [*failures, f"{page.name}:{step.line}: ended within this step, or took too long:\n{step.script}\n{said[-3000:]}"]
        said = parts[number + 1]
        # The shell tells which of its processes a signal has ended, whenever it notices.
        said = re.sub(r"^\S+: line \d+: +\d+ (Killed|Terminated) .*\n", "", said, flags=re.M)
        if step.output is not None and not pattern(step.output).match(said if said.endswith("\n") else f"{said}\n"):
            failures.append(f"{page.name}:{step.line}: it says\n{step.output}\nbut this was printed\n{said[-3000:]}")
    return failures


TOOLS = {"mainstay": "", "etcd": "", "etcdctl": "ctl", "etcdutl": "utl", "etcd-bench": "bench", "benchmark": "bench"}
# Flags that stand alone between backticks and are none of Mainstay's: whose they are.
OTHERS_FLAGS = {"--no-ttl": "etcdctl migrate of 3.4", "--example": "cargo", "--datastore-endpoint": "k3s", "--cluster-init": "k3s",
                "--cluster-reset": "k3s"}
# Commands that etcd's tools had in releases before 3.6 only.
OLD = {"ctl": {"migrate"}, "ctl snapshot": {"restore"}}
# Flags and commands that completion does not offer, since etcd's help texts do not have them.
HIDDEN = {"ctl": {"--zone"}}
HIDDEN_COMMANDS = ["ctl autopilot", "ctl connections", "ctl observer"]


class Names:
    """What the binary's completion knows: for each command the words and flags that may follow."""

    def __init__(self, mainstay):
        script = subprocess.run([mainstay, "completion", "bash"], stdout=subprocess.PIPE, check=True, text=True).stdout
        self.follow = {path: set(words.split()) for path, words in re.findall(r"^ +'([^']*)'\) echo '([^']*)' ;;$", script, re.M)}
        # Flags that take a value, which may be the next word.
        self.valued = {flag for flags in re.findall(r"^ +(-[^)\n]*)\) at=", script, re.M) for flag in flags.split("|")}
        self.flags = {word for words in (*self.follow.values(), *HIDDEN.values()) for word in words if word.startswith("-")}
        for path in HIDDEN_COMMANDS:
            above, name = path.rsplit(" ", 1)
            self.follow[above].add(name)
            self.learn(mainstay, path)
        if len(self.follow) < 80 or len(self.valued) < 100:
            sys.exit("`mainstay completion bash` has another form than this program reads")

    def learn(self, mainstay, path):
        """Takes the words and flags that may follow a hidden command, and those below it, from their help."""
        text = subprocess.run([mainstay, *path.split(), "--help"], stdout=subprocess.PIPE, check=True, text=True).stdout
        flags = re.findall(r"^ +(?:-\w, )?(--[a-z-]+)(?: (?!  )(\S+))?", text, re.M)
        below = re.search(r"^Available Commands:\n((?: .*\n)*)", text, re.M)
        below = re.findall(r"^ +(\S+)", below[1], re.M) if below else []
        self.follow[path] = {*below, *(flag for flag, _ in flags)}
        self.flags |= {flag for flag, _ in flags}
        self.valued |= {flag for flag, value in flags if value}
        for word in below:
            self.learn(mainstay, f"{path} {word}")

    def wrong(self, words):
        """What is wrong with a command, its program first."""
        path = TOOLS[os.path.basename(words[0])]
        # A link or a flag of etcd's own server; nothing else may follow.
        words, at = words[1:], 0
        while at < len(words):
            word = words[at]
            at += 1
            if word == "--" or re.search(r"[\[\]…$<>|{]|\.\.\.|^[A-Z0-9_]+$", word):
                return None
            known = self.follow[path] | HIDDEN.get(path.split(" ")[0], set())
            if word.startswith("--"):
                flag, equals, _ = word.partition("=")
                if flag not in known and flag != "--help":
                    return f"{path or 'mainstay'} has no flag {flag}"
                at += not equals and flag in self.valued
            elif word.startswith("-") and len(word) > 1:
                at += word in self.valued
            elif word in OLD.get(path, ()):
                return None
            elif any(not word.startswith("-") for word in known):
                if word not in known:
                    return f"{path or 'mainstay'} has no command {word}"
                path = f"{path} {word}".strip()
        return None


def commands(text):
    """The simple commands of a script, as words, as far as a shell is needed to tell."""
    text = re.sub(r"\\\n", " ", text)
    for line in text.split("\n"):
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&`")
        lexer.whitespace_split = True
        lexer.commenters = "#"
        words = []
        try:
            tokens = list(lexer)
        except ValueError:
            # A quotation that goes on in the next line.
            tokens = line.split()
        for token in [*tokens, ";"]:
            if re.fullmatch(r"[();<>|&`]+", token) or token in ("$", "do", "then", "until", "while", "if", "!", "time", "sudo", "run"):
                if words:
                    yield words
                words = []
            elif words or not re.fullmatch(r"[A-Za-z_]\w*=.*", token):
                words.append(token)


def source_of(program):
    """The text of a program of this repository that a command begins with, and of the modules that it imports and that are no
    programs themselves, or None."""
    if program in ("interop", "./interop", "/tmp/interop"):
        return "".join(read(path) for path in glob.glob(os.path.join(ROOT, "interop/go/**/*.go"), recursive=True))
    if program in ("./systems", "interop/systems"):
        return "".join(read(path) for path in glob.glob(os.path.join(ROOT, "interop/systems/*.go")))
    for path in (program, os.path.join("interop", program)):
        if re.fullmatch(r"(\./)?(interop/|fuzz/|packaging/|\.ci/)?[\w./-]+(\.py|\.sh|/run|/build|try-deb)", program):
            path = os.path.join(ROOT, path)
            if os.path.isfile(path):
                return read(path) + "".join(modules_of(path))
    return "" if re.match(r"(\./|interop/)[\w-]+\.(py|sh)$", program) else None


def modules_of(path):
    """The texts of the modules beside a Python program that it imports and that cannot be run."""
    for name in re.findall(r"^(?:import|from) (\w+)", read(path), re.M) if path.endswith(".py") else ():
        module = os.path.join(os.path.dirname(path), f"{name}.py")
        if os.path.isfile(module) and "def main" not in (text := read(module)):
            yield text


def flags_of_programs():
    """The flags of what is not the product: programs of `interop`, the checks, the fuzzers, the simulator and the examples."""
    def text(*patterns):
        return "".join(read(path) for one in patterns for path in glob.glob(os.path.join(ROOT, one), recursive=True))
    flags = set(re.findall(r"--[a-z][a-z0-9-]+", text("interop/*.py", "fuzz/run", ".ci/*", "crates/sim/**/*.rs", "crates/*/examples/**/*.rs")))
    return flags | {f"--{name}" for name in re.findall(r'"([a-z][a-z0-9-]+)"', text("interop/**/*.go", "crates/torture/**/*.rs"))}


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def wrong_names(page, names, scripts):
    """Words and flags of commands that do not exist."""
    if "generated" in ELSEWHERE.get(page.name, ""):
        return
    for line, text in page.blocks + page.spans:
        alone = re.fullmatch(r"(--[a-z][a-z0-9-]+)(?:[= ].*)?", text)
        if alone and alone[1] not in names.flags and alone[1] not in OTHERS_FLAGS and alone[1] not in scripts:
            yield f"{page.name}:{line}: nothing has the flag {alone[1]}"
        for words in commands(text):
            program = words[0]
            if program == "cargo" and "run" in words[1:2] and "--" in words and "-p" not in words and "--manifest-path" not in words:
                words = ["mainstay", *words[words.index("--") + 1:]]
                program = "mainstay"
            base = os.path.basename(program)
            if base in TOOLS and program in (base, f"target/release/{base}", f"/usr/bin/{base}", f"/usr/local/bin/{base}"):
                if wrong := names.wrong(words):
                    yield f"{page.name}:{line}: {wrong}: {' '.join(words)}"
            elif (source := source_of(program)) is not None:
                if not source:
                    yield f"{page.name}:{line}: there is no {program}"
                # What is quoted is for another program.
                for word in words[1:]:
                    if found := re.match(r"--([a-z][a-z0-9-]+)(=|$)", word):
                        if f'"{found[1]}"' not in source and f"--{found[1]}" not in source:
                            yield f"{page.name}:{line}: {program} has no flag --{found[1]}"


def documents():
    """Every document of the repository that is not material of a test."""
    found = [path for one in ("*.md", "docs/*.md", "docs/reference/*.md", "interop/README.md") for path in glob.glob(os.path.join(ROOT, one))]
    return sorted(os.path.relpath(path, ROOT) for path in found)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mainstay", required=True)
    parser.add_argument("--only", help="these documents only, by their names without folder and ending, with commas between")
    parser.add_argument("--list", action="store_true", help="print what is run of each document, and end")
    parser.add_argument("--keep", action="store_true", help="leave the directory with outputs and data")
    args = parser.parse_args()
    pages = [Page(name) for name in documents()]
    if args.only:
        only = args.only.split(",")
        if unknown := set(only) - {page.short for page in pages}:
            parser.error(f"no such document: {', '.join(sorted(unknown))}")
        pages = [page for page in pages if page.short in only]
    if args.list:
        for page in pages:
            shown = sum(1 for _ in page.blocks) - len(page.steps)
            print(f"{page.name}: {ELSEWHERE.get(page.name) or f'{len(page.steps)} steps, {shown} blocks that are only shown'}")
        return
    mainstay = os.path.abspath(args.mainstay)
    work = tempfile.mkdtemp(prefix="guides-")
    bin_dir = os.path.join(work, "bin")
    os.mkdir(bin_dir)
    for name in ("mainstay", "etcdctl", "etcdutl"):
        os.symlink(mainstay, os.path.join(bin_dir, name))
    names = Names(mainstay)
    scripts = flags_of_programs()
    namespaces = wrapped()
    passed = failed = skipped = 0

    def judge(page):
        wrong = [*page.wrong, *wrong_names(page, names, scripts)]
        if page.name in ELSEWHERE or not page.steps:
            return wrong, 0, None
        if not namespaces[0] and any("10.0.0." in step.script for step in page.steps):
            return wrong, 0, "this user may have no namespaces with addresses of their own"
        return wrong + run(page, work, bin_dir, namespaces), len(page.steps), None

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE if namespaces[0] else 1) as pool:
        for page, (failures, steps, why) in zip(pages, pool.map(judge, pages)):
            # The names of a document are one check.
            failed += len(failures)
            passed += max(1 + steps - len(failures), 0)
            skipped += why is not None
            for failure in failures:
                print(f"FAILED  {failure}")
            if steps or failures or why:
                print(f"{page.name}: {f'SKIPPED: {why}' if why else f'{steps} steps'}, {len(failures)} failures", flush=True)
    if args.keep:
        print(work)
    else:
        shutil.rmtree(work, ignore_errors=True)
    print(f"{passed} passed, {failed} failed" if not skipped else f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(failed != 0)


main()
