"""The second launcher: the same program as the first, with a WebAssembly image in the place of the native guest.

Its job: load wasmtime and the image before there is any jail, so that no jail ever needs memory that can be executed; then be a launcher.
Not its job: orders and jails (``enter/main.py``), the image and a guest's life (``runtime.py``).
Laws:
1. The image comes as a descriptor, opened and checked by the engine: no path is looked up here (tests/security/test_wasm_child.py).
2. It inherits two descriptors, forgets its environment, and dies with the supervisor (tests/security/test_promise_clean.py).
"""

import fcntl
import gc
import os
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import _socket

from enter import enter, immortal, kernel
from enter import main as launcher
from wasm.runtime import Runtime

_CONTROL = 3
_HIGH = 64  # a place for the image's descriptor where no other is moved to


def main() -> None:
    """``main.py SUPERVISOR CARRIED PACKAGES CONTROL WASMTIME IMAGE``: as ``enter/main.py``; wasmtime's folder, the image's descriptor."""
    supervisor, packages, wasmtime = int(sys.argv[1]), sys.argv[3], sys.argv[5]
    image = fcntl.fcntl(int(sys.argv[6]), fcntl.F_DUPFD_CLOEXEC, _HIGH)
    os.dup2(int(sys.argv[4]), _CONTROL)
    os.closerange(_CONTROL + 1, image)
    os.closerange(image + 1, 1 << 20)
    enter.die_with(supervisor, "die with the supervisor")
    kernel.prctl("adopt orphans", kernel.PR_SET_CHILD_SUBREAPER, 1)
    os.environ.clear()
    os.environ["TOKIO_WORKER_THREADS"] = "1"  # else a guest's first sleep starts as many threads as the host has processors
    os.environ["RUST_BACKTRACE"] = "0"
    try:
        runtime: Any = Runtime(packages, wasmtime, f"/proc/self/fd/{image}")
        os.close(image)
        runtime.rehearse()
    except kernel.Step as step:
        os.write(2, f"step '{step.name}' failed: {step.text}\n".encode())
        os._exit(1)
    gc.collect()
    if not kernel.can_be_immortal():
        kernel.fill_holes()
    immortal.settle(runtime.host_places())
    serving = launcher.Launcher(_socket.socket(fileno=_CONTROL), runtime)
    try:
        serving.run()
    finally:  # also when the supervisor went away in the middle of an answer: what was borrowed is given back
        serving.end()
        os._exit(0)  # tidying up would free what is sealed (``host.seal_code``)


if __name__ == "__main__":
    main()
