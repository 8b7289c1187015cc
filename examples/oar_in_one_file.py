"""The whole method in one file: task, policy, rollouts, credit, gate, loss, step. torch and transformers, nothing else.

    python examples/oar_in_one_file.py --method oar_g        (or grpo, oar_p)

A small Qwen2 is taught to half solve short word problems and then trained with reinforcement learning, in about two
minutes on one core. GRPO gives every token of a completion its completion's advantage A. OAR asks how much each token
moves the model's answer, I_t, turns that into weights w_t of mean 1, and gives token t the advantage w_t A
(arXiv 2601.07408; docs/METHOD.md has the mathematics, section numbers below are its). The repository computes the same
faster and for any model: tests/test_one_file.py holds importance, weights and gradients of both equal.
"""

import argparse
import random
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

# --- The task: word problems whose solution is a chain of equations -------------------------------------------------

WORDS = "<pad> <eos> #### 0 1 2 3 4 5 6 7 8 9 + - = . ? has buys loses apples Tom Mia How many now Then So".split()
ID = {word: number for number, word in enumerate(WORDS)}
PAD, EOS, MARKER = ID["<pad>"], ID["<eos>"], ID["####"]
OPERATIONS, LARGEST, MAX_NEW_TOKENS = 3, 9, 32


def encode(text: str) -> list[int]:
    """A word is a token, and so is a number: all are below ten."""
    return [ID[word] for word in text.split()]


def problem(rng: random.Random) -> tuple[str, str, str]:
    """Question, a worked solution, answer. Half of the solutions leave out the last result: RL learns to write it."""
    name, state = rng.choice(["Tom", "Mia"]), rng.randint(2, LARGEST)
    question, solution = f"{name} has {state} apples .", ""
    for step in range(OPERATIONS):
        sign = rng.choice([s for s in "+-" if (state + 2 <= LARGEST if s == "+" else state >= 2)])
        number = rng.randint(2, min(9, LARGEST - state if sign == "+" else state))
        after = state + number if sign == "+" else state - number
        question += f" {name} {'buys' if sign == '+' else 'loses'} {number} ."
        result = f" = {after}" if step < OPERATIONS - 1 or rng.random() < 0.5 else ""
        solution += f" {rng.choice(['Then', 'So'])} {state} {sign} {number}{result} ."
        state = after
    return f"{question} How many now ?", f"{solution} #### {state}", str(state)


# --- A batch: prompt, then completion, then padding. Causal attention never looks right, so padding cannot matter ---


@dataclass
class Batch:
    """ids (B, L), prompt_lengths (B,); masks (B, L) over positions: completion, reasoning (before the marker), answer."""

    ids: Tensor
    prompt_lengths: Tensor
    completion: Tensor
    reasoning: Tensor
    answer: Tensor


def collate(prompts: list[list[int]], completions: list[list[int]]) -> Batch:
    """Segments (section 2): reasoning | marker | answer | EOS. Without marker and answer nothing is reweighted."""
    rows, width = len(prompts), max(len(p) + len(c) for p, c in zip(prompts, completions, strict=True))
    ids = torch.full((rows, width), PAD)
    masks = torch.zeros(3, rows, width, dtype=torch.bool)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        start, end = len(prompt), len(prompt) + len(completion)
        ids[row, :end] = torch.tensor(prompt + completion)
        masks[0, row, start:end] = True
        answer = answer_of(completion)
        if answer:
            marker = start + len(completion) - 1 - completion[::-1].index(MARKER)  # the last marker counts
            masks[1, row, start:marker] = True
            masks[2, row, marker + 1 : marker + 1 + len(answer)] = True
    return Batch(ids, torch.tensor([len(prompt) for prompt in prompts]), *masks)


def answer_of(completion: list[int]) -> list[int]:
    """What stands behind the last marker."""
    if MARKER not in completion:
        return []
    rest = completion[len(completion) - completion[::-1].index(MARKER) :]
    return rest[:-1] if rest[-1:] == [EOS] else rest


# --- The policy -----------------------------------------------------------------------------------------------------


