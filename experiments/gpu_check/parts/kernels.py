"""torch's kernels: attention of a packed row, recomputed attention and the head's scores against plain arithmetic in higher
precision."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AttentionInterface

from experiments.gpu_check.device import DEVICE, FULL, GIB, best_of_three, relative, sized, wait
from experiments.gpu_check.findings import Findings
from oar.common.kernels import choose_kernels
from oar.method.forward.logprobs import Forward
from oar.method.forward.packing import ATTENTION, Attended, PackedSequences, Packing
from oar.method.forward.projection import token_scores
from oar.method.forward.variable_length import has_kernel
from oar.method.importance.recomputed_attention import CleanKeys, CopiedKeys, Recomputation, SharedKeys

HEADS, KV_HEADS, SIZE = sized((28, 4, 128), (4, 2, 16))  # Qwen2.5-7B's
LENGTHS = sized((37, 1000, 4023), (37, 60))  # tokens of the clean forward
PROMPT, RESTS = sized((700, (37, 1000, 300)), (9, (3, 12, 5)))  # tokens of a group that shares its prompt
TOKENS, VOCABULARY, WIDTH = sized((4024, 152064, 3584), (40, 1520, 36))
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 2e-2}  # of outputs, in shares of the largest
# Nats; bfloat16 logits are rounded to 8 bits, by either way in another order of sums.
HEAD_BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 5e-3}
BACKWARD = 3  # gradients go through twice as many products: times the bound
Attention = type[CopiedKeys] | type[SharedKeys]


@dataclass(frozen=True, slots=True)
class Job:
    """`count` counterfactuals of one completion of `length` tokens, each of which recomputes `width` positions."""

    kind: Attention
    length: int
    count: int
    width: int
    backward: bool = False

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.kind.__name__}, {self.length} tokens, {self.count} x {self.width}" + ", backward" * self.backward


def jobs() -> Iterator[Job]:
    """What OAR-P's routes (few columns), its windows (more) and OAR-G (all after the prompt, with a gradient) ask for."""
    for length in LENGTHS:
        yield Job(SharedKeys, length, sized(128, 4), 13)
        yield Job(CopiedKeys, length, sized(16, 2), min(48, length // 2))
        yield Job(CopiedKeys, length, 1, length - length // 4, backward=True)


def run(findings: Findings) -> None:
    """Attention of the learner's own forward, then that of credit, then the head."""
    choose_kernels()
    for dtype in BOUNDS:
        with findings.case(f"a packed row, {_word(dtype)}"):
            _row(findings, dtype)
    for job, dtype in product(jobs(), BOUNDS):
        with findings.case(f"{job.name}, {_word(dtype)}"):
            _attention(findings, job, dtype)
    for dtype in BOUNDS:
        with findings.case(f"token_scores, {TOKENS} x {VOCABULARY}, {_word(dtype)}"):
            _head(findings, dtype)


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _row(findings: Findings, dtype: torch.dtype) -> None:
    """A group with its prompt once and a completion alone, against each sequence on its own."""
    torch.manual_seed(0)
    lengths = [*(PROMPT + rest for rest in RESTS), RESTS[0]]
    packing = Packing.of(lengths, DEVICE, [*[PROMPT] * len(RESTS), 0], [*[0] * len(RESTS), 1])
    tokens, scaling, module = PROMPT + sum(RESTS) + RESTS[0], SIZE**-0.5, nn.Module()
    vars(module).update(num_key_value_groups=HEADS // KV_HEADS, is_causal=True)
    states = [
        torch.randn(1, heads, tokens, SIZE, device=DEVICE).to(dtype).requires_grad_()
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    ]

    def attend() -> Tensor:
        packed = PackedSequences(packing.families, DEVICE)
        output: Tensor = AttentionInterface()[ATTENTION](module, *states, None, packed=packed, scaling=scaling)[0]
        return output[0]

    def learn() -> tuple[Tensor, ...]:
        return torch.autograd.grad(attend().float().square().sum(), states)

    exact = [state.detach().double().requires_grad_() for state in states]
    reference = torch.zeros(tokens, HEADS, SIZE, dtype=torch.float64, device=DEVICE)
    for row, length in enumerate(lengths):
        position = torch.arange(length, device=DEVICE)
        place = packing.places(torch.full_like(position, row), position)
        query, key, value = (state[0, :, place] for state in exact)
        output = _causal(query, key, value, position, scaling)
        reference = reference.index_put((place,), output.transpose(0, 1))
    expected = torch.autograd.grad(reference.square().sum(), exact)
    findings.at_most("error of the output", relative(attend(), reference), BOUNDS[dtype])
    error = max(relative(own, other) for own, other in zip(learn(), expected, strict=True))
    findings.at_most("error of the gradient", error, BACKWARD * BOUNDS[dtype])
    took = best_of_three(learn)
    findings.note("milliseconds", 1000 * took.seconds, "ms")
    findings.note("memory", took.above / GIB, "GiB")
    findings.note("in one call", "yes" if has_kernel(*states) else "no", "", "yes in 16 bits from torch 2.12 on")
    findings.note("kernel", _kernels(learn))


def _attention(findings: Findings, job: Job, dtype: torch.dtype) -> None:
    forward, asked, states = _made(job, dtype)
    attention = job.kind(CleanKeys(forward), asked)
    scaling = SIZE**-0.5

    def attend() -> Tensor:
        return attention.attend(0, *states, scaling, only_read=False)

    def learn() -> tuple[Tensor, ...]:
        return torch.autograd.grad(attend().float().square().sum(), states)

    exact = [state.detach().double().requires_grad_(job.backward) for state in states]
    reference = _plain(forward, asked, exact, scaling)
    findings.at_most("error of the output", relative(attend(), reference), BOUNDS[dtype])
    if job.backward:
        expected = torch.autograd.grad(reference.square().sum(), exact)
        error = max(relative(own, other) for own, other in zip(learn(), expected, strict=True))
        findings.at_most("error of the gradient", error, BACKWARD * BOUNDS[dtype])
        del expected
    del reference, exact
    work = learn if job.backward else attend
    took = best_of_three(work)
    findings.note("milliseconds", 1000 * took.seconds, "ms")
    findings.note("memory", took.above / GIB, "GiB", "a few times the keys, not the scores")
    kernel = _kernels(work)
    findings.note("kernel", kernel)
    if FULL:
        findings.true("a fused kernel", "math" not in kernel.split("[")[0], "not torch's math fallback")


def _kernels(work: Callable[[], object]) -> str:
    """Which of torch's attention functions `work` calls, and the GPU kernel that takes the longest."""
    with torch.profiler.profile() as profile:  # of whatever device there is
        work()
        wait()
    averages = profile.key_averages()
    asked = "_scaled_dot_product"
    functions = sorted({one.key.split(asked)[-1].strip("_") for one in averages if asked in one.key})
    on_gpu = [one for one in averages if one.device_type == torch.autograd.DeviceType.CUDA]
    longest = max(on_gpu, key=lambda one: one.self_device_time_total).key[:60] if on_gpu else ""
    return " ".join(filter(None, [", ".join(functions) or "none", f"[{longest}]" if longest else ""]))


def _made(job: Job, dtype: torch.dtype) -> tuple[Forward, Recomputation, tuple[Tensor, Tensor, Tensor]]:
    """A clean forward's queries, keys and values; positions (head, gap, tail) of each counterfactual; its own states."""
    torch.manual_seed(job.length)

    def states(*shape: int) -> Tensor:
        return torch.randn(*shape, device=DEVICE).to(dtype)

    query, key, value = (states(heads, job.length, SIZE) for heads in (HEADS, KV_HEADS, KV_HEADS))
    empty = states(job.length, 1)
    forward = Forward(empty, empty, [Attended(query, key, value, SIZE**-0.5)], Packing.of([job.length], DEVICE))
    tail = max(1, job.width - 5) if job.kind is SharedKeys else job.width - 1
    latest = job.length - tail - (job.width - tail)
    starts = torch.linspace(0, latest, job.count, device=DEVICE).long()
    ahead = torch.arange(job.width - tail, device=DEVICE)
    last = torch.arange(job.length - tail, job.length, device=DEVICE).expand(job.count, -1)
    positions = torch.cat([starts[:, None] + ahead, last], dim=1)
    asked = Recomputation(
        rows=[0] * job.count,
        embeddings=states(job.count, job.width, 1),
        positions=positions,
        valid=torch.ones_like(positions, dtype=torch.bool),
        read=torch.full((job.count, 1), job.width - 1, device=DEVICE),
    )
    own = tuple(
        states(job.count, heads, job.width, SIZE).requires_grad_(job.backward) for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    return forward, asked, (own[0], own[1], own[2])


def _plain(forward: Forward, asked: Recomputation, states: Sequence[Tensor], scaling: float) -> Tensor:
    """Causal attention by position, written down plainly, in double precision, one counterfactual after another."""
    clean, outputs = forward.layers[0], []
    for positions, query, key, value in zip(asked.positions, *states, strict=True):
        keys, values = (
            ours.double().index_copy(1, positions, new) for ours, new in ((clean.key, key), (clean.value, value))
        )
        outputs.append(_causal(query, keys, values, positions, scaling))
    return torch.stack(outputs)


def _causal(query: Tensor, key: Tensor, value: Tensor, positions: Tensor, scaling: float) -> Tensor:
    """(heads, W, D): of queries (heads, W, D) at `positions` (W,), over keys (key-value heads, L, D) from position 0 on."""
    # A key-value head serves several query heads.
    keys, values = (states.repeat_interleave(len(query) // len(states), dim=0) for states in (key, value))
    later = torch.arange(keys.shape[1], device=DEVICE) > positions[:, None]
    scores = (query @ keys.mT * scaling).masked_fill(later, -torch.inf)
    return scores.softmax(dim=-1) @ values


def _head(findings: Findings, dtype: torch.dtype) -> None:
    """Logprobs, their gradient to hidden states and weight, time and memory."""
    torch.manual_seed(0)
    hidden = torch.randn(TOKENS, WIDTH, device=DEVICE).to(dtype).requires_grad_()
    with DEVICE:
        head = nn.Linear(WIDTH, VOCABULARY, bias=False, dtype=dtype)
    with torch.no_grad():
        head.weight.normal_(0, WIDTH**-0.5)
    tokens = torch.randint(0, VOCABULARY, (TOKENS,), device=DEVICE)

    def with_gradients(logprobs: Tensor) -> tuple[Tensor, ...]:
        return logprobs.detach(), *torch.autograd.grad(logprobs.mean(), (hidden, head.weight))

    def ours() -> tuple[Tensor, ...]:
        return with_gradients(token_scores(hidden, head, tokens, 1.0)[0])

    def plain() -> tuple[Tensor, ...]:
        return with_gradients(-cross_entropy(head(hidden).float(), tokens, reduction="none"))

    (logprobs, *gradients), (expected, *expected_gradients) = ours(), plain()
    bound = HEAD_BOUNDS[dtype]
    findings.at_most("error of logprobs", float((logprobs - expected).abs().mean()), bound, "nats")
    for which, own, other in zip(("hidden states", "weight"), gradients, expected_gradients, strict=True):
        findings.at_most(f"error of the gradient to the {which}", relative(own, other), 10 * bound)
    del logprobs, gradients, expected, expected_gradients
    for what, work in (("token_scores", ours), ("cross_entropy", plain)):
        took = best_of_three(work)
        findings.note(f"milliseconds of {what}", 1000 * took.seconds, "ms")
        findings.note(f"memory of {what}", took.above / GIB, "GiB")
