"""The launcher: a small process, started once, from which every jail is forked.

Its job: answer the supervisor's orders (a jail, a parser, a probe), give each jail its monitor, bury the dead, say what this host is.
Not its job: deciding what a jail looks like (the plan), running tool code (never here, never in anything that is not locked).
Laws:
1. It is exec'd with an empty environment and one inherited descriptor, and dies with the supervisor (tests/security/test_promise_clean.py).
2. Orders come from the supervisor only; nothing that a worker wrote is read here.
3. Everything a child will need is imported before the first order, so that no child imports from the host's view.
"""

import os
import select
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import _signal
import _socket
import _thread
import gc
import time
from typing import Any

from enter import coding, enter, facts, immortal, kernel, probe, reader, slots, snapshot, zygote
from enter.runtime import Runtime

_CONTROL = 3
_ORDER_BYTES = 1 << 20
_END_SECONDS = 2.0  # for jails that were sent a SIGKILL to be gone, a thousand times what one takes


class Jail:
    """What the launcher holds for one jail until all its processes are buried and its cgroups are gone: those, and the lock of its uid."""

    def __init__(self, cgroups: list[tuple[str, int]], lock: int = -1) -> None:
        self.cgroups, self._lock = cgroups, lock

    def give_back(self) -> bool:
        """Give back what was borrowed; false while a process is still in a cgroup of it."""
        if not slots.give_back(self.cgroups):
            return False
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        return True


class Launcher:
    """Answers orders on the control socket, one at a time."""

    def __init__(self, control: _socket.socket, runtime: Runtime) -> None:
        self._control, self._runtime = control, runtime
        self._jails: dict[int, Jail] = {}  # monitor's pid -> what it borrowed
        self._numbers: dict[int, Jail] = {}  # the supervisor's number -> the same
        self._lingering: list[Jail] = []
        self._folders = slots.find_cgroups()
        slots.sweep(self._folders)

    def run(self) -> None:
        """Serve until the supervisor lets go of the control socket."""
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        _signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        _signal.signal(_signal.SIGCHLD, lambda *_: None)
        self._reply(0, facts.of_host(self._runtime, self._folders))
        poll = select.poll()
        poll.register(_CONTROL, select.POLLIN)
        poll.register(woken, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == woken:
                    os.read(woken, 4096)
                    self._bury()
                elif not self._order():
                    return

    def end(self) -> None:
        """End every jail and give back what they borrowed; the supervisor has let go, or is gone."""
        for pid in self._jails:
            try:
                os.kill(pid, _signal.SIGKILL)  # a child of ours that nobody waits for but us: its number is its own
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + _END_SECONDS
        while (self._jails or self._lingering) and time.monotonic() < deadline:
            self._bury()
            time.sleep(0.001)

    def _order(self) -> bool:
        data, descriptors = zygote.receive(self._control, _ORDER_BYTES, 1)
        if not data:
            return False
        _, number, what, details = self._runtime.codec.unpack(data[4:])
        del data  # security: a child finds this frame below its own, and in it where on the host its jail was made from
        try:
            if what == "jail":
                self._jail(number, details, descriptors[0])
            elif what == "parse":
                self._parse(number, details, descriptors[0])
            elif what == "probe":
                self._probe(number, details, descriptors[0])
            elif what == "oom":
                held = self._numbers.get(details["number"])
                self._reply(number, {"kills": slots.oom_kills(held.cgroups) if held else 0})
        except kernel.Step as step:
            self._refuse(number, step)
        except OSError as error:  # no process, no descriptor to be had: this order's trouble, not that of the jails there are
            self._refuse(number, enter.named("make the process that was ordered", error))
        finally:
            os.close(descriptors[0])
        return True

    def _refuse(self, number: int, step: kernel.Step) -> None:
        self._reply(number, {"step": step.name, "errno": step.number, "text": step.text})

    def _jail(self, number: int, plan: dict[str, Any], channel: int) -> None:
        borrowed: list[int] = []
        if plan["uids"] is not None:
            plan["uid"], lock = slots.claim_uid(*plan["uids"])
            plan["gid"] = plan["slots"]["uid"] = plan["slots"]["gid"] = plan["uid"]
            borrowed.append(lock)
        jail = Jail([], *borrowed)
        try:
            jail.cgroups = slots.make_cgroups(self._folders, plan["cgroup_limits"], number)
            plan["cgroups"] = [place for place, _ in jail.cgroups]
            launcher = os.getpid()
            pid = os.fork()
            if pid == 0:
                _monitor(plan, launcher, channel, borrowed, self._runtime)
        except (OSError, kernel.Step):
            jail.give_back()
            raise
        self._jails[pid] = self._numbers[number] = jail
        self._reply(number, {"monitor": pid}, os.pidfd_open(pid))

    def _parse(self, number: int, details: dict[str, Any], channel: int) -> None:
        launcher = os.getpid()
        pid = os.fork()
        if pid == 0:
            _reader(details, launcher, channel, self._runtime)
        self._jails[pid] = Jail([])
        self._reply(number, {"parser": pid}, os.pidfd_open(pid))

    def _probe(self, number: int, details: dict[str, Any], channel: int) -> None:
        launcher = os.getpid()
        pid = os.fork()
        if pid == 0:
            _attempt(details, launcher, channel)
        self._jails[pid] = Jail([])
        self._reply(number, {"probe": pid}, os.pidfd_open(pid))

    def _bury(self) -> None:
        try:
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                jail = self._jails.pop(pid, None)
                if jail is not None:
                    self._lingering.append(jail)
        except ChildProcessError:
            pass  # nobody left to wait for
        # security: a monitor that was killed dies before the first process: its uid is not free until that was waited for as well
        adopted = self._end_adopted()
        self._lingering = [jail for jail in self._lingering if adopted or not jail.give_back()]
        living = {id(jail) for jail in (*self._jails.values(), *self._lingering)}
        self._numbers = {number: jail for number, jail in self._numbers.items() if id(jail) in living}

    def _end_adopted(self) -> bool:
        """End what came down to us when its monitor died: a jail's first process whose death signal was cleared by its change of uid.

        True when there was any: its death will be told, like that of any child.
        """
        try:
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                adopted = {int(word) for word in file.read().split()} - self._jails.keys()
        except OSError:
            return False  # a kernel that does not list them: the death signal has to do
        for pid in adopted:
            os.kill(pid, _signal.SIGKILL)  # a child of ours that we did not wait for yet: its number is its own
        return bool(adopted)

    def _reply(self, number: int, facts: dict[str, Any], descriptor: int = -1) -> None:
        data = self._runtime.codec.pack(1, [number, facts])
        if descriptor < 0:
            self._control.send(data)
            return
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptor.to_bytes(4, sys.byteorder))]
        self._control.sendmsg([data], rights)
        os.close(descriptor)


