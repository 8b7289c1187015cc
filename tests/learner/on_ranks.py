"""Real learners on completions that need no engine: `python -m oar.learner.launch 2 tests.learner.on_ranks FOLDER all`."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any

import psutil
import torch
from safetensors.torch import save_file
from torch import Tensor

from oar.command_line.exit_codes import explain_errors
from oar.common.errors import EngineLostError
from oar.config import TrainConfig, validated
from oar.config.evaluation import Sampling
from oar.learner import recovery
from oar.learner.checkpoint import save_checkpoint
from oar.learner.distributed import Ranks, joined
from oar.learner.recovery import ENGINE_LOST, Recovery
from oar.learner.run import make_learner, verify_sync
from oar.learner.step import Learner
from oar.model.parameters import Gather, full_weights
from oar.rollout.client.parallel import begun
from oar.rollout.types import Rollout
from oar.tasks.data.sources import SheetsSource
from oar.tasks.problem import Problem
from oar.tasks.sheets.generator import SheetProblem, demonstration
from oar.tasks.task import Task
from oar.tasks.words import build_tokenizer
from tests.config.test_config import composed
from tests.models import tiny_model

STEPS = 3
ADAPTED = ("q_proj", "o_proj", "up_proj")
RUNS = {
    "grpo": ["method=grpo"],
    "oar_g": ["method=oar_g"],
    "oar_gn": ["method=oar_gn"],  # a gradient through the update's own graph, before its backward pass
    "oar_p": ["method=oar_p"],
    # Everything that changes which forwards run: no sharing of the update's forward, a reference, layers run again.
    "all else": [
        "method=oar_gn",
        "learner.updates_per_rollout=2",
        "learner.kl_coef=0.1",
        "learner.aggregation=token_mean",
        "learner.activation_checkpointing=true",
    ],
    "options": [
        "method=oar_g",
        "learner.updates_per_rollout=2",
        "learner.ratio_level=sequence",
        "learner.overlong=mask",
        "learner.sampler_correction_cap=2",
        "learner.lr=1e-3",
        f"model.lora={{r: 4, alpha: 8, targets: [{', '.join(ADAPTED)}]}}",
    ],
    "signed": ["method=oar_s_advantage"],  # groups without an advantage have a gradient too
    "compared": [  # all are scored first; a loss beside the policy's
        *("method=shear", "method.estimator.window=8", "method.estimator.stride=4"),
        "allow_targets=[tests.learner.own_methods]",
        "method.auxiliary={_target_: tests.learner.own_methods.Imitation}",
    ],
    "weights of the update's own graph": ["method=grail", "method.estimator.rollout_symmetry=both"],
    "continuations": ["method=vineppo", "method.continuations.samples=2"],
    "tree": ["method=spo_tree", "method.estimator.branching=[2,2]", "learner.aggregation=token_mean"],
    "taught": ["method=sdpo", "method.teacher.rate=0.5"],  # by a teacher that every rank averages
    "two losses": [
        "method=sdpg",
        "method.auxiliary.divergence=1",
        "learner.updates_per_rollout=2",
        "learner.activation_checkpointing=true",
    ],
    "gains": ["method=mig", "method.estimator.spellings=true"],  # which every rank computes
    "bfloat16": ["method=oar_p", "learner.compute_dtype=bfloat16"],
    "bfloat16, two losses": ["method=sdpg", "method.auxiliary.divergence=1", "learner.compute_dtype=bfloat16"],
    "bfloat16 in pairs": ["method=oar_g", "learner.compute_dtype=bfloat16", "learner.activation_checkpointing=true"],
}
SAVED = "oar_p"  # the run whose checkpoints are exchanged between one rank and two
BY_ONE, BY_TWO = "saved by one rank", "saved by two ranks"
LOSING = "grpo, engines lost"  # in a generation, in a push and while another one is verified


def config(*overrides: str) -> TrainConfig:
    small = [
        "learner.batch_size=24",
        "learner.num_generations=4",
        "learner.micro_batch_tokens=160",
        "probe.warmup_steps=1",
    ]
    free = ["sync.max_logprob_diff=100", "learner.warmup_steps=0"]  # completions do not follow the policy here
    return validated(composed(*small, *free, *overrides), TrainConfig)


class WrittenCompletions:
    """In the engine's place: completions written from the problems' solutions, some of them wrong, cut off or all alike."""

    def __init__(self, cfg: TrainConfig, task: Task, source: Any, lost_at: Sequence[int] = ()) -> None:
        self.cfg, self.task, self.source = cfg, task, source
        self.calls, self.lost_at = 0, lost_at
        self.known: dict[tuple[int, ...], Problem] = {}  # by prompt, of the weights that draw now
        self.version = -1

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling | Sequence[Sampling],
        *,
        seed: int,
        expected_version: int,
    ) -> list[list[Rollout]]:
        samplings = [sampling] * len(prompts) if isinstance(sampling, Sampling) else sampling
        self.calls += 1
        if self.calls in self.lost_at:
            raise EngineLostError("lost in a generation.")
        if expected_version != self.version:
            self.known, self.version = {}, expected_version
        streamed = self.source.problems(self.cfg.seed, expected_version, len(prompts))
        problems = [self.problem(tuple(prompt), one) for prompt, one in zip(prompts, streamed, strict=True)]
        rng = Random(seed)
        written = self.sheet if isinstance(self.source, SheetsSource) else self.text
        groups = [
            [written(problem, rng) for _ in range(one.n)] for problem, one in zip(problems, samplings, strict=True)
        ]
        groups[:1] = [group[:1] * len(group) for group in groups[:1]]  # a group without advantage
        return [
            [self.rollout(prompt, text, one.max_new_tokens) for text in group]
            for prompt, group, one in zip(prompts, groups, samplings, strict=True)
        ]

    def problem(self, prompt: tuple[int, ...], streamed: Problem) -> Problem:
        """Whose completion goes on here, or of a prompt that is new the one that the stream has in its place."""
        begun = next((known for known in self.known if prompt[: len(known)] == known), prompt)
        return self.known.setdefault(begun, streamed)

    @staticmethod
    def text(problem: Problem, rng: Random) -> str:
        assert problem.solution is not None
        start, _, equations = problem.solution.partition(" . ")
        answer = problem.answer if rng.random() < 0.5 else str(rng.randrange(100))
        ending = "" if rng.random() < 0.1 else f" #### {answer}"
        return f"We start with {start} . {'So ' * rng.randrange(4)}{equations}{ending}"

    def sheet(self, problem: Problem, rng: Random) -> str:
        return demonstration(SheetProblem(problem, self.source.sheet), 0.5, 0, rng)

    def rollout(self, prompt: Sequence[int], text: str, longest: int) -> Rollout:
        """Cut where it is too long; where it has no answer, it goes on as long as a part of a completion may."""
        ids = self.task.tokenizer.encode(text, add_special_tokens=False)
        ended = "####" in text and len(ids) <= longest
        if not ended and longest < self.cfg.rollout.max_new_tokens:
            ids = [*ids, *ids[-1:] * longest][:longest]
        return Rollout(tuple(prompt), tuple(ids), (-1.0,) * len(ids), 0, "stop" if ended else "length")


class Received:
    """In the sync's place: what the engine would hold. Weights are taken in another thread, as sync=nccl does.

    `lost_at` says of calls how many weights are on their way when the engine is lost; the thread is then left behind.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.lost_at: dict[int, int] = {}

    def push(self, model: Any, version: int, gather: Gather = full_weights) -> None:
        self.calls += 1
        bound, weights, reached = self.lost_at.get(self.calls), dict[str, Tensor](), Event()

        def receive() -> None:
            for name, weight in gather(model, None):
                weights[name] = weight.clone()
                if len(weights) == bound:
                    reached.set()

        if bound == 0:
            raise EngineLostError("lost before a push.")
        received = begun(receive)
        if bound is not None:
            reached.wait()
            raise EngineLostError("lost in a push.")
        received()
        self.version, self.weights = version, weights


