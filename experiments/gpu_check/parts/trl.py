"""TRL's trainer with OAR's weights: two steps on the device, in float32 and bfloat16, completions handed over ready-made."""

import importlib.util
import tempfile
import warnings
from typing import Any

import torch

from experiments.gpu_check.device import FULL
from experiments.gpu_check.findings import Findings, NotRunError

STEPS, PROMPTS, GENERATIONS = 2, 2, 4


def run(findings: Findings) -> None:
    """OAR-G, which takes no cast, and OAR-GN, which takes TRL's."""
    missing = [name for name in ("trl", "datasets") if importlib.util.find_spec(name) is None]
    if missing:
        raise NotRunError(f"{', '.join(missing)} is not installed")
    for method in ("oar_g", "oar_gn"):
        for bf16 in (False, True):
            name = f"{method}, {'bfloat16' if bf16 else 'float32'}"
            with findings.case(name), tempfile.TemporaryDirectory() as folder:
                _train(findings, method, bf16, folder)


def _train(findings: Findings, method: str, bf16: bool, folder: str) -> None:
    from datasets import Dataset

    from experiments.gpu_check.learners import TINY, random_model
    from oar.integrations.trl import OARGRPOConfig, OARGRPOTrainer
    from oar.tasks.data.sources import WordsSource
    from oar.tasks.words import build_tokenizer

    tokenizer = build_tokenizer()
    problems = WordsSource(["words1", "words2"]).problems(1, 0, STEPS * PROMPTS)
    answers = {problem.question: problem.answer for problem in problems}

    def completions(prompts: list[str], *_: Any) -> dict[str, Any]:
        """Every other one is right, some of them longer than others."""
        texts = ["So it is #### 99 99"] * len(prompts)
        for index in range(0, len(prompts), 2):
            texts[index] = f"So we have #### {answers[prompts[index]]}" + " ." * (index % 3)
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
        logprobs = [[-1.0] * len(one) for one in ids]
        return {"prompt_ids": [tokenizer.encode(one) for one in prompts], "completion_ids": ids, "logprobs": logprobs}

    def rewards(prompts: list[str], **_: Any) -> list[float]:
        return [float(index % 2 == 0) for index in range(len(prompts))]

    arguments = OARGRPOConfig(
        output_dir=folder,
        method=method,
        marker="####",
        probe="as_mean",
        per_device_train_batch_size=GENERATIONS,
        gradient_accumulation_steps=PROMPTS,
        num_generations=GENERATIONS,
        max_completion_length=32,
        learning_rate=1e-3,
        max_steps=STEPS,
        logging_steps=1,
        bf16=bf16,
        use_cpu=not FULL,
        use_vllm=False,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rollout_func is experimental
        trainer = OARGRPOTrainer(
            model=random_model(TINY, spread=0.1),
            reward_funcs=rewards,
            args=arguments,
            train_dataset=Dataset.from_list([{"prompt": problem.question} for problem in problems]),
            processing_class=tokenizer,
            rollout_func=completions,
        )
    before = [weight.detach().clone() for weight in trainer.model.parameters()]
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "weights/ess_ratio" in entry]
    findings.at_least("steps", len(logs), STEPS)
    findings.at_most("ESS ratio of the weights", min(entry["weights/ess_ratio"] for entry in logs), 0.999)
    moved = max(float((now - then).abs().max()) for now, then in zip(trainer.model.parameters(), before, strict=True))
    findings.at_least("the steps moved the weights", moved, 1e-6)
    finite = all(bool(torch.isfinite(weight).all()) for weight in trainer.model.parameters())
    findings.true("weights are finite", finite, "all")
