"""bfloat16: do OAR-G and OAR-GN rank tokens as in float32, and how far apart are two ways to the same logprobs?"""

import copy

import torch

from experiments.gpu_check.device import DEVICE, FULL, sized
from experiments.gpu_check.engine import OwnSampling
from experiments.gpu_check.findings import Findings
from experiments.gpu_check.learners import TINY, cast, learner_on, random_model
from experiments.gpu_check.settings import architecture, step_config
from oar.common.errors import DataError
from oar.config import TrainConfig
from oar.learner.distributed import ALONE, Ranks, joined
from oar.method.batch import CompletionBatch, collate
from oar.method.forward.logprobs import score_completions
from oar.method.forward.projection import token_scores
from oar.plan import Architecture
from oar.statistics.attribution import spearman

SIZES = Architecture(6, 512, 8, 2, 1408, vocabulary=4096, tied=False, context=4096) if FULL else TINY
SPREADS = (0.016, 0.05, 1.0)  # of the embeddings; 0.016 is about what Qwen2.5-7B has
WEIGHTS = sized(0.02, 0.1)  # spread of all others; so that outcomes move by more than float32 rounds
REASONING = sized((150, 250), (12, 16))  # tokens
AGREEMENT = 0.95
METHODS = ("oar_gn", "oar_g")
FLOOR_SIZES: Architecture = architecture("qwen2_5_1_5b") if FULL else TINY
FLOOR_LENGTHS = sized((300, 700, 1500, 3000), (5, 9, 14))


def run(findings: Findings) -> None:
    """Ranks, then logprobs."""
    with joined(_config("oar_g", "bfloat16").learner) as ranks:
        for spread in SPREADS:
            for method in METHODS:
                with findings.case(f"{method}, embeddings of {spread}"):
                    findings.at_least("rank agreement with float32", _agreement(method, spread, ranks), AGREEMENT)
    with findings.case("logprobs, packed against padded"):
        _floor(findings)


def _agreement(method: str, spread: float, ranks: Ranks) -> float:
    """Rank correlation of a step's importance in bfloat16 and in float32, mean over completions."""
    start = random_model(SIZES, spread=WEIGHTS)
    with torch.no_grad():
        start.model.embed_tokens.weight.normal_(0, spread)
        for weight in start.parameters():
            weight.copy_(weight.bfloat16())  # so that only the arithmetic differs
    cfg = _config(method, "float32")
    engine, found = OwnSampling(cfg, REASONING), []
    for settings, group in ((cfg, ALONE), (_config(method, "bfloat16"), ranks)):
        found.append(learner_on(settings, copy.deepcopy(start), engine, group).training_step())
    exact, rounded = (report.credited.token_importance for report in found)
    agreement = [
        spearman(own[chosen].double().cpu().numpy(), other[chosen].double().cpu().numpy())
        for own, other, chosen in zip(rounded, exact, found[0].graded.batch.reasoning_mask, strict=True)
        if bool(other[chosen].any())
    ]
    if not agreement:
        raise DataError(
            "Some completion must be credited, but none is: all were cut before their answer, or graded alike."
        )
    return sum(agreement) / len(agreement)


def _config(method: str, dtype: str) -> TrainConfig:
    # Long enough for every completion to come to its answer: one that is cut before has no credit to rank.
    rollout = {"max_new_tokens": REASONING[1] + 10, "max_model_len": 512}
    return step_config((2, sized(8, 4)), (4, 512), dtype=dtype, method=method, rollout=rollout)


@torch.no_grad()
def _floor(findings: Findings) -> None:
    """What two kernels make of the same bfloat16 weights: no sync can be proven to agree better than this."""
    model = cast(random_model(FLOOR_SIZES), torch.bfloat16)
    batch = _batch()
    packed = score_completions(model, batch, temperature=1.0).logprobs
    position = torch.arange(batch.input_ids.shape[1], device=DEVICE)
    seen = position < (batch.prompt_lengths + batch.completion_lengths)[:, None]
    hidden = model.base_model(input_ids=batch.input_ids, attention_mask=seen.long(), use_cache=False).last_hidden_state
    row, token = batch.completion_mask.nonzero(as_tuple=True)
    predicting = hidden[row, batch.prompt_lengths[row] + token - 1]
    padded, _ = token_scores(predicting, model.get_output_embeddings(), batch.completion_ids[row, token], 1.0)
    difference = (packed[row, token] - padded).abs()
    findings.at_most("mean difference", float(difference.mean()), 0.05, "nats")
    findings.note("largest difference", float(difference.max()), "nats")


def _batch() -> CompletionBatch:
    drawn = torch.Generator().manual_seed(2)
    prompts, completions = (
        [torch.randint(4, TINY.vocabulary, (length,), generator=drawn).tolist() for length in lengths]
        for lengths in ([20] * len(FLOOR_LENGTHS), FLOOR_LENGTHS)
    )
    logprobs = [[0.0] * len(ids) for ids in completions]
    return collate(prompts, completions, logprobs, [None] * len(completions), pad_id=0, device=DEVICE)
