"""The launcher: a small process, started once, from which every jail is forked.

Its job: answer the supervisor's orders (a jail, a parser, a probe), give each jail its monitor, make one ahead, bury the dead, say what
this host is.
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
import contextlib
import gc
import time
from typing import Any

from enter import coding, enter, facts, forked, immortal, kernel, network, slots, snapshot, unbound, zygote
from enter.runtime import Runtime, look_ahead

_CONTROL = 3
_ORDER_BYTES = 1 << 20
_QUIET_MS = 10  # without an order, before the next jail is made ahead: what got the last one has the processor to itself for that long
_END_SECONDS = 5.0  # for jails that were sent a SIGKILL to be gone, a thousand times what one takes


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
        self._poll = select.poll()
        self._wanted: enter.Plan | None = None  # the base of the last jail that was ordered, until one was made ahead of the next
        self._unbound: unbound.Unbound | None = None
        self._ahead = 0  # how many were made so: their numbers begin with 0, as those of orders never do
        self._folders = slots.find_cgroups()
        slots.sweep(self._folders)

    def run(self) -> None:
        """Serve until the supervisor lets go of the control socket."""
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        _signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        _signal.signal(_signal.SIGCHLD, lambda *_: None)
        self._reply(0, facts.of_host(self._runtime, self._folders))
        self._poll.register(_CONTROL, select.POLLIN)
        self._poll.register(woken, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in self._poll.poll(_QUIET_MS if self._wanted else None)]
            if not ready:
                self._make_ahead()
            if self._unbound is not None and self._unbound.mounts in ready:
                self._drop()  # before an order could be served by it
            if woken in ready:
                os.read(woken, 4096)
                self._bury()
            if _CONTROL in ready and not self._order():
                return

    def end(self) -> None:
        """End every jail and give back what they borrowed; the supervisor has let go, or is gone."""
        deadline = time.monotonic() + _END_SECONDS
        try:
            self._drop()
            for pid in self._jails:
                try:
                    os.kill(pid, _signal.SIGKILL)  # a child of ours that nobody waits for but us: its number is its own
                except ProcessLookupError:
                    continue
            while (self._jails or self._lingering) and time.monotonic() < deadline:
                self._bury()
                time.sleep(0.001)
        finally:  # what is there is what counts, not what the books say
            while not slots.give_back_all(self._folders) and time.monotonic() < deadline:
                time.sleep(0.001)

    def _order(self) -> bool:
        data, descriptors = zygote.receive(self._control, _ORDER_BYTES, 1)
        if not data:
            return False
        _, number, what, details = self._runtime.codec.unpack_own(data[4:])
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
        self._wanted = unbound.base_of(plan)
        pid = self._bound(plan, channel)
        if pid is None:
            pid = self._made(plan, channel, str(number), bound=True)
        self._numbers[number] = self._jails[pid]
        self._reply(number, {"monitor": pid}, os.pidfd_open(pid))

    def _bound(self, plan: dict[str, Any], channel: int) -> int | None:
        """The monitor of the jail that waited, now this order's; None when there is none that this order can have."""
        if self._unbound is None:
            return None
        fit = self._unbound.fit(self._wanted)
        if fit:
            pid = self._unbound.monitor
            try:
                if plan["cgroup_limits"] != self._unbound.base["cgroup_limits"]:
                    slots.limit_cgroups(self._jails[pid].cgroups, plan["cgroup_limits"])
                self._unbound.bind({**plan, "cgroups": []}, channel, self._runtime.codec)
                self._let_go()
                return pid
            except OSError:
                fit = None  # the usual way tells what is wrong with this order, if anything is
        if fit is None:
            self._drop()
        return None

    def _made(self, plan: dict[str, Any], channel: int, name: str, *, bound: bool) -> int:
        """The monitor of a new jail. Raises OSError or Step."""
        borrowed: list[int] = []
        if plan["uids"] is not None:
            plan["uid"], lock = slots.claim_uid(*plan["uids"])
            plan["gid"] = plan["uid"]
            borrowed.append(lock)
        jail = Jail([], *borrowed)
        try:
            jail.cgroups = slots.make_cgroups(self._folders, plan["cgroup_limits"], name)
            plan["cgroups"] = [place for place, _ in jail.cgroups]
            launcher = os.getpid()
            pid = os.fork()
            if pid == 0:
                self._forget()
                _monitor(plan, launcher, channel, borrowed, self._runtime, bound=bound)
        except (OSError, kernel.Step):
            jail.give_back()
            raise
        self._jails[pid] = jail
        return pid

    def _make_ahead(self) -> None:
        """A jail that waits for an order like the last one; one try for each order, because what keeps it from being made may stay."""
        base, self._wanted = self._wanted, None
        if base is None or (self._unbound is not None and unbound.alike(self._unbound.base, base)):
            return
        self._drop()
        self._ahead += 1
        plan = {**base, "called": kernel.name_process(unbound.NAME)}  # its processes are called so from their first moment on
        try:
            self._unbound = unbound.Unbound(base)
            del base  # security: as in ``_forget``
            far = self._unbound.far  # kept open in the process that is forked: nothing is left there of the object that held it
            self._unbound.monitor = self._made(plan, far.fileno(), f"0{self._ahead}", bound=False)
            far.close()
            self._poll.register(self._unbound.mounts, select.POLLPRI)
        except (OSError, kernel.Step):
            self._drop()  # the next order takes the usual way, and tells what failed
        finally:
            kernel.name_process(plan["called"])

    def _drop(self) -> None:
        """End the jail that waits, if there is one."""
        if self._unbound is not None:
            if self._unbound.monitor in self._jails:
                os.kill(self._unbound.monitor, _signal.SIGKILL)  # a child of ours that we did not wait for yet: its number is its own
            self._let_go()

    def _let_go(self) -> None:
        if self._unbound is not None:
            with contextlib.suppress(KeyError):  # it never came to be
                self._poll.unregister(self._unbound.mounts)
            self._unbound.close()
            self._unbound = None

    def _forget(self) -> None:
        """In a process that was forked from here: let go of what is the launcher's alone."""
        # security: a child finds these objects below its own frames, and in them where on the host jails are made from
        self._jails, self._numbers, self._lingering, self._folders = {}, {}, [], {}
        self._wanted = self._unbound = None

    def _parse(self, number: int, details: dict[str, Any], channel: int) -> None:
        launcher = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._forget()
            forked.parse(details, launcher, channel, self._runtime.codec)
        self._jails[pid] = Jail([])
        self._reply(number, {"parser": pid}, os.pidfd_open(pid))

    def _probe(self, number: int, details: dict[str, Any], channel: int) -> None:
        launcher = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._forget()
            forked.attempt(details, launcher, channel)
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
        if self._unbound is not None and self._unbound.monitor not in self._jails:
            self._let_go()
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


