"""The commands of a document in Markdown, as they stand there, for tests that run them.

`Document` finds them, `ways` and `filled` make of one what a shell can run, and `Seen` notes what was run. Standard library only.
"""

import os
import re

from takeover import Wrong

PROGRAMS = {"mainstay", "etcd", "etcdctl", "etcdutl", "time", "systemctl", "kill", "cd", "cp", "mv", "rm"}


def plain(text):
    return " ".join(text.split())


class Command:
    """A command of the document: its lines, each with the comment behind it."""

    def __init__(self, lines, at):
        self.at = at
        self.lines = []
        for line in lines:
            words, _, comment = line.partition(" # ")
            self.lines.append((words.strip(), comment.strip()))

    def text(self, without=None):
        return plain(" ".join(words for words, comment in self.lines if comment != without or not without))


class Document:
    """What the document tells an operator to run, and what it promises that programs say."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            lines = file.read().split("\n")
        blocks, prose, at = [], [], 0
        while at < len(lines):
            if lines[at].startswith("    ") and (at == 0 or not lines[at - 1].strip()):
                while lines[at].startswith("    "):
                    first, parts = at + 1, [lines[at]]
                    while parts[-1].partition(" # ")[0].rstrip().endswith("&&"):
                        at += 1
                        parts.append(lines[at])
                    blocks.append(Command(parts, first))
                    at += 1
            else:
                prose.append((at + 1, lines[at]))
                at += 1
        self.commands = {command.text(): command for command in blocks}
        self.flags, self.words, named = {}, {}, {}
        for first, span in inline(prose):
            program = os.path.basename(span.split(" ")[0])
            if span.startswith("--"):
                self.flags.setdefault(span, first)
            elif " " in span and program in PROGRAMS:
                named.setdefault(span, Command([span], first))
            elif " " in span:
                self.words.setdefault(span, first)
        for text, command in named.items():
            if not any(other.startswith(f"{text} ") for other in (*self.commands, *named)):
                self.commands.setdefault(text, command)
        # A command that is named without its program, as `member add`.
        for span in list(self.words):
            if any(f" {span} " in f"{text} " for text in self.commands):
                del self.words[span]

    def find(self, beginning):
        """The one command that begins so."""
        if beginning in self.commands:
            return self.commands[beginning]
        found = [text for text in self.commands if f"{text} ".startswith(f"{beginning} ")]
        if len(found) != 1:
            raise Wrong(f"{len(found)} commands of the document begin with: {beginning}")
        return self.commands[found[0]]


def inline(prose):
    """What stands between backticks, with the line that it begins in. It may go on in the next line of its paragraph."""
    paragraph = []
    for at, line in [*prose, (0, "")]:
        if line.strip():
            paragraph.append((at, line))
            continue
        text = "\n".join(line for _, line in paragraph)
        for found in re.finditer(r"`([^`]+)`", text):
            yield paragraph[text[:found.start()].count("\n")][0], plain(found[1])
        paragraph = []


def ways(text):
    """A command with and without each of its parts in brackets; one in another needs that one."""
    found = re.search(r"\s*\[([^\[\]]*)\]", text)
    if not found:
        return [plain(text)]
    before, behind = text[:found.start()], text[found.end():]
    depth = before.count("[") - before.count("]")
    if depth == 0:
        return [way for part in ("", f" {found[1]}") for way in ways(before + part + behind)]
    # The outer one without this one, and with it, and neither.
    outer = before.rfind("[")
    close = behind.index("]")
    inner = before[outer + 1:]
    parts = ("", f" {inner}{behind[:close]}", f" {inner} {found[1]}{behind[:close]}")
    return [way for part in parts for way in ways(before[:outer] + part + behind[close + 1:])]


def filled(text, table):
    """A command with everything filled in that the document leaves open."""
    for key in table:
        if key not in text:
            raise Wrong(f"{key!r} is filled in, but is not in: {text}")
    keys = "|".join(re.escape(key) for key in sorted(table, key=len, reverse=True)) or "(?!)"
    script = re.sub(rf"(?<![A-Za-z])(?:{keys})(?![A-Za-z])", lambda found: str(table[found[0]]), text)
    left = re.sub(rf"(?<![A-Za-z])(?:{keys})(?![A-Za-z])", "", text)
    if open_ := re.search(r"…|\[|\]|(?<![\w/.-])[A-Z]+(?![\w-])", left):
        raise Wrong(f"nothing is filled in for {open_[0]!r} of: {text}")
    return script


class Seen:
    """What was run and looked for."""

    def __init__(self):
        self.commands, self.words, self.flags = set(), set(), set()

    def given(self, script):
        for word in script.split():
            if word.startswith("--"):
                self.flags |= {word, word.split("=")[0]}
        self.flags |= {f"{name} {value}" for name, value in zip(script.split(), script.split()[1:])}
