"""Teaches a pretrained model the form of a task: supervised, on some hundred demonstrations; kept by the hash of what made it."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from oar.common.errors import ConfigError
from oar.common.files import whole_folder
from oar.common.provenance import config_hash, files_hash
from oar.config import LoraConfig
from oar.config.checks import require
from oar.model.load import load_policy, load_tokenizer, weight_files
from oar.model.lora import add_adapter
from oar.model.parameters import full_weights
from oar.tasks.data.demonstrations import Demonstrations
from oar.tasks.embedded.base_model import RECORD, checked
from oar.tasks.embedded.teaching import backward, one_thread
from oar.tasks.template import Template, load_template

SOURCE_VERSION = 1  # raise it whenever what is taught, or how, changes what comes out


@dataclass(frozen=True)
class WarmStart:
    """All that a warm start depends on. `lora`: r, alpha and targets of an adapter, which is merged; None: all weights learn.

    `start` is a Hugging Face folder. Teaching ends after `steps`, or with the first step that ends after `max_minutes`.
    """

    start: str
    template: str
    demonstrations: Demonstrations
    seed: int = 0
    steps: int = 40
    batch_size: int = 16
    micro_batch_size: int = 4
    lr: float = 1e-4
    max_grad_norm: float = 1.0
    max_minutes: float = 30.0
    lora: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "micro_batch_size"):
            require(getattr(self, name) >= 1, f"model.teach.{name}", "1 or more", getattr(self, name))
        for name in ("lr", "max_grad_norm", "max_minutes"):
            require(getattr(self, name) > 0, f"model.teach.{name}", "above 0", getattr(self, name))
        load_template(self.template)

    def adapter(self) -> LoraConfig | None:
        """As the model is given it."""
        return None if self.lora is None else LoraConfig(**self.lora)


def ensure_warm_start(config: WarmStart, root: Path, progress: Callable[[str], None]) -> Path:
    """The folder of the model that `config` makes, under `root`; taught first where it is not there yet.

    Raises ConfigError where there is no model to start from, OarError when the folder cannot be written.
    """
    start = Path(config.start)
    if not (start / "config.json").is_file():
        raise ConfigError(
            f"model.teach.start must be a folder with a config.json, but {start} is not: `make smollm2` brings artifacts/smollm2."
        )
    made_of = {
        "source": SOURCE_VERSION,
        **{key: value for key, value in asdict(config).items() if key != "start"},
        "weights": files_hash(weight_files(start)),
        "origin": dict(config.demonstrations.origin()),
    }
    folder = root / config_hash(made_of)[:12]
    if not folder.exists():
        progress(f"teaching {start} from demonstrations: {folder}")
        with whole_folder(folder) as unfinished:
            tokenizer = load_tokenizer(start)
            model, reached = teach(config, tokenizer, progress)
            weights = {name: weight.cpu().contiguous() for name, weight in full_weights(model)}
            model.save_pretrained(unfinished, state_dict=weights)
            tokenizer.save_pretrained(unfinished)
            record = {"start": str(start), **made_of, **reached}
            (unfinished / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    return checked(folder)


def teach(
    config: WarmStart, tokenizer: PreTrainedTokenizerBase, progress: Callable[[str], None]
) -> tuple[PreTrainedModel, dict[str, float]]:
    """The model, and how many steps and seconds it took to which loss (nats per token of the last batch)."""
    started, template = time.monotonic(), load_template(config.template)
    model, adapter = load_policy(Path(config.start), "float32"), config.adapter()
    if adapter is not None:
        add_adapter(model, adapter, config.seed)
    learned = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=config.lr, weight_decay=0.0)
    with one_thread():
        for step in range(1, config.steps + 1):
            pairs = examples(config, template, tokenizer, step - 1)
            loss = backward(model, pairs, template.stop_ids(tokenizer)[0], config.micro_batch_size)
            torch.nn.utils.clip_grad_norm_(learned, config.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            seconds = time.monotonic() - started
            progress(f"step {step}/{config.steps}: loss {loss:.3f}, {seconds:.0f} s")
            if seconds > 60 * config.max_minutes:
                progress(f"model.teach.max_minutes={config.max_minutes:g} is over")
                break
    return model, {"taught_steps": step, "seconds": round(seconds, 1), "loss": round(loss, 4)}


def examples(
    config: WarmStart, template: Template, tokenizer: PreTrainedTokenizerBase, step: int
) -> list[tuple[list[int], list[int]]]:
    """The batch of step `step` (from 0): ids of prompts and of completions with their end token, shortest first.

    A completion begins with a blank, as a model goes on after `Answer:`.
    """
    pairs = []
    for index in range(step * config.batch_size, (step + 1) * config.batch_size):
        question, text = config.demonstrations.pair(config.seed, index)
        completion = tokenizer(f" {text}", add_special_tokens=False).input_ids
        pairs.append((template.encode(question, tokenizer), [*completion, tokenizer.eos_token_id]))
    return sorted(pairs, key=lambda pair: len(pair[0]) + len(pair[1]))
