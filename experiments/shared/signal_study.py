"""A study of token signals from its plan to its page: every signal on every model's completions, and what is made of them."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import torch
from hydra.core.hydra_config import HydraConfig
from torch import Tensor

from experiments.shared.subjects import Plan, draw_all, kept_importance, load_subject
from oar.analysis.reports.signals import Pictures, write_signals
from oar.analysis.signals.examine import Subject
from oar.common.progress import progress_bars, stage
from oar.common.provenance import ROOT, collect_provenance, git_state

Measure = Callable[[Path, Subject, dict[str, Tensor]], pd.DataFrame]
"""From a model's folder, its completions, and by signal what the estimator says of them, (N, T)."""


def run_study(
    name: str,
    plan: Plan,
    measure: Measure,
    template: Path,
    *,
    pictures: Pictures,
    run: Mapping[str, object],
) -> None:
    """Do what is missing, then write the page of `name` with all that `measure` finds; the rest as `write_signals`.

    run: what the template names beside `plan.description()`.
    """
    started, git = datetime.now(UTC), git_state(ROOT)
    cfg, folder = plan.cfg, Path(HydraConfig.get().runtime.output_dir)
    tables, facts = [], {}
    with progress_bars() as progress:
        drawn = draw_all(plan, progress)
        torch.set_num_threads(cfg.threads)
        for model, (weights, completions) in drawn.items():
            subject, importance = load_subject(plan, weights, completions), {}
            with stage(progress, f"{model}: {len(plan.signals)} signals", total=len(plan.signals)) as advance:
                for done, (signal, settings) in enumerate(plan.signals.items()):
                    importance[signal] = kept_importance(subject, settings, completions)
                    advance(done + 1)
            with stage(progress, f"{model}: {name.replace('_', ' ')}"):
                table = measure(weights, subject, importance)
            table.insert(0, "model", model)
            tables.append(table)
            facts[model] = {"drawn": subject.drawn, **subject.truth.facts()}
    provenance = collect_provenance(asdict(cfg), started=started, git=git) | {"training": plan.trained_here()}
    write_signals(
        name,
        template,
        pd.concat(tables, ignore_index=True),
        facts,
        folder,
        pictures=pictures,
        run={**plan.description(), **run},
        signals=cfg.signals,
        provenance=provenance,
    )
    print(f"written to {folder}: {', '.join([f'{name}.csv', f'{name}.md', *pictures])}, provenance.json")
