#!/usr/bin/env python3
"""What it costs to put one small record on the disk, in each way that the kernel offers: time and processor time.

    interop/log_device.py --dir DIRECTORY [--rounds 3000] [--runs 5]

For each way a file that has its blocks gets one record of 1,100 bytes (of 4,096, aligned, where the page cache is left out) after
the other, each on the disk before the next: by `pwrite` and `fdatasync`, as the log does it; by a write that is synced itself
(O_DSYNC); past the page cache (O_DIRECT); and the same by io_uring. The ways take turns within each run, and the table has the
medians. Processor time is that of the process, with the threads that io_uring has of its own.
Python 3.9+, standard library only; Linux.
"""

import argparse
import ctypes
import mmap
import os
import resource
import statistics
import struct
import time

FILE_BYTES = 16 << 20
SMALL, BLOCK = 1100, 4096
SETUP, ENTER = 425, 426
RWF_DSYNC = 2


class Ring:
    """As much of io_uring as a write and a sync need."""

    WRITE, FSYNC, LINK, DATASYNC, WAIT = 23, 3, 4, 1, 1

    def __init__(self):
        self.libc = ctypes.CDLL(None, use_errno=True)
        params = (ctypes.c_uint32 * 30)()
        self.fd = self.libc.syscall(SETUP, 8, params)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "io_uring_setup")
        entries, completions = params[0], params[1]
        submission, completion = list(params[10:20]), list(params[20:30])
        self.queue = mmap.mmap(self.fd, submission[6] + entries * 4, offset=0)
        self.done = mmap.mmap(self.fd, completion[5] + completions * 16, offset=0x8000000)
        self.requests = mmap.mmap(self.fd, entries * 64, offset=0x10000000)
        self.entries = entries
        self.tail_at, self.array_at = submission[1], submission[6]
        self.done_head_at, self.done_tail_at, self.results_at, self.completions = completion[0], completion[1], completion[5], completions

    def submit(self, *requests):
        """Submits (opcode, flags, fd, offset, address, length, operation's flags) each, and waits for all."""
        (tail,) = struct.unpack_from("<I", self.queue, self.tail_at)
        for number, request in enumerate(requests):
            opcode, flags, fd, offset, address, length, more = request
            at = (tail + number) % self.entries
            struct.pack_into("<BBHiQQII Q24x", self.requests, at * 64, opcode, flags, 0, fd, offset, address, length, more, 0)
            struct.pack_into("<I", self.queue, self.array_at + at * 4, at)
        struct.pack_into("<I", self.queue, self.tail_at, tail + len(requests))
        if self.libc.syscall(ENTER, self.fd, len(requests), len(requests), self.WAIT, None, 0) != len(requests):
            raise OSError(ctypes.get_errno(), "io_uring_enter")
        (head,) = struct.unpack_from("<I", self.done, self.done_head_at)
        for number in range(len(requests)):
            _, result, _ = struct.unpack_from("<QiI", self.done, self.results_at + (head + number) % self.completions * 16)
            if result < 0:
                raise OSError(-result, "io_uring")
        struct.pack_into("<I", self.done, self.done_head_at, head + len(requests))


def ways():
    """Name, flags of the file, bytes of a record, and what writes one at an offset."""
    def synced(fd, memory, offset):
        os.pwritev(fd, [memory], offset)
        os.fdatasync(fd)

    def written(fd, memory, offset):
        os.pwritev(fd, [memory], offset)

    found = [
        ("pwrite, fdatasync", 0, SMALL, synced),
        ("pwrite, O_DSYNC", os.O_DSYNC, SMALL, written),
        ("pwrite past the cache (O_DIRECT), fdatasync", os.O_DIRECT, BLOCK, synced),
        ("pwrite past the cache, O_DSYNC", os.O_DIRECT | os.O_DSYNC, BLOCK, written),
    ]
    try:
        ring = Ring()
    except OSError as error:
        print(f"io_uring is not to be had here: {error}")
        return found

    def linked(fd, memory, offset):
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        ring.submit((ring.WRITE, ring.LINK, fd, offset, address, len(memory), 0), (ring.FSYNC, 0, fd, 0, 0, 0, ring.DATASYNC))

    def through(fd, memory, offset):
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        ring.submit((ring.WRITE, 0, fd, offset, address, len(memory), RWF_DSYNC))

    return found + [
        ("io_uring: write linked with fdatasync", 0, SMALL, linked),
        ("io_uring: write past the cache, synced", os.O_DIRECT, BLOCK, through),
    ]


def measure(path, flags, size, write, rounds):
    with open(path, "wb") as file:
        file.write(bytes(FILE_BYTES))
        file.flush()
        os.fsync(file.fileno())
    fd = os.open(path, os.O_RDWR | flags)
    memory = mmap.mmap(-1, size)
    memory.write(os.urandom(size))
    try:
        times, before = [], resource.getrusage(resource.RUSAGE_SELF)
        for number in range(rounds):
            began = time.perf_counter()
            write(fd, memory, number * size % (FILE_BYTES // 2))
            times.append(time.perf_counter() - began)
        after = resource.getrusage(resource.RUSAGE_SELF)
    finally:
        os.close(fd)
        os.unlink(path)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"p50 us": statistics.median(times) * 1e6, "p99 us": statistics.quantiles(times, n=100)[98] * 1e6, "CPU us": used / rounds * 1e6}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", required=True, help="on the disk to be measured")
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    results, known = {}, ways()
    for _ in range(args.runs):
        for name, flags, size, write in known:
            results.setdefault(name, []).append(measure(os.path.join(args.dir, "log-device"), flags, size, write, args.rounds))
    print("| way | p50 us | p99 us | CPU us |\n|---|---|---|---|")
    for name, runs in results.items():
        cells = [f"{statistics.median(figures[column] for figures in runs):.1f}" for column in ("p50 us", "p99 us", "CPU us")]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
