"""Entering the jail, as numbered steps.

Its job: carry out a plan made on the host, in this order, in two processes: the monitor (1-4), and the first process of the jail (5-13).
Not its job: deciding anything; what a plan holds is decided in ``engine/jail/plan.py``, what runs afterwards is ``zygote.py``.
Laws:
1. A step that fails ends the process with the step's name: nothing is skipped (tests/security/test_promise_enforced.py).
2. No tool byte is read before step 13 is done (tests/security/test_promise_identity.py).
"""

import os
import resource
from typing import Any

from enter import kernel
from enter.kernel import Step

Plan = dict[str, Any]
_CHILDREN = 2  # of a zygote at once, at most: one that serves, and the next
_SLOT_STEP = "mount a scratch slot"
_SLOT_FLAGS = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC


def named(name: str, error: OSError) -> Step:
    """The step's failure for an OSError of Python's own calls."""
    return Step(name, error.errno or 0, error.strerror or type(error).__name__)


def leave_host(plan: Plan) -> None:
    """Steps 1-4, in the monitor: the cgroup, then the namespaces; its next child is the first process of the jail."""
    # 1. be the first one the kernel takes when memory runs out, not the supervisor or a neighbour
    _write("offer oneself to the OOM killer", "/proc/self/oom_score_adj", "1000")
    # 2. join the cgroup while its path can still be seen
    for folder in plan["cgroups"]:
        _write("join the cgroup", folder + "/cgroup.procs", "0")
    # 3. an ordinary user becomes the owner of what follows in a user namespace of its own
    if "user" in plan["namespaces"]:
        uid, gid = os.getuid(), os.getgid()
        kernel.unshare("user")
        _write("refuse setgroups", "/proc/self/setgroups", "deny")
        _write("map the uid", "/proc/self/uid_map", f"{plan['uid']} {uid} 1")
        _write("map the gid", "/proc/self/gid_map", f"{plan['gid']} {gid} 1")
    # 4. every other namespace; the mount one last, so that what the others need can still be reached
    for name in kernel.NAMESPACES:
        if name != "user" and name in plan["namespaces"]:
            kernel.unshare(name)


