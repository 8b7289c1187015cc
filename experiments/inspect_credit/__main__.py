"""Which tokens got the credit? One page of one training step: `python -m experiments.inspect_credit run=FOLDER step=N`.

The completions are those that the run kept. What it logged of them is shown as it is; other signals are computed anew with
the run's nearest checkpoint, and with the weights of `against`. Without a checkpoint the page shows what was logged.
"""

from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import torch
from omegaconf import DictConfig

from experiments.inspect_credit.page import InspectorPage, inspector_html
from experiments.inspect_credit.signals import logged_signals, model_signals
from oar.analysis.reports.methods import label
from oar.command_line.entry import entry
from oar.common.errors import ConfigError
from oar.common.files import write_text_atomic
from oar.common.provenance import ROOT, collect_provenance, git_state
from oar.config import TrainConfig, validated
from oar.config.checks import Positive
from oar.config.composed import composed_run
from oar.config.saved import saved_settings
from oar.launch.supervisor import locked
from oar.learner.checkpoint import CHECKPOINTS, checkpoint_step, nearest_checkpoint
from oar.learner.run import make_tracker
from oar.learner.samples import Sample, read_samples
from oar.model.load import load_policy, load_tokenizer
from oar.tasks.task import Task


@dataclass
class InspectCreditConfig:
    """See conf/inspect_credit.yaml."""

    run: str | None
    step: int | None
    checkpoint: str | None
    against: str | None
    signals: dict[str, list[str]]
    allow_targets: list[str]
    threads: Positive
    wandb: bool
    output_dir: str | None

    def __post_init__(self) -> None:
        if not self.run or not (Path(self.run) / "config.yaml").is_file():
            raise ConfigError(f"run must be the folder of a training run, with its config.yaml, but is {self.run}.")


@entry
def main(config: DictConfig) -> None:
    """Read the run, compute what is missing, write the page."""
    cfg, started, git = validated(config, InspectCreditConfig), datetime.now(UTC), git_state(ROOT)
    run = Path(str(cfg.run))
    settings = saved_settings(run / "config.yaml", cfg.allow_targets)
    torch.set_num_threads(cfg.threads)
    step, page = make_page(cfg, run, settings)
    made = collect_provenance(asdict(cfg), started=started, git=git)
    page = replace(page, provenance={**made, "run": asdict(settings)})
    path = (run / "inspector" if cfg.output_dir is None else Path(cfg.output_dir)) / f"step_{step:06d}.html"
    write_text_atomic(path, inspector_html(page))
    print(f"{path}: {len(page.samples)} completions, {len(page.signals)} signals")
    if cfg.wandb and settings.tracking.mode != "disabled":
        with locked(run):  # two processes may not write one W&B run
            tracker = make_tracker(settings, run)
            tracker.log_page(step, f"inspector-step_{step:06d}", path)
            tracker.finish()


def make_page(cfg: InspectCreditConfig, run: Path, settings: TrainConfig) -> tuple[int, InspectorPage]:
    """The training step that is shown, and the page without its provenance."""
    methods = {name: composed_run(overrides).method for name, overrides in cfg.signals.items()}
    methods[settings.method.name] = settings.method
    step, samples = read_samples(run, cfg.step)
    notes: list[str] = []
    signals, folders = logged_signals(samples, settings, notes), weights(cfg, run, step)
    for folder in folders:
        source = name_of(folder, run, settings)
        notes.append(f"{source}: signals computed anew with {origin(folder, drawn_after(settings, step))}.")
        task = Task.named(load_tokenizer(folder), settings.model.marker, settings.template)
        model = load_policy(folder, "float32")  # importance is too coarse in less
        signals += model_signals(model, task, samples, settings, methods, step=step, source=source, notes=notes)
    if not folders:
        notes.append("The run keeps no checkpoint, so the page shows what it logged; checkpoint=FOLDER computes more.")
    title = f"Credit inspector: {label(settings.method.name)}, model {settings.model.name}, step {step}"
    return step, InspectorPage(title, facts(settings, step, samples), notes, samples, signals, {})


def weights(cfg: InspectCreditConfig, run: Path, step: int) -> list[Path]:
    """The folders of the weights to compute signals with. Raises ConfigError where one that was asked for is not there."""
    own = nearest_checkpoint(run / CHECKPOINTS, step - 1) if cfg.checkpoint is None else Path(cfg.checkpoint)
    other = (
        None
        if cfg.against is None
        else nearest_checkpoint(Path(cfg.against) / CHECKPOINTS, step - 1) or Path(cfg.against)
    )
    found = [folder for folder in (own, other) if folder is not None]
    for folder in found:
        if not (folder / "config.json").is_file():
            raise ConfigError(
                f"checkpoint and against must be folders of weights, or of a run that keeps some, but {folder} is not."
            )
    return found


def name_of(folder: Path, run: Path, settings: TrainConfig) -> str:
    """What signals computed with these weights are told apart by, in words."""
    folder = folder.resolve()
    if settings.model.teach_dir and folder.parent == Path(settings.model.teach_dir).resolve():
        return "the taught base model"
    if folder.parent.name != CHECKPOINTS:
        return folder.name
    owner, updates = folder.parents[1].name, f"after {checkpoint_step(folder)} updates"
    return updates if owner == run.resolve().name else f"{owner}, {updates}"


def drawn_after(settings: TrainConfig, step: int) -> str:
    """After how many updates the completions of a training step were drawn; drawn ahead, mostly one update earlier."""
    return f"{step - 1}" if settings.rollout.max_staleness == 0 or step == 1 else f"{step - 2} or {step - 1}"


def origin(folder: Path, drawn: str) -> str:
    """Which weights these are, and how far from those that drew the completions, after `drawn` updates."""
    if folder.parent.name != CHECKPOINTS:
        return f"the weights in {folder}"
    return f"the weights after {checkpoint_step(folder)} updates; the completions were drawn after {drawn}"


def facts(settings: TrainConfig, step: int, samples: list[Sample]) -> dict[str, str]:
    """What the page is of."""
    gating, right = settings.gating, sum(sample.correct for sample in samples)
    return {
        "run": f"profile {settings.profile}, {label(settings.method.name)}, model {settings.model.name}, seed {settings.seed}",
        "step": f"{step}; completions drawn by the policy after {drawn_after(settings, step)} updates",
        "completions": f"{len(samples)}, {right} of them right",
        "gate": f"{gating.name}, tau {gating.tau:g}, beta {gating.beta:g}, floor {gating.floor:g}, threshold {gating.threshold}",
        "probe": f"{settings.probe.name}, warm-up {settings.probe.warmup_steps} steps",
    }


if __name__ == "__main__":
    main()
