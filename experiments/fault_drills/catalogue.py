"""The drills: what is promised, and what is done to a run at which moment."""

import os
import resource
import shutil
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.fault_drills.observed import ObservedRun, requests_running
from experiments.fault_drills.proxy import DAMAGE, DamagingProxy
from oar.launch.supervisor import KILLED

ENGINE = ("api_server", "engine_core")
LATER = 6  # the step after which most drills strike: there is a checkpoint, and steps since
CREDIT_S = 0.04  # CPU seconds after its completions came: the learner has graded (0.01 s) and is at credit and update
ENDS = "one sentence, exit code 2, nothing left; resume=auto goes on from the last checkpoint to the same metrics"
SILENT = "nothing left; resume=auto goes on from the last checkpoint to the same metrics"
REFUSES = (
    "refused by the name of its file; without it resume=auto goes on from the checkpoint before to the same metrics"
)
GOES_ON = "another engine, the step repeated, exit code 0, the same metrics without a resume"


@dataclass
class Scene:
    """A drill while it goes on. A strike may put another run in place of `run`: the one that has to notice."""

    run: ObservedRun
    engine_url: str  # of the engine that the run uses
    proxy: DamagingProxy | None
    steps: int  # of the undisturbed run
    again: Callable[..., ObservedRun]  # the same run once more, with resume=auto
    afterwards: ExitStack  # what is mended before the run is resumed
    struck_at: list[float] = field(default_factory=list)  # monotonic
    checkpoints: list[str] = field(default_factory=list)  # those that were whole before
    spoiled: list[str] = field(default_factory=list)  # those that the drill itself damaged

    def strike(self, *victims: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the run's processes of these kinds, and note when."""
        self.checkpoints = self.run.checkpoints()
        processes = [self.run.process(kind) for kind in victims]
        self.note()
        for process in processes:
            process.send_signal(number)

    def note(self, at: float | None = None) -> None:
        """The damage is done now, or was done `at`."""
        self.checkpoints = self.checkpoints or self.run.checkpoints()
        self.struck_at.append(time.monotonic() if at is None else at)


@dataclass(frozen=True)
class Drill:
    """One thing that goes wrong.

    says: found in the line by which the run tells that it has noticed; None: it cannot tell. exit_code: what it ends with.
    own_engine: it has an engine of its own, else it shares one. proxied: a proxy stands before the engine. long: it runs for
    the long number of steps.
    """

    name: str
    strike: Callable[[Scene], None]
    says: str | None
    promise: str = ENDS
    exit_code: int = 2
    own_engine: bool = False
    proxied: bool = False
    long: bool = False
    overrides: tuple[str, ...] = ()


def kill(
    moment: Callable[[Scene], None], *victims: str, number: signal.Signals = signal.SIGKILL
) -> Callable[[Scene], None]:
    """At a moment, send a signal to these processes of the run."""

    def strike(scene: Scene) -> None:
        moment(scene)
        scene.strike(*victims, number=number)

    return strike


def in_generation(scene: Scene, step: int = LATER) -> None:
    """While the engine writes the completions of a step."""
    scene.run.wait_for_step(step)
    scene.run.wait_for_generation(scene.engine_url)


def in_sync(scene: Scene) -> None:
    """While weights are on their way."""
    scene.run.wait_for_step(LATER)
    scene.run.wait_until(scene.run.is_pushing, "a push of weights began")


def in_update(scene: Scene) -> None:
    """While the learner is at credit and update: its completions have come, its new weights are not on their way.

    The learner is suspended while its state is read; where its update was over by then, the next step's is taken.
    """
    run = scene.run
    run.wait_for_step(LATER)
    learner = run.process("learner")

    def used() -> float:
        return sum(learner.cpu_times()[:2])

    def suspended_at_update() -> bool:
        run.wait_for_generation(scene.engine_url)
        run.wait_until(lambda: requests_running(scene.engine_url) == 0, "a generation ended")
        before, done = used(), run.steps_done()
        run.wait_until(lambda: used() - before >= CREDIT_S, "the learner was at the update")
        learner.suspend()
        return not run.is_pushing() and run.steps_done() == done

    while not suspended_at_update():
        learner.resume()


def in_checkpoint(scene: Scene) -> None:
    """While the second checkpoint is being written."""
    run = scene.run
    run.wait_until(lambda: bool(run.checkpoints()), "the first checkpoint was there")
    run.alive()
    run.wait_until(run.is_writing_checkpoint, "a checkpoint was being written")


def after_a_step(scene: Scene) -> None:
    """At any time."""
    scene.run.wait_for_step(LATER)


def no_room_for_a_checkpoint(scene: Scene) -> None:
    """After the first checkpoint files may only grow to 3 MB: weights (2 MB) fit, the optimizer's state (4 MB) does not."""
    run, limit = scene.run, 3_000_000
    run.wait_until(lambda: bool(run.checkpoints()), "the first checkpoint was there")
    resource.prlimit(run.process("learner").pid, resource.RLIMIT_FSIZE, (limit, limit))
    scene.checkpoints = run.checkpoints()
    run.wait_until(run.is_writing_checkpoint, "a checkpoint was being written")
    scene.note()


def no_room_for_metrics(scene: Scene) -> None:
    """The file of seconds becomes /dev/full, where every write finds the disk full."""
    scene.run.wait_for_step(LATER)
    file = scene.run.folder / "timings.jsonl"
    written, full = file.with_name("written"), file.with_name("full")
    full.symlink_to("/dev/full")
    scene.checkpoints = scene.run.checkpoints()
    os.link(file, written)
    full.replace(file)
    scene.note()
    scene.afterwards.callback(written.replace, file)


def a_flipped_bit(scene: Scene) -> None:
    """The run is interrupted after its second checkpoint, one bit of that is flipped, and the run is resumed.

    The sentence says which folder to delete; that is done, and the run resumed once more.
    """
    run = scene.run
    run.wait_until(lambda: len(run.checkpoints()) >= 2, "the second checkpoint was there")
    run.alive()
    run.process("supervisor").send_signal(signal.SIGINT)
    run.wait_for_end()
    spoiled = run.folder / "checkpoints" / run.checkpoints()[-1]
    flip_bit(spoiled / "model.safetensors")
    scene.checkpoints, scene.spoiled = run.checkpoints(), [spoiled.name]
    scene.run = scene.again()
    scene.note(scene.run.began)
    scene.afterwards.callback(shutil.rmtree, spoiled)


def flip_bit(file: Path) -> None:
    """The lowest bit of the byte in the middle."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def a_thief(scene: Scene) -> None:
    """The engine is killed and its port taken before it is restarted."""
    port = int(scene.engine_url.rsplit(":", 1)[1])
    in_generation(scene)
    scene.strike(*ENGINE)
    thief = scene.afterwards.enter_context(socket.socket())
    thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def takes() -> bool:
        try:
            thief.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True

    scene.run.wait_until(takes, "the port was free")
    thief.listen()


def three_times(scene: Scene) -> None:
    """The engine is killed after a quarter, a half and three quarters of the run."""
    for quarter in (1, 2, 3):
        in_generation(scene, step=quarter * scene.steps // 4)
        scene.strike("engine_core" if quarter == 2 else "api_server")


def damaged_answers(fault: str) -> Callable[[Scene], None]:
    """The proxy damages the engine's answers after some steps."""

    def strike(scene: Scene) -> None:
        proxy = scene.proxy
        assert proxy is not None
        scene.run.wait_for_step(LATER)
        proxy.fault = fault
        scene.run.wait_until(lambda: proxy.struck_at is not None, "a damaged answer was given")
        scene.note(proxy.struck_at)

    return strike


RESTART: dict[str, Any] = {
    "promise": GOES_ON,
    "exit_code": 0,
    "own_engine": True,
    "overrides": ("rollout.restart=true",),
}
LOST = "^engine lost after step"
SERVER_DIES = kill(in_generation, "api_server")
CORE_DIES = kill(in_sync, "engine_core")
HANGS = kill(in_generation, *ENGINE, number=signal.SIGSTOP)
ENDED = "learner's process was ended by SIGKILL"
DRILLS = (
    Drill("engine_killed_in_generation", SERVER_DIES, "engine at .* (is gone|cut off)", own_engine=True),
    Drill("engine_killed_in_generation_restart", SERVER_DIES, f"{LOST}.*(is gone|cut off)", **RESTART),
    Drill("engine_killed_in_sync", CORE_DIES, "HTTP 500|is gone|cut off", own_engine=True),
    Drill("engine_killed_in_sync_restart", CORE_DIES, f"{LOST}.*(HTTP 500|is gone|cut off)", **RESTART),
    Drill("engine_hangs", HANGS, "did not answer", own_engine=True),
    Drill("engine_hangs_restart", HANGS, f"{LOST}.*did not answer", **RESTART),
    Drill("learner_killed_in_update", kill(in_update, "learner"), ENDED),
    Drill("learner_killed_in_checkpoint", kill(in_checkpoint, "learner"), ENDED),
    Drill(
        "supervisor_killed",
        kill(after_a_step, "supervisor"),
        None,
        SILENT,
        exit_code=KILLED + signal.SIGKILL,
        own_engine=True,
    ),
    Drill("disk_full_at_checkpoint", no_room_for_a_checkpoint, "earlier checkpoints are untouched"),
    Drill("disk_full_for_metrics", no_room_for_metrics, "No space left on device"),
    Drill("checkpoint_corrupted", a_flipped_bit, "model.safetensors is not what was written", REFUSES),
    Drill(
        "port_stolen_before_restart",
        a_thief,
        r"port \d+ on .* is not free",
        own_engine=True,
        overrides=("rollout.restart=true",),
    ),
    *(Drill(fault, damaged_answers(fault), damage.says, proxied=True) for fault, damage in DAMAGE.items()),
    Drill("engine_killed_three_times_in_a_long_run", three_times, LOST, long=True, **RESTART),
)
SHORT = ("learner_killed_in_update", "truncated_json", "engine_killed_in_generation_restart")
