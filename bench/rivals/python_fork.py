"""The bare Python fork: a small interpreter forks a child for each call, which answers over a pipe and is waited for. No wall at all.

It bounds whoever forks a Python for each call on this machine.
"""

from bench import measurement
from bench.rivals.served import jobs_for
from bench.rivals.started import python

_PROGRAM = r"""
import os
for line in os.fdopen(0, "rb", buffering=0):
    ask_out, ask_in = os.pipe()
    told_out, told_in = os.pipe()
    child = os.fork()
    if child == 0:
        region = os.read(ask_out, 4096).decode()
        os.write(told_in, b'{"region": "%s", "refundWindowDays": 14}\n' % region.encode())
        os._exit(0)
    os.close(told_in)
    os.write(ask_in, line[:-1])
    answer = os.read(told_out, 4096)
    os.waitpid(child, 0)
    for descriptor in (ask_out, ask_in, told_out):
        os.close(descriptor)
    os.write(1, answer)
"""

JOBS = jobs_for(lambda run: [python(), "-I", "-S", "-c", _PROGRAM])

if __name__ == "__main__":
    measurement.main(JOBS)