def start_model(folder: Path, words: Any = None) -> Path:
    """A random model and its tokenizer, `words`, of word problems where there is none."""
    words = words or build_tokenizer()
    tiny_model(vocab=len(words)).save_pretrained(folder / "start")
    words.save_pretrained(folder / "start")
    return folder / "start"


def learner_of(cfg: TrainConfig, start: Path, ranks: Ranks, checkpoint: Path | None = None) -> Learner:
    learner: Any = make_learner(cfg, checkpoint, start, ["http://127.0.0.1:9"], start, ranks)
    learner.sync = Received()
    if learner.groups.sampler is not None:
        client: Any = WrittenCompletions(cfg, learner.task, learner.source)
        learner.groups.sampler = replace(learner.groups.sampler, client=client)
    return learner


def train(
    start: Path, ranks: Ranks, *overrides: str, checkpoint: Path | None = None, save_to: Path | None = None
) -> tuple[list[dict[str, float]], dict[str, Tensor]]:
    """The metrics of each step from `checkpoint` on, and the weights that reached the engine (none but on the first rank).

    Every step leaves a checkpoint in `save_to`.
    """
    learner: Any = learner_of(config(*overrides), start, ranks, checkpoint)
    curve = []
    while learner.step < STEPS:
        curve.append(learner.training_step().metrics)
        if save_to is not None:
            held = learner.model, learner.task.tokenizer, learner.optimizer, {"identity": learner.cfg.identity()}
            save_checkpoint(save_to, learner.step, *held, keep=STEPS, ranks=ranks, beside=learner.beside.save)
    return curve, learner.sync.weights if ranks.first else {}