def make_model(seed: int) -> Qwen2ForCausalLM:
    """0.4 M parameters. The pad embedding is zero and stays so: that is what "masked" means here."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(WORDS),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.06,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=None,
    )
    model = Qwen2ForCausalLM(config).eval()
    model.model.embed_tokens.weight.data[PAD] = 0
    return model


def teach(model: Qwen2ForCausalLM, steps: int, rng: random.Random) -> None:
    """Supervised, on fresh demonstrations, until the task is half known. Stands for pretraining."""
    hidden = [p for p in model.model.layers.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if all(p is not h for h in hidden)]
    muon = torch.optim.Muon(hidden, lr=1e-2, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(others, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.01)
    for step in range(steps):
        drawn = [problem(rng) for _ in range(32)]
        batch = collate([encode(q) for q, _, _ in drawn], [[*encode(s), EOS] for _, s, _ in drawn])
        logits = model(input_ids=batch.ids).logits[:, :-1]
        taught = batch.completion[:, 1:]
        loss = F.cross_entropy(logits[taught], batch.ids[:, 1:][taught])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, peak in ((muon, 1e-2), (adamw, 1e-2)):
            optimizer.param_groups[0]["lr"] = peak * min((step + 1) / 30, 1 - 0.95 * step / steps)
            optimizer.step()
            optimizer.zero_grad()


@torch.no_grad()
def sample(model: Qwen2ForCausalLM, prompts: list[list[int]]) -> list[list[int]]:
    """One completion per prompt at temperature 1, up to and with EOS."""
    width = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (width - len(prompt)) + prompt for prompt in prompts])  # generate wants padding left
    mask = (ids != PAD).long()
    drawn = model.generate(input_ids=ids, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=MAX_NEW_TOKENS)
    completions = drawn[:, width:].tolist()
    return [found[: found.index(EOS) + 1] if EOS in found else found for found in completions]


def logprobs(model: Qwen2ForCausalLM, batch: Batch) -> Tensor:
    """(B, L): of each completion token given what stands before it, 0 elsewhere."""
    log_p = model(input_ids=batch.ids).logits[:, :-1].log_softmax(dim=-1)
    chosen = log_p.gather(2, batch.ids[:, 1:, None])[:, :, 0]
    return F.pad(chosen, (1, 0)) * batch.completion


# --- Credit: how much does each token move the answer? --------------------------------------------------------------


def outcome(logits: Tensor, answer: Tensor) -> Tensor:
    """The probe `as_mean` (section 3): log-softmax of the mean logits (B, L, V) that predict the answer's tokens, (B, V)."""
    predicting = F.pad(answer[:, 1:], (0, 1))[:, :, None]  # the position before a token predicts it
    return ((logits * predicting).sum(dim=1) / predicting.sum(dim=1)).log_softmax(dim=-1)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(P || Q) of log-probabilities (N, V), (N,)."""
    return (p.exp() * (p - q)).sum(dim=-1)


@torch.no_grad()
def oar_p(model: Qwen2ForCausalLM, batch: Batch) -> Tensor:
    """OAR-P (section 4): replace token t by pad and look: I_t = KL(P || P^(t)), (B, L). A forward for every token."""
    clean = outcome(model(input_ids=batch.ids).logits, batch.answer)
    row, position = batch.reasoning.nonzero(as_tuple=True)
    importance = torch.zeros(batch.ids.shape)
    for rows, at in zip(row.split(128), position.split(128), strict=True):
        ids = batch.ids[rows].clone()
        ids[torch.arange(len(rows)), at] = PAD
        changed = outcome(model(input_ids=ids).logits, batch.answer[rows])
        importance[rows, at] = kl(clean[rows], changed).clamp(min=0)
    return importance


def oar_g(model: Qwen2ForCausalLM, batch: Batch, noise: Tensor) -> Tensor:
    """OAR-G (section 4): J = KL(P || P_noisy), I_t = |<dJ/de_t, e_t>|, (B, L), noise (B, L, H) on the reasoning tokens.

    One forward and one backward for all tokens. The gradient is taken to the embeddings alone: no weight's `.grad` moves.
    """
    embeddings = model.get_input_embeddings()(batch.ids).detach()
    with torch.no_grad():
        clean = outcome(model(inputs_embeds=embeddings).logits, batch.answer)
    noisy = (embeddings + noise * batch.reasoning[:, :, None]).requires_grad_()
    objective = kl(clean, outcome(model(inputs_embeds=noisy).logits, batch.answer)).sum()
    (gradient,) = torch.autograd.grad(objective, noisy)
    return (gradient * embeddings).sum(dim=-1).abs() * batch.reasoning


def gate(importance: Tensor, reasoning: Tensor, tau: float = 0.4, beta: float = 2.0, floor: float = 0.1) -> Tensor:
    """Bi-level gating (section 5): weights (B, L), mean 1 over a completion's reasoning tokens, 1 everywhere else."""
    weights = torch.ones(importance.shape)
    for row, mask in enumerate(reasoning):
        if not mask.any():
            continue
        s = importance[row, mask].log1p()
        if s.max() == s.min():
            continue
        s = (s - s.min()) / (s.max() - s.min())
        threshold = s.quantile(tau)
        suppressed = (s / threshold.clamp(min=1e-30)).clamp(min=floor)
        boosted = 1 + beta * (s - threshold) / (1 - threshold).clamp(min=1e-30)
        w = torch.where(s < threshold, suppressed, boosted)
        weights[row, mask] = w * len(w) / w.sum()
    return weights


