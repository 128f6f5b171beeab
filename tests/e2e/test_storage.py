"""A disk that is full, or a store that was changed: refused as storage, nothing half is used, and with room again all goes on."""

import json
import os
import shutil
from pathlib import Path

import pytest

from engine.errors import EngineError
from engine.staging import sealed
from tests import kit, programs

# a source whose data is larger than what the disk takes; RESULT collects what each step came to
COMMON = f"""
SAY = {programs.SAY!r}
BIG = SAY.replace("description=", "data=['big.bin'], description=").replace("def say", "def big")
RESULT = {{}}

async def attempt(name, act):
    try:
        made = await act()
        RESULT[name] = getattr(made, "reason", "ok")
    except EngineError as error:
        RESULT[name] = error.code

def big():
    place = source("big", BIG)
    (place.parent / "big.bin").write_bytes(b"x" * 300_000)
    return place

def stage(state):
    return sorted(path.name for path in (state / "stage").rglob("*") if path.is_file() or path.name.startswith(".tmp-"))
"""
LIMITED = """
import resource
STATE = FOLDER / "state"

def room(amount):
    resource.setrlimit(resource.RLIMIT_FSIZE, (amount, resource.RLIM_INFINITY))

async def main():
    async with Engine(state_dir=STATE) as engine:
        await attempt("small loads", lambda: engine.load(source("small", SAY)))
        before = stage(STATE)
        place = big()
        room(100_000)
        await attempt("big does not", lambda: engine.load(place))
        RESULT["nothing half is there"] = stage(STATE) == before
        await attempt("small still answers", lambda: engine.call("say", {}))
        await attempt("big is unknown", lambda: engine.call("big", {}))
        room(resource.RLIM_INFINITY)
        await attempt("big loads with room", lambda: engine.load(place))
        await attempt("big answers", lambda: engine.call("big", {}))
    return RESULT
told(within(60, main))
"""
JOURNAL = """
import resource
STATE = FOLDER / "state"
FILE = STATE / "journal" / "receipts.jsonl"

def room(amount):
    resource.setrlimit(resource.RLIMIT_FSIZE, (amount, resource.RLIM_INFINITY))

async def main():
    async with Engine(state_dir=STATE) as engine:
        await engine.load(source("small", SAY))
        await attempt("with room", lambda: engine.call("say", {}))
        await engine.concluded()
        room(FILE.stat().st_size + 500)
        owed = await engine.call("say", {})
        RESULT["half a receipt"] = [owed.reason, owed.value, (await owed.concluded())["journal"]]
        await attempt("no receipt", lambda: engine.call("say", {}))
        room(resource.RLIM_INFINITY)
        await attempt("with room again", lambda: engine.call("say", {}))
        await attempt("and again", lambda: engine.call("say", {}))
    whole = []
    for line in FILE.read_text().splitlines():
        try:
            whole.append(json.loads(line)["verdict"]["reason"])
        except ValueError:
            whole.append("cut")
    RESULT["lines"] = whole
    return RESULT
told(within(60, main))
"""
FULL = """
STATE = Path(ARGUMENTS[0]) / "state"

async def main():
    async with Engine(state_dir=STATE) as engine:
        await attempt("small loads", lambda: engine.load(source("small", SAY)))
        before = stage(STATE)
        place = big()
        await attempt("big does not", lambda: engine.load(place))
        RESULT["nothing half is there"] = stage(STATE) == before
        filler = Path(ARGUMENTS[0]) / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 512)
            except OSError:
                pass
        codes = set()
        for _ in range(40):  # what is left of the journal's last page takes a few
            await attempt("call", lambda: engine.call("say", {}))
            await engine.concluded()
            codes.add(RESULT.pop("call"))
        RESULT["calls on a full disk"] = sorted(codes)
        filler.unlink()
        await attempt("with room again", lambda: engine.call("say", {}))
        await engine.concluded()
        last = (STATE / "journal" / "receipts.jsonl").read_text().splitlines()[-1]
        RESULT["the last line is whole"] = json.loads(last)["verdict"]["reason"]
    return RESULT
told(within(60, main))
"""
UNREADY = """
async def main():
    async def start():
        async with Engine(state_dir=Path(ARGUMENTS[0]) / "state"):
            pass
    (Path(ARGUMENTS[0]) / "filler").write_bytes(b"x" * 65536) if ARGUMENTS[1] == "full" else None
    await attempt("start", start)
    return [RESULT["start"], os.listdir("/proc/self/task").__len__() < 8]
told(within(60, main))
"""
as_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="unproven here: mounting a small disk needs root, and unshare"
)


