"""Many scans at once through the C interface: ``python -m benchmarks.c_scans [--files N]``.

A C program opens the table of the ladder once and asks it from 1, 2 and 8 threads: for one hour of files, which is a
small share of the sidecar, and for all of them. What several threads gain over one is what runs outside Python's lock.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.ladder_tables import LADDER_TABLE, indexed_table
from lazydelta.capi.build import build as build_library

THREADS = (1, 2, 8)
QUESTIONS = {"one hour": ('{"where": {"_event_hour": "2026021012"}}', 40), "all files": ("{}", 4)}
PROGRAM = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include "delta_lazy.h"
static struct delta_table *table;
static const char *question;
static int scans;
static bool count(const struct delta_file *file, void *found) { ++*(long *)found; return file != NULL; }
static void *work(void *found) {
    for (int i = 0; i < scans; i++)
        if (delta_lazy_scan(table, question, count, found) != 0) {
            fprintf(stderr, "%s\n", delta_last_error());
            exit(1);
        }
    return NULL;
}
static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}
static double cpu(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double seconds = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec);
    return seconds + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}
int main(int number, char **words) {
    if (number < 5 || delta_lazy_open(words[1], NULL, &table) != 0) return 1;
    question = words[2];
    int threads = atoi(words[4]);
    long found[64] = {0};
    pthread_t all[64];
    scans = 1;
    work(&found[0]); /* warm: the manifest and the footers are remembered from here on */
    long files = found[0];
    scans = atoi(words[3]) / threads;
    double began = now(), used = cpu();
    for (int i = 0; i < threads; i++) pthread_create(&all[i], NULL, work, &found[i]);
    for (int i = 0; i < threads; i++) pthread_join(all[i], NULL);
    double took = now() - began;
    printf("{\"files\": %ld, \"scans\": %d, ", files, scans * threads);
    printf("\"seconds\": %.4f, \"cpu\": %.4f}\n", took, cpu() - used);
    delta_lazy_close(table);
    return 0;
}
"""


def main() -> None:
    """Make the table, compile the program, and print a table of what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="the fastest one counts")
    given = parser.parse_args()
    table, _ = indexed_table(given.files, **LADDER_TABLE)
    with tempfile.TemporaryDirectory(prefix="lazydelta-c-scans-") as folder:
        home = Path(folder)
        build_library(home / "lib")
        (home / "host.c").write_text(PROGRAM, encoding="ascii")
        host = [shutil.which("cc") or "cc", "-O2", str(home / "host.c"), "-o", str(home / "host"), f"-I{home / 'lib'}"]
        linking = [f"-L{home / 'lib'}", "-ldelta_lazy", f"-Wl,-rpath,{home / 'lib'}", "-lpthread"]
        subprocess.run([*host, *linking], check=True)
        sys.stdout.write(
            "| question | threads | scans a second | ms a scan | CPU ms a scan |\n| --- | --- | --- | --- | --- |\n"
        )
        for name, (question, scans) in QUESTIONS.items():
            for threads in THREADS:
                command = [str(home / "host"), str(table), question, str(max(scans, threads)), str(threads)]
                outputs = [subprocess.check_output(command) for _ in range(given.rounds)]
                best = min(map(json.loads, outputs), key=lambda each: each["seconds"] / each["scans"])
                rate = best["scans"] / best["seconds"]
                figures = f"{rate:.1f} | {threads * 1000 / rate:.1f} | {best['cpu'] / best['scans'] * 1000:.1f}"
                sys.stdout.write(f"| {name}: {best['files']:,} files | {threads} | {figures} |\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
