"""Teach the embedded base model, or find it taught: `python -m experiments.base_model model.teach.seed=1`."""

import json
from dataclasses import dataclass

from omegaconf import DictConfig

from oar.command_line.entry import entry
from oar.config import DataConfig, ModelConfig, validated
from oar.config.checks import require
from oar.launch.start_model import model_folder
from oar.tasks.embedded.base_model import RECORD


@dataclass
class BaseModelConfig:
    """What this entry point needs; `data` where the model's teaching names something of it."""

    model: ModelConfig
    data: DataConfig

    def __post_init__(self) -> None:
        require(self.model.path is None, "model.path", "null here, where a model is taught", self.model.path)


@entry
def main(config: DictConfig) -> None:
    """Print the folder and what the model can do."""
    folder = model_folder(validated(config, BaseModelConfig).model, print)
    record = json.loads((folder / RECORD).read_text())
    if "loss" in record:
        print(
            f"{folder}\ntaught in {record['taught_steps']} steps and {record['seconds']:.0f} s, loss {record['loss']:.3f}"
        )
        return
    sets = ", ".join(f"{name} {share:.1%}" for name, share in record["accuracy"].items())
    print(f"{folder}\ntaught in {record['steps']} steps and {record['seconds']:.0f} s")
    print(f"temperature 1, tuning split: {sets}; mean {record['mean_accuracy']:.1%}")


if __name__ == "__main__":
    main()
