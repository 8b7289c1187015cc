"""The model that a run starts from: a folder, or one that is taught on this machine first."""

from collections.abc import Callable
from pathlib import Path

from oar.common.errors import ConfigError
from oar.config import ModelConfig, build
from oar.tasks.embedded.base_model import ensure_base_model
from oar.tasks.warm_start import WarmStart, ensure_warm_start


def model_folder(cfg: ModelConfig, progress: Callable[[str], None]) -> Path:
    """The folder of the starting model; taught first where `cfg.teach` describes one that is not there yet."""
    if cfg.path is None:
        teaching, kept = build("model.teach", cfg.teach), Path(str(cfg.teach_dir))
        ensure = ensure_warm_start if isinstance(teaching, WarmStart) else ensure_base_model
        return ensure(teaching, kept, progress)
    refuse_missing_model(cfg)
    return Path(cfg.path)


def refuse_missing_model(cfg: ModelConfig) -> None:
    """Raises ConfigError where `cfg.path` names no model's folder."""
    if cfg.path is not None and not (Path(cfg.path) / "config.json").is_file():
        mend = "change model.path" if cfg.teach else f"conf/model/{cfg.name}.yaml has the command that brings it"
        raise ConfigError(f"model.path must be a folder with a config.json, but {cfg.path} is not: {mend}.")
