"""The floor below all: a C program that forks a child for each call, which answers over a pipe. Compiled where there is ``cc``."""

import shutil
import subprocess

from bench import measurement
from bench.measurement import Absent, Run
from bench.rivals.served import jobs_for

# reads a line with a region, forks, sends it to the child, which makes the answer; waits for the child's end, prints the answer
_SOURCE = r"""
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    char line[4096], answer[8192];
    while (fgets(line, sizeof line, stdin)) {
        int ask[2], tell[2];
        line[strcspn(line, "\n")] = 0;
        if (pipe(ask) || pipe(tell)) return 2;
        pid_t child = fork();
        if (child < 0) return 3;
        if (child == 0) {
            char region[4096];
            ssize_t got = read(ask[0], region, sizeof region - 1);
            if (got < 0) _exit(1);
            region[got] = 0;
            int length = snprintf(answer, sizeof answer, "{\"region\": \"%s\", \"refundWindowDays\": 14}\n", region);
            _exit(write(tell[1], answer, length) != length);
        }
        close(tell[1]);
        if (write(ask[1], line, strlen(line)) < 0) return 4;
        ssize_t length = read(tell[0], answer, sizeof answer - 1);
        waitpid(child, NULL, 0);
        close(ask[0]); close(ask[1]); close(tell[0]);
        if (length <= 0) return 5;
        fwrite(answer, 1, length, stdout);
        fflush(stdout);
    }
    return 0;
}
"""


def _build(run: Run) -> list[str]:
    compiler = shutil.which("cc")
    if compiler is None:
        raise Absent("there is no C compiler (cc) on the path")
    source, program = run.folder / "floor.c", run.folder / "floor"
    source.write_text(_SOURCE, encoding="utf-8")
    subprocess.run([compiler, "-O2", "-o", str(program), str(source)], check=True, capture_output=True)
    return [str(program)]


JOBS = jobs_for(_build)

if __name__ == "__main__":
    measurement.main(JOBS)