def train_on_lost_engines(folder: Path, ranks: Ranks) -> tuple[list[dict[str, float]], dict[str, Tensor]]:
    """As `train`, but with every step's engine lost once; a thread does what the supervisor does about it."""
    cfg = config(*RUNS["grpo"], f"learner.ranks={ranks.count}", "rollout.restart=true")
    learner: Any = learner_of(cfg, folder / "start", ranks)
    client = learner.groups.sampler.client if ranks.first else None
    if client is not None:
        client.lost_at = (2, 3, 6)  # the first call verifies; 2: step 1; 3: the next verification; 6: step 2
    # 1: verification, 2 and 3: the same again, 4: step 1, 5: verification, 6: step 2, 7 to 9: verification of another engine
    learner.sync.lost_at = {6: len(learner.model.state_dict()), 7: 0, 8: 3} if ranks.first else {}
    over = Event()

    def supervise() -> None:
        while not over.wait(0.01):
            (folder / ENGINE_LOST).unlink(missing_ok=True)

    if ranks.first:
        Thread(target=supervise, daemon=True).start()
    steady = Recovery(cfg.rollout, folder, ranks, lambda: learner.step, partial(verify_sync, learner))
    curve = [learner.training_step(steady).metrics for _ in range(STEPS)]
    over.set()
    if client is not None:
        assert client.calls > max(client.lost_at)
        assert learner.sync.calls > max(learner.sync.lost_at)
        assert learner.sync.version == STEPS
    return curve, learner.sync.weights if ranks.first else {}


def main(folder: Path) -> None:
    """Every run of `RUNS`; a run from a checkpoint that one process wrote; and the addresses that all of this listened on."""
    torch.set_num_threads(1)
    runs: dict[str, dict[str, Any]] = {name: {"save_to": folder / BY_TWO if name == SAVED else None} for name in RUNS}
    with joined(config("learner.ranks=2").learner) as ranks:
        for name, options in {**runs, BY_ONE: {"checkpoint": folder / BY_ONE / "step_000001"}}.items():
            overrides = RUNS[SAVED if name == BY_ONE else name]
            curve, weights = train(folder / "start", ranks, *overrides, "learner.ranks=2", **options)
            if ranks.first:
                (folder / f"{name}.json").write_text(json.dumps(curve))
                save_file(weights, folder / f"{name}.safetensors")
        curve, weights = train_on_lost_engines(folder, ranks)
        if ranks.first:
            (folder / f"{LOSING}.json").write_text(json.dumps(curve))
            save_file(weights, folder / f"{LOSING}.safetensors")
        family = (psutil.Process(), psutil.Process(os.getppid()))
        listening = [found.laddr.ip for one in family for found in one.net_connections() if found.status == "LISTEN"]
        (folder / f"listening-{ranks.rank}.json").write_text(json.dumps(listening))


def fail(folder: Path) -> None:
    """A run whose second push fails before anything is gathered, and where no other engine comes."""
    torch.set_num_threads(1)
    cfg = config("learner.ranks=2", "rollout.restart=true", "rollout.startup_timeout_s=1")
    recovery.ENDING_S = 1.0
    with explain_errors(), joined(cfg.learner) as ranks:
        learner: Any = learner_of(cfg, folder / "start", ranks)
        learner.sync.lost_at = {2: 0}
        steady = Recovery(cfg.rollout, folder, ranks, lambda: learner.step, partial(verify_sync, learner))
        learner.training_step(steady)


if __name__ == "__main__":
    {"all": main, "fail": fail}[sys.argv[2]](Path(sys.argv[1]))
