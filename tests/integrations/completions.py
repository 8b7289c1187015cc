"""One batch for the learner and for TRL: two problems with prompts of different lengths, four completions each."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

from oar.common.clock import Clock
from oar.config import TrainConfig, validated
from oar.integrations.trl import OARGRPOConfig, OARGRPOTrainer
from oar.learner.beside import Beside
from oar.learner.collect import grade_rollouts
from oar.learner.credit import Credited
from oar.learner.distributed import ALONE
from oar.learner.step import Learner
from oar.learner.update import LossBatch
from oar.method.advantages import group_advantages
from oar.model.load import load_scorer
from oar.rollout.types import Rollout
from oar.tasks.problem import Problem
from oar.tasks.task import Task
from oar.tasks.words import build_tokenizer
from tests.config.test_config import composed
from tests.models import tiny_model, tiny_scorer

PROBLEMS = [
    Problem("p1", "Tom has 7 pens . Tom buys 3 more .", "10", "words1", "7 . 7 + 3 = 10 ."),
    Problem(
        "p2",
        "Tom has 9 pens . Tom buys 4 more . Tom gives 3 to Sam .",
        "10",
        "words2",
        "9 . 9 + 4 = 13 . 13 - 3 = 10 .",
    ),
]
RIGHT = "We start with 7 pens . Then 7 + 3 = 1 0 . That is all . #### 1 0 <eos>"
WRONG = "We start with 7 pens . Then 7 + 4 = 1 1 . #### 1 1 <eos>"
TWICE = "#### 9 . Then 9 + 4 = 1 3 . Then 1 3 - 3 = 1 0 . #### 1 0 <eos>"  # the last marker counts
SILENT = "We start with 7 pens . Then 7 + 3 <eos>"  # ends without an answer
CUT = "We start with 9 pens . Then 9 + 4 = 1 3 . Then"  # cut off without one
CUT_LATE = "9 + 4 = 1 3 . #### 1 3 . That is all ."  # cut off behind one
GROUPS = [[RIGHT, WRONG, SILENT, WRONG], [CUT, TWICE, CUT_LATE, RIGHT]]
TEXTS = [text for group in GROUPS for text in group]
SEED, STEP = 5, 3


def task() -> Task:
    return Task(build_tokenizer(), "####")


def encoded(text: str) -> list[int]:
    words = task().tokenizer
    ids: list[int] = words.encode(text.removesuffix(" <eos>"), add_special_tokens=False)
    return [*ids, int(words.eos_token_id)] if text.endswith("<eos>") else ids


def prompt_ids() -> list[list[int]]:
    return [task().encode_prompt(problem) for problem in PROBLEMS for _ in range(4)]


def policy() -> Any:
    return tiny_model(vocab=len(build_tokenizer()))


def rewarded(prompt: str, completion_ids: list[int]) -> float:
    (problem,) = (problem for problem in PROBLEMS if problem.question == prompt)
    return float(task().grade(problem, task().decode(completion_ids)))


def rewards() -> list[float]:
    return [
        rewarded(problem.question, encoded(text))
        for problem, group in zip(PROBLEMS, GROUPS, strict=True)
        for text in group
    ]


def learnt_weights(*overrides: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Token weights and token advantages (8, T) that a real learner gives this batch."""
    longest = max(len(prompt) + len(encoded(text)) for text, prompt in zip(TEXTS, prompt_ids(), strict=True))
    # As many tokens at a time as the trainer below: two rows, padded.
    sizes = ["learner.batch_size=8", "learner.num_generations=4", f"learner.micro_batch_tokens={2 * longest}"]
    cfg = validated(composed(f"seed={SEED}", *sizes, *overrides), TrainConfig)
    beside = Beside(cfg, scorer=load_scorer(cfg.probe.path, build_tokenizer(), "float32"))
    learner = Learner(cfg, policy(), task(), None, None, beside=beside)  # type: ignore[arg-type]  # needs no engine for this
    learner.step = STEP
    rollouts = [
        [
            Rollout(tuple(prompt), tuple(encoded(text)), (-1.0,) * len(encoded(text)), STEP, "stop")
            for text, prompt in group
        ]
        for group in (list(zip(TEXTS, prompt_ids(), strict=True))[at : at + 4] for at in (0, 4))
    ]
    context, needs_answer = learner.method.context, cfg.probe.needs_answer
    graded = grade_rollouts(PROBLEMS, rollouts, task(), torch.device("cpu"), context, needs_answer=needs_answer)
    assert graded.rewards.tolist() == rewards()
    data = LossBatch.of(graded.batch, group_advantages(graded.rewards, 4))
    scored = learner.score(data, learner.credit(graded, data.advantages, Clock()), torch.ones(8, dtype=torch.bool))
    credited = Credited.joined(scored, data.loss_mask.shape, ALONE, torch.device("cpu"))
    return credited.token_weights, credited.token_advantages


def scorer(folder: Path) -> Path:
    """A random reward model in a folder."""
    tiny_scorer(vocab=len(build_tokenizer())).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


def trainer(folder: Path, *, kind: Any = OARGRPOTrainer, model: Any = None, **settings: Any) -> Any:
    """A trainer that is handed this batch over and over."""
    own = {"method": "oar_g", "marker": "####"} if kind is OARGRPOTrainer else {}
    options: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "num_generations": 4,
        "max_completion_length": 32,
        "loss_type": "grpo",
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "max_steps": 1,
        "logging_steps": 1,
        "bf16": False,
        "use_cpu": True,
        "seed": SEED,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        **own,
        **settings,
    }
    args = (OARGRPOConfig if kind is OARGRPOTrainer else kind.CONFIG)(**options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rollout_func is experimental
        return kind(
            model=model or policy(),
            reward_funcs=lambda prompts, completion_ids, **_: [
                rewarded(*one) for one in zip(prompts, completion_ids, strict=True)
            ],
            args=args,
            train_dataset=Dataset.from_list([dataset_row(problem) for problem in PROBLEMS]),
            processing_class=build_tokenizer(),
            rollout_func=lambda prompts, *_: rolled_out(prompts),
        )


def rolled_out(prompts: Sequence[str]) -> dict[str, Any]:
    """The texts of each prompt in their order, whichever prompts a process has."""
    groups = {problem.question: iter(group) for problem, group in zip(PROBLEMS, GROUPS, strict=True)}
    completions = [encoded(next(groups[prompt])) for prompt in prompts]
    return {
        "prompt_ids": [task().tokenizer.encode(prompt) for prompt in prompts],
        "completion_ids": completions,
        "logprobs": [[-1.0] * len(ids) for ids in completions],
    }


def generated(made: Any) -> dict[str, torch.Tensor]:
    """What the trainer makes of the batch before it is shuffled and split, after STEP steps."""
    made.model.train()
    made.state.global_step = STEP
    output: dict[str, torch.Tensor] = made._generate_and_score_completions(
        [dataset_row(p) for p in PROBLEMS for _ in range(4)]
    )
    return output


def dataset_row(problem: Problem) -> dict[str, str]:
    """Of the data set."""
    return {"prompt": problem.question, "answer": problem.answer, "solution": problem.solution}


def metrics(made: Any) -> dict[str, float]:
    """What a trainer last noted, by name."""
    return {name: values[-1] for name, values in made._metrics["train"].items()}
