"""Tiny random models and batches that many tests share."""

from dataclasses import replace

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2ForSequenceClassification

from oar.method.batch import CompletionBatch, collate
from oar.method.forward.logprobs import score_completions
from oar.method.importance import CreditInputs
from oar.method.probes import Probe
from oar.method.segments import Segments

PAD, MARKER, VOCAB = 0, 3, 40


def tiny_model(seed: int = 0, *, vocab: int = VOCAB, tied: bool = False, layers: int = 2) -> Qwen2ForCausalLM:
    """A random Qwen2 with grouped-query attention, large enough weights to be far from uniform, float32."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
        tie_word_embeddings=tied,
        pad_token_id=PAD,
        bos_token_id=2,
        eos_token_id=1,
    )
    return Qwen2ForCausalLM(config).eval()


def windowed_model() -> Qwen2ForCausalLM:
    """The second of two layers sees three tokens back."""
    config = tiny_model().config.to_dict() | {
        "use_sliding_window": True,
        "sliding_window": 3,
        "layer_types": ["full_attention", "sliding_attention"],
    }
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**config)).eval()


def tiny_scorer(
    seed: int = 1, *, vocab: int = VOCAB, layers: int = 2, labels: int = 1
) -> Qwen2ForSequenceClassification:
    """A random reward model that reads the tokens of `tiny_model`, frozen."""
    config = tiny_model(vocab=vocab, layers=layers).config
    config.num_labels = labels
    torch.manual_seed(seed)
    return Qwen2ForSequenceClassification(config).eval().requires_grad_(False)


def spread_embeddings(spread: float) -> Qwen2ForCausalLM:
    """A random bfloat16 model whose input embeddings have this standard deviation."""
    torch.manual_seed(0)
    config = tiny_model(layers=4).config
    config.update({"hidden_size": 64, "intermediate_size": 128, "initializer_range": 0.08})
    model = Qwen2ForCausalLM(config).eval()
    torch.nn.init.normal_(model.get_input_embeddings().weight, std=spread)
    return model.bfloat16()


def random_batch(
    seed: int,
    rows: int = 4,
    *,
    longest: int = 12,
    unanswered: tuple[int, ...] = (),
    needs_answer: bool = True,
    group: int = 1,
) -> CompletionBatch:
    """Completions of random lengths: reasoning (at least one token), one marker token, an answer of 1-3 tokens, EOS.

    Each has a reference response of 1-4 tokens. `needs_answer`: as in `oar.tasks.task.Task.segments`. The first `group` rows have
    the same prompt.
    """
    rng = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=rng))

    def tokens(count: int) -> list[int]:
        return torch.randint(4, VOCAB, (count,), generator=rng).tolist()

    prompts, completions, segments = list[list[int]](), [], []
    for row in range(rows):
        reasoning, answer = draw(1, longest), draw(1, 3)
        prompts.append(prompts[0] if 0 < row < group else [2, *tokens(draw(1, 6))])
        completions.append([*tokens(reasoning), MARKER, *tokens(answer), 1])
        found = Segments(reasoning, reasoning + 1, reasoning + 1 + answer)
        absent = None if needs_answer else Segments.without_answer(len(completions[-1]))
        segments.append(absent if row in unanswered else found)
    logprobs = [[-1.0] * len(completion) for completion in completions]
    references = [tokens(draw(1, 4)) for _ in range(rows)]
    return collate(prompts, completions, logprobs, segments, references=references, pad_id=PAD)


def in_contexts(batch: CompletionBatch, *, without: tuple[int, ...] = ()) -> CompletionBatch:
    """The same completions, each with a privileged prompt of random length, but for rows `without`."""
    rng = torch.Generator().manual_seed(len(batch))
    lengths = torch.randint(1, 9, (len(batch),), generator=rng)
    lengths[list(without)] = 0
    ids = torch.randint(4, VOCAB, (len(batch), max(1, int(lengths.max()))), generator=rng)
    ids = ids.masked_fill(torch.arange(ids.shape[1]) >= lengths[:, None], PAD)
    return replace(batch, context_ids=ids, context_lengths=lengths)


def credit_inputs(
    batch: CompletionBatch,
    probe: Probe,
    *,
    model: Qwen2ForCausalLM | None = None,
    seed: int = 0,
    keep_graph: bool = False,
) -> CreditInputs:
    """What an estimator is given; with `keep_graph` the forward that scored the completions comes along, as in an update."""
    model = model or tiny_model()
    with torch.set_grad_enabled(keep_graph):
        scores = score_completions(model, batch, temperature=1.0)
    seeds = range(1000 * seed, 1000 * seed + len(batch))
    return CreditInputs(model, batch, probe, scores if keep_graph else scores.numbers(), seeds)