def _monitor(plan: enter.Plan, launcher: int, channel: int, borrowed: list[int], runtime: Runtime, *, bound: bool) -> None:
    """Make the namespaces, fork the jail's first process, wait for it. Its death is the jail's death.

    While it is not bound, the plan is a base, and the channel leads to the launcher instead of the supervisor.
    """
    try:
        zygote.quiet_signals(runtime.trap_signals)
        channel = forked.only(channel, [*borrowed, *runtime.kept])
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
                _first(plan, alive, control, runtime, bound=bound)
            control.close()
            os.close(alive)
            while os.wait()[0] != pid:
                continue
            if not plan["walls"]:
                zygote.end_orphans(set())
        except kernel.Step as step:
            _fail(control, step, bound=bound)
    finally:
        os._exit(0)


def _first(plan: enter.Plan, alive: int, control: _socket.socket, runtime: Runtime, *, bound: bool) -> None:
    """The first process of the jail: enter it, lock it, be its zygote."""
    try:
        try:
            own: list[int] = []
            doors: list[int] = []
            address = facts.address_space()
            if plan["walls"]:
                forked.die_with_monitor(alive)
                scratch = enter.start_root(plan)
                runtime.settle(plan["python"], walls=True)
                look_ahead(plan["mountpoint"], plan["python"])
                kernel.drop_bounding_set()
                if not bound:
                    control, bound = unbound.wait(plan, control, runtime.codec), True
                    enter.resize_slots(plan, scratch)
                code = coding.read(plan["code"])
                doors = network.doors(plan)
                enter.finish_root(plan)
                enter.become_nobody(plan)
                forked.die_with_monitor(alive)  # the change of uid cleared it
                os.close(alive)
                zygote.preload(plan["preload"])
                runtime.stage(plan["root"], plan["layers"], code)
                ruleset, own = enter.rulesets(plan, scratch)
                enter.lock(plan, ruleset)
                enter.forget_host(plan)
            else:
                forked.die_with_monitor(alive)
                os.close(alive)
                scratch = [os.open(f"{plan['scratch']}/{slot}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for slot in ("0", "1")]
                kernel.prctl("adopt orphans", kernel.PR_SET_CHILD_SUBREAPER, 1)
                code = coding.read(plan["code"])
                runtime.settle(plan["python"], walls=False)
                zygote.preload(plan["preload"])
                runtime.stage(plan["root"], plan["layers"], code)
            _thread.stack_size(plan["limits"]["stack_bytes"])
            runtime.bound(plan, address)
            immortal.settle()
            network.report(control, zygote.report({"pid1": os.getpid(), **enter.in_force(plan)}), doors)
            learn = snapshot.learner(plan, runtime.learn)
            zygote.Zygote(plan, control, scratch, own, runtime.serve, learn).run()
        except kernel.Step as step:
            _fail(control, step, bound=bound)
        except OSError as error:
            _fail(control, enter.named("start the zygote", error), bound=bound)
    finally:
        os._exit(0)


def _fail(control: _socket.socket, step: kernel.Step, *, bound: bool) -> None:
    if bound:
        control.send(zygote.failure(step))
    else:
        unbound.fail(control, step)


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
    try:
        launcher.run()
    finally:  # also when the supervisor went away in the middle of an answer: what was borrowed is given back
        launcher.end()


if __name__ == "__main__":
    main()
