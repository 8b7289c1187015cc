"""What credit costs in one update of a model: seconds, tokens forwarded, peak memory (for
experiments/bench_importance/__main__.py)."""

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config

from experiments.shared.peak_memory import peak_memory
from experiments.shared.plain_oar_p import batched_oar_p
from oar.common.errors import OarError
from oar.common.seeding import generator
from oar.config import TrainConfig
from oar.learner.credit import Credited
from oar.learner.distributed import ALONE
from oar.learner.update import LossBatch, accumulate_gradient
from oar.method.batch import CompletionBatch, collate
from oar.method.credit import CreditAssigner
from oar.method.forward.logprobs import Scores, score_completions
from oar.method.gating import make_gate
from oar.method.importance import CreditInputs, ImportanceEstimator, PerturbationImportance
from oar.method.probes import AnswerMeanProbe, Probe
from oar.method.segments import Segments

PAD, MARKER, EOS, FIRST_WORD = 0, 1, 2, 3  # token ids of the made-up batches
WARM_UP_LENGTH = 24  # completion tokens: every kernel is used once before anything is measured
PILOT = 8  # counterfactuals of a completion that tell how long all of them take


@dataclass(frozen=True, slots=True)
class PlainImportance:
    """The naive OAR-P that exact, prefix-shared OAR-P is held against: whole masked copies, as many in a forward."""

    max_tokens_per_forward: int

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T) in nats, under as_mean."""
        rows_at_once = max(1, self.max_tokens_per_forward // inputs.batch.input_ids.shape[1])
        return batched_oar_p(inputs.model, inputs.batch, rows_at_once)


@dataclass(frozen=True, slots=True)
class Update:
    """One update as the learner makes it on the policy: forward, credit, loss, backward. The optimizer is left out."""

    model: PreTrainedModel
    batch: CompletionBatch
    advantages: Tensor
    probe: Probe
    cfg: TrainConfig

    def run(
        self, estimator: ImportanceEstimator, watch: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> Credited:
        """Gradients are left in the parameters' `.grad`; `watch()` surrounds the credit of each micro-batch."""
        data = LossBatch.of(self.batch, self.advantages)
        assigner = CreditAssigner(estimator, make_gate(**self.cfg.gating.options()), self.probe)
        self.model.zero_grad(set_to_none=True)

        def credit(rows: Tensor, scores: Scores) -> Credited:
            with watch():
                some = self.batch.rows(rows)
                given = assigner(self.model, some, scores, self.advantages[rows], seeds=rows.tolist())
            return Credited.of(rows, scores, given)

        _, credited = accumulate_gradient(
            self.model,
            None,
            data,
            torch.arange(len(self.batch), device=self.advantages.device),
            self.cfg.learner,
            temperature=self.cfg.rollout.temperature,
            max_completion_length=self.batch.completion_ids.shape[1],
            credit=credit,
        )
        return Credited.joined(credited, data.loss_mask.shape, ALONE, self.advantages.device)

    def seconds(self, estimator: ImportanceEstimator) -> tuple[float, float]:
        """Of the whole update, and of its credit alone."""
        credit, started = 0.0, self._now()

        @contextmanager
        def watch() -> Iterator[None]:
            nonlocal credit
            before = self._now()
            yield
            credit += self._now() - before

        self.run(estimator, watch)
        return self._now() - started, credit

    @torch.no_grad()
    def expected_seconds(self, estimator: ImportanceEstimator) -> float:
        """Of the counterfactuals of an estimator, to leave out what would take too long.

        Going by a few of them, evenly spaced; of the naive OAR-P by the forward of one row.
        """
        mask = self.batch.reasoning_mask
        if isinstance(estimator, PlainImportance):
            started = self._now()
            self.model.base_model(input_ids=self.batch.input_ids[:1], use_cache=False)
            return (self._now() - started) * int(mask.sum())
        if not isinstance(estimator, PerturbationImportance):
            return 0.0
        scores = score_completions(self.model, self.batch, temperature=self.cfg.rollout.temperature)
        inputs = CreditInputs(self.model, self.batch, self.probe, scores, range(len(self.batch)))
        spacing = max(1, int(mask.sum(dim=1).max()) // PILOT)
        some = mask & ((mask.cumsum(dim=1) - 1) % spacing == 0)
        started = self._now()
        replace(estimator, budget=None).measure(inputs, some)
        each = (self._now() - started) / int(some.sum())
        counts = mask.sum(dim=1)
        return each * int((counts if estimator.budget is None else counts.clamp(max=estimator.budget)).sum())

    def _now(self) -> float:
        if self.model.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def timed_rounds(
    update: Update, methods: Mapping[str, ImportanceEstimator], rounds: int, method_seconds: float
) -> dict[str, dict[str, list[float]]]:
    """By method the seconds of the update and of its credit, round by round; the methods take turns within a round.

    The first round warms up whoever gets a second: a method is left out of further rounds once it has had
    `method_seconds`, so all lists begin with the same round and may end earlier.
    """
    found: dict[str, dict[str, list[float]]] = {name: {"update": [], "credit": []} for name in methods}
    for at in range(rounds):
        for name in turned(list(methods), at):
            if sum(found[name]["update"]) < method_seconds:
                whole, credit = update.seconds(methods[name])
                found[name]["update"].append(whole)
                found[name]["credit"].append(credit)
    return found


def turned(names: Sequence[str], by: int) -> list[str]:
    """The names in turn, beginning with another one each time: no method always runs behind the same one."""
    by %= len(names)
    return [*names[by:], *names[:by]]


@contextmanager
def counted_tokens(model: PreTrainedModel) -> Iterator[list[int]]:
    """A list that gets rows x width of every call of the decoder in the block."""
    count: list[int] = []

    def note(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        states = named.get("inputs_embeds")
        rows, width = (named["input_ids"] if states is None else states).shape[:2]
        count.append(rows * width)

    hook = model.base_model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield count
    finally:
        hook.remove()


@dataclass(frozen=True, slots=True)
class Synthetic:
    """A made-up case: a Qwen2 architecture with random weights, and completions of random tokens, all of one length.

    architecture: keyword arguments of Qwen2Config; length: completion tokens, made of reasoning, a marker of one token, an
    answer and EOS.
    """

    size: str
    architecture: dict[str, Any]
    dtype: str
    device: str
    length: int
    completions: int
    prompt_tokens: int
    answer_tokens: int
    seed: int
    cfg: TrainConfig

    def update(self, methods: Mapping[str, ImportanceEstimator]) -> Update:
        """The update of the case; before it one of short completions by every method, since the first call is slow."""
        # Every completion counts, half of them for and half against.
        advantages = torch.ones(self.completions, device=self.device)
        advantages[1::2] = -1.0
        short = Update(self.model(), self.batch(WARM_UP_LENGTH), advantages, AnswerMeanProbe(), self.cfg)
        for estimator in methods.values():
            short.run(estimator)
        short.model.zero_grad(set_to_none=True)
        return replace(short, batch=self.batch(self.length))

    def model(self) -> PreTrainedModel:
        """Random weights."""
        return made_up_model(self.architecture, self.dtype, self.device, self.seed)

    def batch(self, length: int) -> CompletionBatch:
        """Random tokens."""
        rng, vocabulary = generator(self.seed, "batch"), int(self.architecture["vocab_size"])

        def words(count: int) -> list[int]:
            return torch.randint(FIRST_WORD, vocabulary, (count,), generator=rng).tolist()

        reasoning = length - self.answer_tokens - 2
        rows = range(self.completions)
        return collate(
            [words(self.prompt_tokens) for _ in rows],
            [[*words(reasoning), MARKER, *words(self.answer_tokens), EOS] for _ in rows],
            [[0.0] * length for _ in rows],
            [Segments(reasoning, reasoning + 1, reasoning + 1 + self.answer_tokens) for _ in rows],
            pad_id=PAD,
            device=self.device,
        )


def made_up_model(options: Mapping[str, Any], dtype: str, device: str, seed: int) -> PreTrainedModel:
    """A Qwen2 of the architecture `options` (keyword arguments of Qwen2Config) with random weights, dropout off."""
    options = dict(options)
    theta = options.pop("rope_theta")
    architecture = Qwen2Config(
        **options,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=EOS,
    )
    torch.manual_seed(seed)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(architecture, dtype=getattr(torch, dtype), attn_implementation="sdpa")
    assert isinstance(model, PreTrainedModel)
    return model.eval()


def measure_seconds(
    case: Synthetic, methods: Mapping[str, ImportanceEstimator], rounds: int, method_seconds: float, limit_s: float
) -> dict[str, Any]:
    """{"seconds": by method as `timed_rounds` gives them, "skipped": by method the seconds an update was thought to take}.

    Skipped is what is expected to take longer than `limit_s`.
    """
    like_the_learner(case.cfg.learner.threads)
    update = case.update(methods)
    guess = {name: update.expected_seconds(estimator) for name, estimator in methods.items()}
    skipped = {name: seconds for name, seconds in guess.items() if seconds > limit_s}
    taken = {name: estimator for name, estimator in methods.items() if name not in skipped}
    return {"seconds": timed_rounds(update, taken, rounds, method_seconds), "skipped": skipped}


def measure_memory(case: Synthetic, estimator: ImportanceEstimator) -> dict[str, Any]:
    """Tokens forwarded, importance and weights of one update, and the peaks of what tensors hold in it, in bytes.

    update_peak: above what the model itself takes (activations and gradients; no optimizer state); credit_peak: of the
    estimator above what is held when it is called.
    """
    like_the_learner(case.cfg.learner.threads)
    with peak_memory(case.device) as mark:
        update = case.update({"": estimator})
        peaks: list[int] = []
        credit_peaks: list[int] = [0]

        @contextmanager
        def watch() -> Iterator[None]:
            held, peak = mark()
            peaks.append(peak)
            yield
            _, peak = mark()
            credit_peaks.append(peak - held)
            peaks.append(peak)

        with counted_tokens(update.model) as count:
            before, _ = mark()
            data = update.run(estimator, watch)
            peaks.append(mark()[1])
    mask = update.batch.reasoning_mask
    return {
        "tokens": sum(count),
        "update_peak": max(peaks) - before,
        "credit_peak": max(credit_peaks),
        "importance": by_completion(data.token_importance, mask),
        "weights": by_completion(data.token_weights, mask),
    }


def by_completion(values: Tensor, masks: Tensor) -> list[list[float]]:
    """(B, T) as B lists of what is under the mask."""
    return [row[mask].tolist() for row, mask in zip(values, masks, strict=True)]


def like_the_learner(threads: int) -> None:
    """torch as the learner's process has it."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=torch.cuda.is_available())


# A server process that has imported everything forks itself for each case: nothing that one case leaves behind is seen by
# the next, and no case pays for the imports. Preloaded is what the entry point imports, which each child imports again.
_FRESH = multiprocessing.get_context("forkserver")
_FRESH.set_forkserver_preload(
    ["experiments.bench_importance.plan", "oar.learner.step", "experiments.bench_importance.page"]
)


def in_fresh_process(function: Callable[..., dict[str, Any]], *arguments: object) -> dict[str, Any]:
    """`function(*arguments)` in a process of its own. Raises the OarError it raises, and one where the process dies."""
    ours, theirs = _FRESH.Pipe(duplex=False)
    process = _FRESH.Process(target=_send, args=(theirs, function, arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        answer = ours.recv()
    except EOFError:
        process.join()
        raise OarError(
            f"A case of the benchmark must end by itself, but its process ended with exit code {process.exitcode}: see "
            "above, or take fewer completions where memory ran out (exit code -9)."
        ) from None
    finally:
        process.kill()
        process.join()
    if isinstance(answer, OarError):
        raise answer
    result: dict[str, Any] = answer
    return result


def _send(connection: Connection, function: Callable[..., dict[str, Any]], arguments: tuple[object, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends this process
    try:
        connection.send(function(*arguments))
    except OarError as error:
        connection.send(error)
