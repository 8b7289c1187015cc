"""One drill from the start of a run to its comparison with an undisturbed one; every promise is checked here."""

import os
import re
import socket
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from experiments.fault_drills.catalogue import Drill, Scene
from experiments.fault_drills.observed import ObservedRun
from experiments.fault_drills.proxy import damaging_proxy
from oar.command_line.overrides import quoted
from oar.common.errors import CheckpointError, OarError
from oar.learner.checkpoint import load_state

COMPARED = ("metrics.jsonl", "evaluation.csv")
ALONE_S = 40.0  # until the last process of a run must be gone; guardians give the stubborn 20 s


@dataclass(frozen=True)
class Stage:
    """What the drills of one call share: an engine at `url` and the settings of all runs, under `folder`.

    Each wait for a moment or an end takes at most `timeout_s`.
    """

    folder: Path
    url: str
    overrides: tuple[str, ...]
    long_overrides: tuple[str, ...]  # on top of these for the long runs
    timeout_s: float
    program: tuple[str, ...] = (sys.executable, "-m", "experiments.train")

    def start(self, name: str, *more: str, long: bool = False) -> ObservedRun:
        """A run in the folder `name`."""
        overrides = (*self.overrides, *(self.long_overrides if long else ()), "tracking=disabled", *more)
        command = [*self.program, *overrides, f"output_dir={quoted(os.path.relpath(self.folder / name))}"]
        return ObservedRun(self.folder / name, command, timeout_s=self.timeout_s)

    def undisturbed(self, *, long: bool) -> dict[str, bytes]:
        """The files that every run must end with, from one that nothing happens to; it is run once."""
        name = "undisturbed_long" if long else "undisturbed"
        if not (self.folder / name).exists():
            with self.start(name, f"rollout.url={self.url}", long=long) as run:
                if run.wait_for_end() != 0:
                    raise OarError(f"The undisturbed run failed, so nothing can be compared with it: {run.tail()}")
        return files_of(self.folder / name)


@dataclass(frozen=True)
class DrillResult:
    """A line of the table. `faults` says which promises were broken; times are in seconds."""

    drill: str
    promise: str
    happened: str
    faults: str
    exit_code: int
    seconds_to_notice: float  # the longest, where damage was done several times
    seconds_to_end: float | None  # from the damage until nothing of the run was left; None where it goes on
    orphans: int
    restarts: int
    steps_done: int
    steps_lost: int  # that had to be done again
    lost_checkpoints: int
    same_metrics: bool


def perform(drill: Drill, stage: Stage) -> DrillResult:
    """Start a run, damage it, measure, mend, resume, compare. Raises OarError where the damage could not be done."""
    wanted = stage.undisturbed(long=drill.long)
    goes_on = drill.exit_code == 0
    with ExitStack() as around:
        afterwards = around.enter_context(ExitStack())
        scene = set_up(drill, stage, wanted["metrics.jsonl"].count(b"\n") - 1, around, afterwards)
        drill.strike(scene)
        run = scene.run
        code, orphans, ended = run.wait_for_end(), run.wait_until_alone(ALONE_S), time.monotonic()
        noticed = [run.said(drill.says, since=at) if drill.says else (ended, "") for at in scene.struck_at]
        steps_done, before_resume = run.steps_done(), files_of(run.folder)
        whole = [name for name in scene.checkpoints if name not in scene.spoiled]
        lost = damaged(run.folder, whole)
        afterwards.close()
        resumed_after, fault = (steps_done, "") if goes_on else resume(drill, stage)
        found = files_of(run.folder)
    lost = sorted({*lost, *damaged(run.folder, whole)})
    restarts = sum(line.startswith("another engine") for _, line in run.lines)
    same = found == wanted
    faults = {
        f"exit code {code} instead of {drill.exit_code} ({run.tail()})": code != drill.exit_code,
        f"it did not say what happened ({run.tail()})": None in noticed,
        "it wrote metrics that an undisturbed run does not have": any(
            not wanted[name].startswith(content) for name, content in before_resume.items()
        ),
        f"{orphans} processes were left": orphans > 0,
        f"lost {', '.join(lost)}": bool(lost),
        f"{restarts} restarts": restarts != (len(noticed) if goes_on else 0),
        fault: bool(fault),
        f"resumed after step {resumed_after}": not goes_on and resumed_after != last_step(whole),
        "it ended with other metrics than an undisturbed run": not same,
    }
    times = [line[0] if line else ended for line in noticed]
    return DrillResult(
        drill=drill.name,
        promise=drill.promise,
        happened=printable(noticed[-1][1], run.folder) if noticed[-1] and noticed[-1][1] else "all processes ended",
        faults=printable("; ".join(fault for fault, is_so in faults.items() if is_so), run.folder),
        exit_code=code,
        seconds_to_notice=round(max(when - at for when, at in zip(times, scene.struck_at, strict=True)), 2),
        seconds_to_end=None if goes_on else round(ended - scene.struck_at[-1], 2),
        orphans=orphans,
        restarts=restarts,
        steps_done=steps_done,
        steps_lost=steps_done - resumed_after,
        lost_checkpoints=len(lost),
        same_metrics=same,
    )


def set_up(drill: Drill, stage: Stage, steps: int, around: ExitStack, afterwards: ExitStack) -> Scene:
    """The run of a drill, started."""
    proxy = around.enter_context(damaging_proxy(stage.url)) if drill.proxied else None
    port = free_port()
    engine = f"rollout.port={port}" if drill.own_engine else f"rollout.url={proxy.url if proxy else stage.url}"

    def start(*more: str) -> ObservedRun:
        return around.enter_context(stage.start(drill.name, engine, *drill.overrides, *more, long=drill.long))

    url = f"http://127.0.0.1:{port}" if drill.own_engine else stage.url
    return Scene(start(), url, proxy, steps, lambda: start("resume=auto"), afterwards)


def resume(drill: Drill, stage: Stage) -> tuple[int, str]:
    """Go on with resume=auto to the end, on the shared engine: the step it went on after, and what was wrong."""
    with stage.start(drill.name, f"rollout.url={stage.url}", "resume=auto", long=drill.long) as again:
        code = again.wait_for_end()
        first = again.said(r"^step +\d+/")
    if code != 0 or first is None:
        return 0, f"resume=auto ended with exit code {code} ({again.tail()})"
    return int(re.findall(r"\d+", first[1])[0]) - 1, ""


def files_of(folder: Path) -> dict[str, bytes]:
    """What is compared of a run, as far as it is there."""
    return {name: (folder / name).read_bytes() for name in COMPARED if (folder / name).exists()}


def last_step(checkpoints: list[str]) -> int:
    """Of the last checkpoint; 0 where there is none."""
    return max((int(name.removeprefix("step_")) for name in checkpoints), default=0)


def damaged(folder: Path, checkpoints: list[str]) -> list[str]:
    """Those of the run's checkpoints that are gone or not what was written."""
    found = []
    for name in checkpoints:
        try:
            load_state(folder / "checkpoints" / name)
        except CheckpointError:
            found.append(name)
    return found


def printable(said: str, folder: Path) -> str:
    """What a run said, cut to a line's length and without this machine's paths and ports."""
    for path in (folder.resolve(), Path.cwd()):
        said = said.replace(f"{path}{os.sep}", "")
    said = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", said)
    said = re.sub(r"\bport \d+", "port N", said)
    return said if len(said) <= 300 else f"{said[:300]} ..."


def free_port() -> int:
    """A port on loopback that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