def small_disk(folder: Path, options: str) -> list[str]:
    """Words in front of a command that give it a file system of its own at the folder, in mounts that nobody else sees."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = f'mount -t tmpfs -o {options} none "$0" && exec "$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-ec", mount, str(folder)]


class TestStaging:
    """A source that does not fit."""

    def test_past_a_limit_on_files_it_is_refused_and_nothing_half_stays(self, tmp_path: Path) -> None:
        """Other tools go on; with room the same source loads."""
        assert programs.run(tmp_path, COMMON + LIMITED) == {
            "small loads": "ok",
            "big does not": "refused.storage",
            "nothing half is there": True,
            "small still answers": "ok.done",
            "big is unknown": "refused.unknown_tool",
            "big loads with room": "ok",
            "big answers": "ok.done",
        }

    @as_root
    def test_on_a_full_disk_it_is_refused_and_nothing_half_stays(self, tmp_path: Path) -> None:
        """Nor is a receipt lost in silence: the call says so, and with room the journal goes on with whole lines."""
        disk = small_disk(tmp_path / "disk", "size=256k,mode=700")
        made = programs.run(tmp_path / "files", COMMON + FULL, str(tmp_path / "disk"), before=disk)
        assert "refused.storage" in made.pop("calls on a full disk")
        assert made == {
            "small loads": "ok",
            "big does not": "refused.storage",
            "nothing half is there": True,
            "with room again": "ok.done",
            "the last line is whole": "ok.done",
        }

    @as_root
    def test_without_inodes_an_engine_does_not_start(self, tmp_path: Path) -> None:
        """Refused as storage; the control has enough of them."""
        for inodes, code in ((4, "refused.storage"), (200, "ok")):
            disk = small_disk(tmp_path / f"disk-{inodes}", f"size=1m,nr_inodes={inodes},mode=700")
            made = programs.run(tmp_path / "files", COMMON + UNREADY, str(tmp_path / f"disk-{inodes}"), "", before=disk)
            assert made == [code, True]


class TestJournal:
    """A receipt that does not fit."""

    def test_a_receipt_that_cannot_be_written_is_told(self, tmp_path: Path) -> None:
        """Its caller gets answer and warning, the next call is refused before it starts; with room what is owed is written first."""
        assert programs.run(tmp_path, COMMON + JOURNAL) == {
            "with room": "ok.done",
            "half a receipt": ["ok.done", "said", "owed"],
            "no receipt": "refused.storage",
            "with room again": "ok.done",
            "and again": "ok.done",
            "lines": ["ok.done", "ok.done", "cut", "ok.done", "ok.done", "ok.done"],  # describing first
        }


class TestChanged:
    """A stage that somebody changed."""

    @pytest.mark.parametrize("change", ["bytes", "added", "removed", "mode", "manifest"])
    async def test_a_bundle_that_was_changed_is_refused(self, tmp_path: Path, change: str) -> None:
        """By any byte, file or mode; removed, the source is staged anew."""
        place = kit.write(tmp_path / "source", programs.SAY)
        async with kit.clean_engine(tmp_path / "state") as engine:
            outcome = await kit.jailed(engine, tmp_path / "source", programs.SAY, "say")
        (manifest,) = (tmp_path / "state" / "stage").rglob("manifest.json")
        bundle = manifest.parent
        staged = bundle / "source" / "tools.py"
        for folder in (bundle, bundle / "source"):
            folder.chmod(0o700)
        if change == "bytes":
            staged.chmod(0o644)
            staged.write_text(staged.read_text().replace("said", "evil"))
            staged.chmod(0o444)
        elif change == "added":
            (bundle / "source" / "json.py").write_text("x = 1")
        elif change == "removed":
            staged.unlink()
        elif change == "mode":
            staged.chmod(0o644)
        else:
            manifest.chmod(0o644)
            manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "entry": "other"}))
            manifest.chmod(0o444)
        for folder in (bundle, bundle / "source"):
            folder.chmod(0o555)
        async with kit.clean_engine(tmp_path / "state") as engine:
            with pytest.raises(EngineError) as caught:
                await engine.load(place)
            assert caught.value.code == "refused.storage"
            assert (await engine.call("say", {})).reason == "refused.unknown_tool"
            sealed.discard(bundle)
            again = await kit.jailed(engine, tmp_path / "source", programs.SAY, "say")
        assert (again.value, (await again.concluded())["digests"]) == (outcome.value, (await outcome.concluded())["digests"])
