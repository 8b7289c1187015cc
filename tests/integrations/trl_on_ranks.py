"""One process of a run with OAR's trainer in TRL, started by torchrun: `-m tests.integrations.trl_on_ranks FOLDER`."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.integrations.completions import trainer

RUNS: dict[str, dict[str, Any]] = {
    "grpo": {"method": "grpo"},
    "oar_g": {"method": "oar_g"},  # draws noise for each completion
    "oar_p": {"method": "oar_p", "probe": "as_mean"},
    "shuffled": {"method": "shuffled"},
    "accumulated": {"method": "oar_gn", "per_device_train_batch_size": 1},
}


def train(name: str, folder: Path, processes: int) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """Two updates of eight completions each, however many processes share them: log and weights."""
    settings = {"per_device_train_batch_size": 2, **RUNS[name]}
    accumulated = 8 // settings["per_device_train_batch_size"] // processes
    made = trainer(folder, max_steps=2, gradient_accumulation_steps=accumulated, learning_rate=1e-3, **settings)
    made.train()
    log = [entry for entry in made.state.log_history if "loss" in entry]
    return log, {name: weight.detach().clone() for name, weight in made.model.named_parameters()}


def main(folder: Path) -> None:
    """All runs; the first process writes what came of them."""
    torch.set_num_threads(1)
    for name in RUNS:
        log, weights = train(name, folder / name, 2)
        if torch.distributed.get_rank() == 0:
            (folder / f"{name}.json").write_text(json.dumps(log))
            save_file(weights, folder / f"{name}.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
