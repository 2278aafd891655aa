#!/usr/bin/env python3
"""Uses the web console as a person does, in a headless Chromium, against members that it starts.

usage: console.py --mainstay PATH [--etcd PATH] [--console PATH] [--axe FILE] [--only TEXT[,TEXT]] [--list]

`--console` is the program that serves the pages, by default that of `--mainstay`. `--axe` is axe-core's `axe.min.js`; without it the
package is fetched from npm's registry for the time of the run. Last line: "N passed, M failed"; exit status 1 if something failed, 2 if
the run was not possible. What cannot be run is named in a line that begins with SKIPPED.
"""

import argparse
import sys
import time
import traceback

import tests_administration
import tests_busy
import tests_figures
import tests_keys
import tests_looks
import tests_problems
import tests_safety
import tests_watches
from browser import BrowserError, find
from clusters import end_cleanly
from world import TESTS, Failed, Skipped, World

# In the order in which they are run.
MODULES = (tests_figures, tests_problems, tests_busy, tests_keys, tests_watches, tests_administration, tests_safety, tests_looks)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mainstay", metavar="PATH")
    parser.add_argument("--etcd", metavar="PATH")
    parser.add_argument("--console", metavar="PATH")
    parser.add_argument("--axe", metavar="FILE")
    parser.add_argument("--only", metavar="TEXT[,TEXT]", default="")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    end_cleanly()
    if options.list:
        print("\n".join(each.__name__ for each in TESTS))
        return 0
    if not options.mainstay:
        parser.error("--mainstay is needed")
    options.console = options.console or options.mainstay
    if not find():
        print("SKIPPED console: no chromium on the path (CHROMIUM names another)")
        print("0 passed, 0 failed")
        return 0
    passed = failed = 0
    world = World(options)
    try:
        for each in sorted(TESTS, key=lambda each: [module.__name__ for module in MODULES].index(each.__module__)):
            if not any(part in each.__name__ for part in options.only.split(",")):
                continue
            began = time.monotonic()
            try:
                each(world)
                world.end_test()
                passed += 1
                print(f"ok      {each.__name__} ({time.monotonic() - began:.1f} s)", flush=True)
            except Skipped as why:
                print(f"SKIPPED {each.__name__}: {why}", flush=True)
            except Exception as error:  # Whatever one test does, the others are run.
                failed += 1
                known = isinstance(error, (Failed, BrowserError))
                print(f"FAILED  {each.__name__}: {error if known else traceback.format_exc()}", flush=True)
                complaints = [text for page in world.pages for text in page.complaints]
                if complaints:
                    print(f"        the page complained: {complaints}", flush=True)
                try:
                    world.end_test()
                except Exception:  # It has failed already.
                    pass
    finally:
        world.close()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