def _monitor(plan: enter.Plan, launcher: int, channel: int, borrowed: list[int], runtime: Runtime) -> None:
    """Make the namespaces, fork the jail's first process, wait for it. Its death is the jail's death."""
    try:
        zygote.quiet_signals()
        channel = _only(channel, borrowed)
        control = _socket.socket(fileno=channel)
        try:
            enter.die_with(launcher, "die with the launcher")
            kernel.prctl("adopt orphans", kernel.PR_SET_CHILD_SUBREAPER, 1)
            enter.leave_host(plan)
            alive, held = os.pipe2(os.O_CLOEXEC)
            pid = os.fork()
            if pid == 0:
                # security: an import under snapshot runs in there: with the lock it could free the uid of its jail, or write to the host
                for descriptor in (held, *borrowed):
                    os.close(descriptor)
                _first(plan, alive, control, runtime)
            control.close()
            os.close(alive)
            while os.wait()[0] != pid:
                continue
            if not plan["walls"]:
                zygote.end_orphans(set())
        except kernel.Step as step:
            control.send(zygote.failure(step))
    finally:
        os._exit(0)


def _first(plan: enter.Plan, alive: int, control: _socket.socket, runtime: Runtime) -> None:
    """The first process of the jail: enter it, lock it, be its zygote."""
    try:
        try:
            own: list[int] = []
            address = facts.address_space()
            code = coding.read(plan["code"])
            if plan["walls"]:
                _die_with_monitor(alive)
                scratch = enter.build_root(plan)
                runtime.settle(plan["python"], walls=True)
                enter.become_nobody(plan)
                _die_with_monitor(alive)  # the change of uid cleared it
                os.close(alive)
                zygote.preload(plan["preload"])
                runtime.stage(plan["root"], plan["layers"], code)
                ruleset, own = enter.rulesets(plan, scratch)
                enter.lock(plan, ruleset)
                enter.forget_host(plan)
            else:
                _die_with_monitor(alive)
                os.close(alive)
                scratch = [os.open(f"{plan['scratch']}/{slot}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for slot in ("0", "1")]
                kernel.prctl("adopt orphans", kernel.PR_SET_CHILD_SUBREAPER, 1)
                runtime.settle(plan["python"], walls=False)
                zygote.preload(plan["preload"])
                runtime.stage(plan["root"], plan["layers"], code)
            _thread.stack_size(plan["limits"]["stack_bytes"])
            plan["limits"]["address_bytes"] = address + plan["limits"]["memory_bytes"]
            immortal.settle()
            control.send(zygote.report({"pid1": os.getpid(), **enter.in_force(plan)}))
            learn = snapshot.learner(plan, runtime.learn)
            zygote.Zygote(plan, control, scratch, own, runtime.serve, learn).run()
        except kernel.Step as step:
            control.send(zygote.failure(step))
        except OSError as error:
            control.send(zygote.failure(enter.named("start the zygote", error)))
    finally:
        os._exit(0)


def _die_with_monitor(alive: int) -> None:
    """Be killed with the monitor; it is not visible from a new pid namespace, so a pipe tells whether it was there in time."""
    kernel.prctl("die with the monitor", kernel.PR_SET_PDEATHSIG, 9)
    poll = select.poll()
    poll.register(alive, 0)
    if poll.poll(0):
        os._exit(1)


def _reader(details: dict[str, Any], launcher: int, channel: int, runtime: Runtime) -> None:
    """Parse sources for one load in a process that can do nothing else, and be thrown away."""
    try:
        zygote.quiet_signals()
        channel = _only(channel, [])
        zygote.lock_parser(details, launcher)
        reader.serve(channel, runtime.codec)
    finally:
        os._exit(0)


def _attempt(details: dict[str, Any], launcher: int, channel: int) -> None:
    """Try one protection in this process and say what came of it; the process is of no further use."""
    try:
        zygote.quiet_signals()
        channel = _only(channel, [])
        enter.die_with(launcher, "die with the launcher")
        level, text = probe.attempt(details)
        os.write(channel, f"{level}\n{text}".encode())
    finally:
        os._exit(0)


def _only(channel: int, kept: list[int]) -> int:
    """Close every descriptor but the null ones, the channel (moved to its place) and what is kept."""
    os.dup2(0, 2)
    os.dup2(channel, _CONTROL)
    for descriptor in kept:
        os.set_inheritable(descriptor, False)
    last = _CONTROL
    for descriptor in sorted(kept):
        os.closerange(last + 1, descriptor)
        last = descriptor
    os.closerange(last + 1, 1 << 20)
    return _CONTROL


def main() -> None:
    """``main.py SUPERVISOR CARRIED PACKAGES CONTROL``: the pid to die with, two folders to load from, the control socket's descriptor."""
    supervisor = int(sys.argv[1])
    os.dup2(int(sys.argv[4]), _CONTROL)
    os.closerange(_CONTROL + 1, 1 << 20)
    enter.die_with(supervisor, "die with the supervisor")
    kernel.prctl("adopt orphans", kernel.PR_SET_CHILD_SUBREAPER, 1)
    runtime = Runtime(sys.argv[2], sys.argv[3])  # before the next lines: it finds code by the collector, which does not list what is frozen
    runtime.rehearse()
    gc.collect()
    if not kernel.can_be_immortal():
        kernel.fill_holes()
    immortal.settle(runtime.host_places())  # every jail shares these pages: a collector that walked them would copy them, in each
    launcher = Launcher(_socket.socket(fileno=_CONTROL), runtime)
    launcher.run()
    launcher.end()


if __name__ == "__main__":
    main()