def token_weights(model: Qwen2ForCausalLM, batch: Batch, method: str, noise_std: float = 1e-3) -> Tensor:
    """(B, L) for completions that all have an answer."""
    if method == "grpo":
        return torch.ones(batch.ids.shape)
    if method == "oar_p":
        return gate(oar_p(model, batch), batch.reasoning)
    noise = noise_std * torch.randn(*batch.ids.shape, model.config.hidden_size)
    return gate(oar_g(model, batch, noise), batch.reasoning)


# --- Reinforcement learning -----------------------------------------------------------------------------------------


def group_advantages(rewards: Tensor, group: int) -> Tensor:
    """(B,): how much better than its group's mean a completion is, in standard deviations (section 1)."""
    grouped = rewards.view(-1, group)
    centred = grouped - grouped.mean(dim=1, keepdim=True)
    return (centred / (grouped.std(dim=1, keepdim=True) + 1e-4)).flatten()


def policy_loss(new: Tensor, old: Tensor, token_advantages: Tensor, completion: Tensor, clip: float = 0.2) -> Tensor:
    """-min(ratio A_t, clip(ratio) A_t), mean over a completion's tokens, then over completions (section 1)."""
    ratio = (new - old).exp()
    per_token = -torch.minimum(ratio * token_advantages, ratio.clamp(1 - clip, 1 + clip) * token_advantages)
    return ((per_token * completion).sum(dim=1) / completion.sum(dim=1)).mean()


def training_step(
    model: Qwen2ForCausalLM, optimizer: torch.optim.Optimizer, method: str, rng: random.Random, groups: int, group: int
) -> tuple[float, Batch, Tensor]:
    """Generate, grade, advantages, importance, gate, loss, step. Returns the mean reward, the batch and its weights."""
    drawn = [problem(rng) for _ in range(groups)]
    prompts = [encode(question) for question, _, _ in drawn for _ in range(group)]
    answers = [encode(answer) for _, _, answer in drawn for _ in range(group)]
    completions = sample(model, prompts)
    rewards = torch.tensor([float(answer_of(c) == a) for c, a in zip(completions, answers, strict=True)])
    advantages = group_advantages(rewards, group)
    batch = collate(prompts, completions)
    weights = torch.ones(batch.ids.shape)
    credited = (batch.answer.any(dim=1) & (advantages != 0)).nonzero()[:, 0]  # the others' weights change nothing
    if len(credited):
        weights[credited] = token_weights(model, rows(batch, credited), method)
    new = logprobs(model, batch)
    loss = policy_loss(new, new.detach(), weights * advantages[:, None], batch.completion)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return float(rewards.mean()), batch, weights


def rows(batch: Batch, index: Tensor) -> Batch:
    """Some of the completions."""
    return Batch(*(tensor[index] for tensor in vars(batch).values()))


def accuracy(model: Qwen2ForCausalLM, count: int, seed: int) -> float:
    """At temperature 1 on problems of a seed of their own."""
    rng = random.Random(seed)
    drawn = [problem(rng) for _ in range(count)]
    found = sample(model, [encode(question) for question, _, _ in drawn])
    return sum(answer_of(f) == encode(answer) for f, (_, _, answer) in zip(found, drawn, strict=True)) / count


def main() -> None:
    """Teach, train, and show who got the credit in one completion."""
    parser = argparse.ArgumentParser(description="OAR in one file")
    parser.add_argument("--method", choices=["grpo", "oar_p", "oar_g"], default="oar_g")
    parser.add_argument("--steps", type=int, default=30, help="steps of reinforcement learning")
    parser.add_argument("--teach", type=int, default=80, help="supervised steps before")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.steps < 1:
        parser.error("--steps must be 1 or more")
    torch.set_num_threads(1)
    rng, model = random.Random(args.seed), make_model(args.seed)
    teach(model, args.teach, rng)
    print(f"taught: {accuracy(model, 200, seed=10**9):.1%} of new problems right")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0)
    for step in range(1, args.steps + 1):
        reward, batch, weights = training_step(model, optimizer, args.method, rng, groups=8, group=8)
        print(f"step {step:>3}/{args.steps}  reward {reward:.2f}  largest weight {weights.max():.1f}", flush=True)
    print(f"trained with {args.method}: {accuracy(model, 200, seed=10**9):.1%} right")
    row = int(weights.amax(dim=1).argmax())
    shown = batch.completion[row]
    print(" ".join(f"{WORDS[i]}[{w:.1f}]" for i, w in zip(batch.ids[row, shown], weights[row, shown], strict=True)))


if __name__ == "__main__":
    main()
