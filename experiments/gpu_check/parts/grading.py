"""What the CPU does while the GPUs wait: segments and batch of 1,024 completions of 1,500 tokens, byte-level BPE."""

from random import Random

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from experiments.gpu_check.device import DEVICE, sized, spent
from experiments.gpu_check.findings import Findings
from oar.learner.collect import GradedGroup, collate_groups
from oar.method.segments import BOX
from oar.rollout.types import Rollout
from oar.tasks.problem import Problem
from oar.tasks.reward_terms import Earned
from oar.tasks.task import Task
from oar.tasks.verifier.grade import Verdict
from oar.tasks.words import RL_STREAM, make_tiers
from oar.tasks.words.generator import demonstration, training_problem

COMPLETIONS, TOKENS, GROUP = sized(1024, 8), 1500, 8
LIMIT_S = 60.0  # for a step's completions; an update of 1,024 takes minutes
VOCABULARY, END = 700, "<|endoftext|>"


def run(findings: Findings) -> None:
    """Seconds of each, on one core."""
    task, groups = _task(), []
    verdict, earned = Verdict(True, "42", "plain"), Earned({"answer": 1.0}, 1.0)
    completions = _completions(task)
    for start in range(0, COMPLETIONS, GROUP):
        some = completions[start : start + GROUP]
        rollouts = [Rollout((1, 2, 3), tuple(ids), (-1.0,) * len(ids), 0, "stop") for ids in some]
        problem = Problem(f"{start}", "a question", "42", "none")
        groups.append(GradedGroup(problem, rollouts, [""] * GROUP, [verdict] * GROUP, [earned] * GROUP))
    with spent() as finding:
        found = [task.segments(ids) for ids in completions]
    findings.true("every answer is found", all(found), f"{len(found)} of {COMPLETIONS}")
    findings.at_most("seconds of find_segments", finding.seconds, LIMIT_S, f"s for {COMPLETIONS} x {TOKENS} tokens")
    with spent() as collating:
        batch = collate_groups(groups, task, DEVICE).batch
    findings.at_most("seconds of collate_groups, segments included", collating.seconds, LIMIT_S, "s")
    findings.true("the batch is whole", batch.completion_ids.shape == torch.Size([COMPLETIONS, TOKENS]), "B x T")


def _task() -> Task:
    """With a tokenizer of bytes like Qwen2.5's, taught on the embedded task's own texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[END],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(200), trainer)
    return Task(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END), BOX)


def _texts(count: int) -> list[str]:
    tiers = make_tiers()
    return [demonstration(training_problem(tiers, RL_STREAM, 0, index), Random(index)) for index in range(count)]


def _completions(task: Task) -> list[list[int]]:
    words = task.tokenizer.encode(" ".join(_texts(4 * TOKENS // 40)), add_special_tokens=False)
    ending = [*task.tokenizer.encode(f" {BOX}42}}.", add_special_tokens=False), int(task.tokenizer.eos_token_id)]
    length = TOKENS - len(ending)
    return [[*words[at % 97 :][:length], *ending] for at in range(COMPLETIONS)]
