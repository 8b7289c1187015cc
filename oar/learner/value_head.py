"""A value head that learns beside the policy: what it has seen of states and rewards, and what it says of a step's tokens."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from oar.config import LearnerConfig
from oar.method.batch import CompletionBatch
from oar.method.forward.logprobs import predicting_states, run_completions
from oar.method.importance import ValueHead

_FILE = "value_head.safetensors"  # of a checkpoint


class LearnedValues:
    """Holds the sums of `ValueHead`. Values of a step come from earlier steps alone, so no completion speaks for itself."""

    def __init__(self, how: ValueHead, cfg: LearnerConfig, checkpoint: Path | None = None) -> None:
        """Where a run goes on, from what `checkpoint` holds."""
        self.how, self.cfg = how, cfg
        self.sums = None if checkpoint is None else load_file(checkpoint / _FILE)["sums"]
        self._seen: tuple[Tensor, dict[str, float]] | None = (
            None  # the sums of the step at hand, and how well it was foretold
        )

    def save(self, checkpoint: Path) -> None:
        """After a step. Raises OSError, SafetensorError."""
        assert self.sums is not None
        save_file({"sums": self.sums.cpu()}, checkpoint / _FILE)

    @torch.no_grad()
    def values(self, policy: PreTrainedModel, batch: CompletionBatch, rewards: Tensor) -> Tensor:
        """V (B, T) of the states that the policy draws tokens from, 0 outside the completions.

        rewards (B,) change nothing of it: they are what `learn` learns.
        """
        device, mask = batch.input_ids.device, batch.completion_mask
        nothing = self.how.nothing(policy.config.hidden_size, device)
        slope, constant = self.how.solved(nothing if self.sums is None else self.sums.to(device))
        found, seen = torch.zeros(mask.shape, device=device), nothing.clone()
        for rows in batch.micro_batches(torch.arange(len(batch), device=device), self.cfg.micro_batch_tokens):
            some = batch.rows(rows)
            row, token = some.completion_mask.nonzero(as_tuple=True)
            states = predicting_states(run_completions(policy, some), some, row, token).float()
            found[rows[row], token] = (states.double() @ slope + constant).float()
            seen += self.how.sums(states, rewards[rows][row].float())
        earned = rewards.float()[:, None].expand_as(found)[mask]
        error, variance = (earned - found[mask]).square().mean(), earned.var(correction=0)
        self._seen = seen, {"value_head/squared_error": float(error), "value_head/reward_variance": float(variance)}
        return found

    def learn(self) -> dict[str, float]:
        """What `values` has looked at. Returns how far values were from rewards, and these from their mean, over tokens."""
        assert self._seen is not None  # values are asked for first
        seen, metrics = self._seen
        self.sums = seen if self.sums is None else self.how.memory * self.sums.to(seen) + seen
        return metrics
