"""A reward head that learns beside the policy: what it remembers of completions, and what it says of a step's tokens."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from oar.config import LearnerConfig
from oar.method.advantages import centred
from oar.method.batch import CompletionBatch
from oar.method.forward.logprobs import logits_of, predicting_states, run_completions
from oar.method.forward.projection import rows_at_once
from oar.method.importance import RewardHead

_FILE = "reward_head.safetensors"  # of a checkpoint
_RECENT = 0.9  # what a step's foretold rewards count for trust after each step


class LearnedGains:
    """Holds what `RewardHead` learns from. Gains of a step come from earlier steps alone, so no completion speaks for itself."""

    def __init__(
        self,
        how: RewardHead,
        cfg: LearnerConfig,
        temperature: float,
        reference: PreTrainedModel,
        checkpoint: Path | None = None,
    ) -> None:
        """temperature: of the sampler; reference: the starting model. Where a run goes on, from what `checkpoint` holds."""
        self.how, self.cfg, self.temperature, self.reference = how, cfg, temperature, reference
        self.codes = how.token_codes(reference.config.vocab_size, reference.device)
        # By name: changes (N, C, H + 1), rewards and groups (N,) of the completions; moments (H + 1, H + 1); foretold (2,).
        self.memory = {} if checkpoint is None else load_file(checkpoint / _FILE, str(reference.device))
        # What it will remember of the step at hand, and what is told of it.
        self._step: tuple[dict[str, Tensor], dict[str, float]] | None = None

    def save(self, checkpoint: Path) -> None:
        """After a step. Raises OSError, SafetensorError."""
        save_file({name: values.cpu() for name, values in self.memory.items()}, checkpoint / _FILE)

    @torch.no_grad()
    def gains(self, policy: PreTrainedModel, batch: CompletionBatch, rewards: Tensor) -> Tensor:
        """(B, T), 0 outside the completions. rewards (B,) change nothing of them: they are what `learn` learns."""
        mask, everything = batch.completion_mask, torch.arange(len(batch), device=batch.input_ids.device)
        known, width = self.memory, policy.config.hidden_size + 1
        slope = torch.zeros(self.how.codes, width, device=mask.device)
        if known:
            slope = self.how.slope(known["changes"], known["rewards"], known["groups"], known["moments"])
        found, changes = torch.zeros(mask.shape, device=mask.device), slope.new_zeros(len(batch), *slope.shape)
        moments = torch.zeros(width, width, dtype=torch.float64, device=mask.device)
        for rows in batch.micro_batches(everything, self.cfg.micro_batch_tokens):
            some = batch.rows(rows)
            row, token = some.completion_mask.nonzero(as_tuple=True)
            drawn_from = predicting_states(run_completions(policy, some), some, row, token)
            surprise = self.codes[some.completion_ids[row, token]] - self._mean_codes(policy, drawn_from)
            states = predicting_states(run_completions(self.reference, some), some, row, token).float()
            states = torch.column_stack([torch.ones_like(states[:, 0]), states])  # (N, H + 1)
            found[rows[row], token] = (surprise @ slope * states).sum(dim=1)
            lengths = some.completion_lengths.tolist()
            by_row = zip(surprise.split(lengths), states.split(lengths), strict=True)
            changes[rows] = torch.stack([surprises.T @ seen for surprises, seen in by_row])
            moments += states.double().T @ states.double()
        groups, earned = everything // self.cfg.num_generations, rewards.float()
        told, real = centred(found.sum(dim=1), groups), centred(earned, groups)
        foretold = torch.stack([told @ real, told @ told])
        trust = self.how.trust(known["foretold"] if known else foretold.new_zeros(2))
        missed, differ = (real - trust * told).square().sum(), real.square().sum()
        explained = 1 - missed / differ if differ > 0 else differ
        seen = {"changes": changes, "rewards": earned, "groups": groups, "moments": moments, "foretold": foretold}
        self._step = seen, {"reward_head/explained": float(explained), "reward_head/trust": float(trust)}
        return trust * found

    def learn(self) -> dict[str, float]:
        """What `gains` has looked at. Returns the share of the rewards' differences that was foretold, and the trust it had."""
        assert self._step is not None  # gains are asked for first
        (new, metrics), old = self._step, self.memory
        if old:
            new["groups"] += old["groups"][-1] + 1
            for name in ("changes", "rewards", "groups"):
                new[name] = torch.cat([old[name], new[name]])[-self.how.memory :]
            new["moments"] += old["moments"]
            new["foretold"] += _RECENT * old["foretold"]
        self.memory = new
        return metrics

    def _mean_codes(self, policy: PreTrainedModel, states: Tensor) -> Tensor:
        """(N, C): of the token that the policy draws from each of its states (N, H)."""
        parts = states.split(rows_at_once(len(self.codes), states.device))
        return torch.cat([(logits_of(policy, part) / self.temperature).softmax(dim=-1) @ self.codes for part in parts])
