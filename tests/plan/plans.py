"""What tests of a plan share: sizes, a model of them, what conf/plan composes, and a plan."""

from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from transformers import Qwen2Config, Qwen2ForCausalLM

from oar.config import TrainConfig, build, validated
from oar.method.importance import UniformImportance
from oar.plan import Architecture, Assumptions, plan_run

ROOT = Path(__file__).parents[2]
PLAN_KEYS = ("json", "methods", "architectures", "problems", "assume")
GRPO = UniformImportance()
SMALL = Architecture(2, 64, 4, 2, 160, 96, tied=False, context=256)


def random_model(sizes):
    return Qwen2ForCausalLM(Qwen2Config(**sizes.config())).eval()


def composed(*overrides):
    """What conf/plan composes: a run's settings, the assumptions, all of it."""
    with initialize_config_dir(str(ROOT / "conf"), version_base=None):
        config = compose("plan", list(overrides))
        OmegaConf.resolve(config)
        run = OmegaConf.masked_copy(config, [key for key in config if key not in PLAN_KEYS])
        run.model.path = "folder"
        return validated(run, TrainConfig), Assumptions(**config.assume), config


def planned(*overrides):
    """The plan of the paper's profile, of its own method alone."""
    cfg, assume, config = composed("profile=paper", *overrides)
    model = Architecture(**config.architectures[config.model.name])
    estimators = {cfg.method.name: build("it", cfg.method.estimator)}
    return plan_run(cfg, model, assume, estimators, config.problems)