def start_root(plan: Plan) -> list[int]:
    """Steps 5 and 6, as far as jails have them in common: a private root, what every jail shows, the slots. Those, open."""
    # 5. nothing that is mounted here reaches the host, nor the reverse
    kernel.mount("make mounts private", "none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    root = plan["mountpoint"]
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("mount the root", "stockade", root, "tmpfs", flags, "size=1m,nr_inodes=1k,mode=0755")
    if "uts" in plan["namespaces"]:  # security: as root, without one of its own, this would rename the host
        kernel.set_hostname(plan["hostname"])
    # 6. what the plan lists, and nothing else
    try:
        for source, target, kind in plan["binds"][: plan["shared"]]:
            _bind(root, source, target, kind)
        for name in plan["devices"]:
            _device(root, name)
        for text, target in plan["links"]:
            os.makedirs(os.path.dirname(root + target), exist_ok=True)
            os.symlink(text, root + target)
        return [_slot(root + plan["scratch"], plan) for _ in range(plan["slots"]["count"])]
    except OSError as error:
        raise named("build the root", error) from None


def finish_root(plan: Plan) -> None:
    """The rest of step 6, which is this jail's own, and step 7: the old root is gone."""
    root = plan["mountpoint"]
    try:
        for source, target, kind in plan["binds"][plan["shared"] :]:
            _bind(root, source, target, kind)
        os.chdir(root)
    except OSError as error:
        raise named("build the root", error) from None
    # 7. turn over; the root itself becomes read-only, its mounts are already
    kernel.pivot_here()
    kernel.mount_attributes("make the root read-only", "/", kernel.ATTR_RDONLY | kernel.ATTR_NOSUID | kernel.ATTR_NODEV, recursive=False)


def resize_slots(plan: Plan, slots: list[int]) -> None:
    """Give slots that were made ahead the size that this plan wants, while the host's /proc can be seen."""
    for slot in slots:
        # not by name, which nobody knows: by what is open
        kernel.mount(_SLOT_STEP, "none", f"/proc/self/fd/{slot}", None, kernel.MS_REMOUNT | _SLOT_FLAGS, _slot_size(plan))


def become_nobody(plan: Plan) -> None:
    """Steps 8-10: the uid of this jail alone, no capabilities, nothing to gain by exec; the bounding set was emptied before."""
    # 8. as root: an unused uid
    try:
        if "user" not in plan["namespaces"]:
            os.setgroups([])
            os.setresgid(plan["gid"], plan["gid"], plan["gid"])
            os.setresuid(plan["uid"], plan["uid"], plan["uid"])
    except OSError as error:
        raise named("give up the uid", error) from None
    # 9. capabilities, and the ways to get them back
    kernel.drop_capabilities()
    kernel.prctl("set no_new_privs", kernel.PR_SET_NO_NEW_PRIVS, 1)
    # 10. not dumpable: no core file, no ptrace by the same uid
    kernel.prctl("forbid dumps", kernel.PR_SET_DUMPABLE, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def die_with(parent: int, step: str) -> None:
    """Be killed when the parent dies. Must be said again after each change of uid, which clears it (prctl(2))."""
    sigkill = 9
    kernel.prctl(step, kernel.PR_SET_PDEATHSIG, sigkill)
    if os.getppid() != parent:  # it died before the line above: there is nobody left to tell
        os._exit(1)


def rulesets(plan: Plan, scratch: list[int]) -> tuple[int, list[int]]:
    """Step 11: Landlock rulesets for the zygote and for each of its children, made while their paths can be opened.

    A child has its slot and what is shared; in a jail without slots it has nothing at all.
    """
    rules = plan["landlock"]
    handled = (rules["files"], rules["network"], rules["scope"])
    shared = [(path, kernel.opened(path), rights) for path, rights in rules["paths"]]
    slots = [("an open folder", slot, rules["slot"]) for slot in scratch]
    ports = rules["ports"]
    own = [kernel.landlock_ruleset(handled, [slot, *shared], ports) for slot in slots]
    own = own or [kernel.landlock_ruleset(handled)] * _CHILDREN
    ruleset = kernel.landlock_ruleset(handled, [*slots, *shared], ports)
    for _, descriptor, _ in shared:
        os.close(descriptor)
    return ruleset, own


def lock(plan: Plan, ruleset: int) -> None:
    """Steps 12 and 13: the zygote's own Landlock domain and filter; after this line nothing can be loosened."""
    kernel.landlock_enter(ruleset)
    os.close(ruleset)
    kernel.seccomp(bytes.fromhex(plan["filters"]["jail"]))


def forget_host(plan: Plan) -> None:
    """Drop what the steps needed to know of the host: every child could read it in its copy of this memory."""
    for name in ("binds", "mountpoint", "cgroups", "uids", "links", "code", "network"):
        plan.pop(name, None)


def _bind(root: str, source: str, target: str, kind: str) -> None:
    place = root + target
    if kind == "folder":
        os.makedirs(place, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o444))
    kernel.mount(f"bind {target}", source, place, None, kernel.MS_BIND | kernel.MS_REC)
    attributes = kernel.ATTR_RDONLY | kernel.ATTR_NOSUID | kernel.ATTR_NODEV
    kernel.mount_attributes(f"make {target} read-only", place, attributes, recursive=True)


def _device(root: str, name: str) -> None:
    os.makedirs(root + "/dev", exist_ok=True)
    place = f"{root}/dev/{name}"
    os.close(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
    kernel.mount(f"bind /dev/{name}", f"/dev/{name}", place, None, kernel.MS_BIND)
    # security: without read-only a tool sets the times of the host's own node, for every other jail to read; it can still be written to
    kernel.mount_attributes(f"confine /dev/{name}", place, kernel.ATTR_RDONLY | kernel.ATTR_NOSUID | kernel.ATTR_NOEXEC, recursive=False)


def _slot(folder: str, plan: Plan) -> int:
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    # security: Landlock leaves modes and times of a path to its owner, and children share one: whoever knows a slot's name could set its
    # sibling's. So nobody knows it: the zygote has descriptors, which a child closes, and a child asks the kernel where it is (getcwd)
    options = f"{_slot_size(plan)},mode=0700,uid={plan['uid']},gid={plan['gid']}"
    return kernel.mount_unnamed(_SLOT_STEP, "scratch", "tmpfs", _SLOT_FLAGS, options)


def _slot_size(plan: Plan) -> str:
    # one inode is the mount's own root, one the folder that a child is given
    return f"size={plan['slots']['bytes']},nr_inodes={plan['slots']['inodes'] + 2}"


def _write(step: str, path: str, text: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise named(step, error) from None


def in_force(plan: Plan) -> dict[str, int]:
    """Protection -> level, of what the steps above put in force; a protection that is not listed is not there."""
    if not plan["walls"]:
        return {"rlimits": 1}
    held = {f"{name}_namespace": 1 for name in plan["namespaces"] if name != "user"}
    done = ("user_namespace_or_root", "private_root", "no_new_privileges", "capabilities", "seccomp", "rlimits")
    return held | dict.fromkeys(done, 1) | {"landlock": plan["landlock"]["abi"]}
