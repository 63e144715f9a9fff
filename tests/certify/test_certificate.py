"""Killed by SIGKILL at any moment and resumed, a run ends as if nothing had been, to the last bit."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from cadenza.points import POINTS, Kind
from cadenza.testing import Certificate, Kill, certify

TRAININGS = Path(__file__).parents[1] / "checkpoint" / "trainings.py"
NEVER = {"after_error"}
"""A run that is not told of an error does not play it."""
PLAIN = [p.name for p in POINTS.values() if p.kind not in (Kind.AROUND, Kind.BEHAVIOUR) and p.name not in NEVER]
OF_FIT = sorted(
    (name for name in PLAIN if "test" not in name and "pred" not in name),
    key=lambda name: (name == "after_run", name != "after_best"),
)
"""The best comes early and the end of the run last, or the others would not come any more."""
VARIANTS = (
    "accumulation_ema_clip",
    "noisy_data",
    "one_worker",
    "two_workers",
    "iterable_data",
    "bf16",
    "fp16",
    "stopping_and_plateau",
    "one_cycle_and_swa",
    "nan_skips",
    "two_optimizers",
)


@pytest.fixture(autouse=True)
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders in memory where the system has them: these tests end processes, and cut no power."""
    if Path("/dev/shm").is_dir():
        monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")


def of(name: str, **options: object) -> Certificate:
    return certify(f"{TRAININGS}:{name}", **options)  # type: ignore[arg-type]


@pytest.mark.timeout(300)
def test_killed_at_every_named_point_in_one_chain(tmp_path: Path) -> None:
    certificate = of("every_point", kills=[Kill(name, 1) for name in OF_FIT])
    assert certificate.equal, certificate
    assert sum("killed" in line for line in certificate.kills) == len(OF_FIT), certificate
    certificate.write(tmp_path / "certificate.json")
    assert json.loads((tmp_path / "certificate.json").read_text())["equal"] is True
    assert "equal to the last bit" in str(certificate)


@pytest.mark.timeout(300)
def test_killed_at_random_moments() -> None:
    certificate = of("plain", kills=10)
    assert certificate.equal, certificate
    assert certificate.compared["steps"] >= 20
    assert sum("killed" in line for line in certificate.kills) == 10


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", VARIANTS)
def test_whatever_takes_part(name: str) -> None:
    certificate = of(name, kills=[Kill("after_train_iter", 4), Kill("before_step", 3)])
    assert certificate.equal, certificate
    assert sum("killed" in line for line in certificate.kills) == 2


@pytest.mark.timeout(300)
@pytest.mark.parametrize("times", [1, 2, 5])
def test_resumed_so_many_times(times: int) -> None:
    certificate = of("plain", kills=[Kill("after_train_iter", 3)] * times)
    assert certificate.equal, certificate
    assert ["killed" in line for line in certificate.kills] == [True] * times + [False], certificate


def test_what_differs_is_named(tmp_path: Path) -> None:
    source = TRAININGS.read_text(encoding="utf-8")
    forgetful = source.replace("EMA(0.9), GradientClip", "Forgetful(), GradientClip")
    forgetful += """

class Forgetful(Callback):
    def before_run(self, run): self.seen = 0
    def after_step(self, run):
        self.seen += 1
        if self.seen == 5:
            with torch.no_grad():
                next(run.module.parameters()).mul_(0.5)
"""
    file = tmp_path / "forgetful.py"
    file.write_text(forgetful, encoding="utf-8")
    certificate = certify(f"{file}:accumulation_ema_clip", kills=[Kill("after_train_iter", 8)])
    assert not certificate.equal
    assert certificate.difference is not None
    assert certificate.difference.startswith("model/0.weight after batch")


def test_a_training_that_fails_is_shown() -> None:
    with pytest.raises(RuntimeError, match=r"has no function 'nobody'$") as caught:
        of("nobody")
    assert "Traceback" in "".join(caught.value.__notes__)
