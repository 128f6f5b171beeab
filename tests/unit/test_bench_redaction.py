"""What the bench looks through for secrets, and how a method's time is told."""

from collections import Counter
from pathlib import Path

import pytest
import trio

from bench import bench_redaction
from bench.bench_redaction import CASE, HELD, KINDS, SIZE
from bench.measurement import Absent
from engine import leaving
from engine.egress.vault import Vault
from engine.places import data_dir
from engine.policy.load import load_policy
from engine.policy.model import OnSecret
from engine.policy.shapes import load_shapes
from engine.results.redact import Watch

LARGEST = max(HELD)


@pytest.mark.parametrize("kind", KINDS)
def test_the_data_holds_no_secret_until_one_is_put_there(kind: str) -> None:
    """Nor anything that looks like one; it is the same data every time, of about the size that is told."""
    data, values = KINDS[kind](), bench_redaction.secrets(LARGEST)
    watch = Watch(values, load_shapes(data_dir("policies")))
    assert data == KINDS[kind]()
    assert 0.8 < len(data) / SIZE < 1.2
    assert [hit.id for hits in watch.slices(data) for hit in hits] == []
    assert [hit.id for hit in watch.look(data[-1000:] + values["s0"].encode())] == ["s0"]


@pytest.mark.parametrize("count", HELD)
def test_a_policy_has_so_many_secrets(tmp_path: Path, count: int) -> None:
    """A vault takes them, each its own value."""
    vault = Vault({})
    trio.run(vault.hold, load_policy(bench_redaction.policy(tmp_path, count), data_dir("policies")))
    assert dict(vault.held()) == bench_redaction.secrets(count)
    assert len({*vault.held().values()}) == count


def test_what_a_method_takes_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer stays what it was."""
    monkeypatch.setattr(leaving.Leaving, "text", leaving.Leaving.text)
    spent: Counter[str] = Counter()
    bench_redaction._clock("engine.leaving", "Leaving", "text", spent)
    made = leaving.Leaving(Watch({"s0": "f00dfacef00dface"}, load_shapes(data_dir("policies"))), OnSecret.BY_SHAPE)
    assert made.text("stdout", "it is f00dfacef00dface") == "it is [redacted:s0]"
    assert [*spent] == ["text"]


@pytest.mark.parametrize(("module", "name"), [("engine.leaving", "none_such"), ("engine.none_such", "text")])
def test_an_engine_without_it_is_absent(module: str, name: str) -> None:
    """As a commit of before would be, in one line."""
    with pytest.raises(Absent, match=r"this engine has no engine\.\w+\.Leaving\.\w+"):
        bench_redaction._clock(module, "Leaving", name, Counter())


def test_each_kind_is_to_reach_its_rate_with_every_number_of_secrets() -> None:
    """And each is a metric."""
    assert {(target.metric, target.at) for target in CASE.targets} == {(kind, held) for kind in KINDS for held in HELD}
