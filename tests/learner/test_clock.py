"""Seconds go to the stage that caused them, also where a GPU does the work later than it is asked for."""

import pytest
import torch

from oar.common import clock
from oar.common.clock import Clock


class Machine:
    """A time that only goes on by work: the CPU's at once, the GPU's when it is waited for."""

    def __init__(self) -> None:
        self.now, self.queued = 0.0, 0.0

    def perf_counter(self) -> float:
        return self.now

    def synchronize(self, device: object = None) -> None:
        self.now, self.queued = self.now + self.queued, 0.0


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(clock, "time", machine)
    monkeypatch.setattr(torch.cuda, "synchronize", machine.synchronize)
    return machine


def test_a_gpus_work_is_the_stages_that_queued_it(machine: Machine) -> None:
    stages = Clock(torch.device("cuda:0"))
    machine.queued += 1  # before any stage
    with stages("scoring"):
        machine.queued += 2
        with stages("importance"):
            machine.queued += 4
            machine.now += 8
        machine.queued += 16
    machine.queued += 32
    with stages("update"):
        machine.now += 64
    assert stages.seconds() == {"scoring": 18, "importance": 12, "update": 64, "total": 127}


def test_without_a_gpu_nothing_is_waited_for(machine: Machine) -> None:
    for device in (None, torch.device("cpu")):
        stages = Clock(device)
        with stages("scoring"):
            machine.queued += 2
        assert stages.seconds() == {"scoring": 0, "total": 0}
