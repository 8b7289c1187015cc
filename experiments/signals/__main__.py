"""Experiments on token signals that need no training runs of their own: `python -m experiments.signals experiment=NAME`.

Mask artefacts, proxy mismatch, outcomes without an answer span, error location (docs/METHOD.md §7.5 to §7.8) and the methods of
docs/METHODS.md, all of them on the completions of the oracle recall, drawn here where they are not there yet
(experiments/shared/subjects.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from omegaconf import DictConfig
from torch import Tensor

from experiments.shared.reward_models import how_good
from experiments.shared.signal_study import run_study
from experiments.shared.subjects import Plan, SubjectConfig
from experiments.signals.error_location import error_location
from experiments.signals.examined import NOWHERE, Examined
from experiments.signals.mask_artefacts import AGAIN, PAD, RESAMPLED, mask_artefacts
from experiments.signals.method_signals import method_signals
from experiments.signals.pictures import PICTURES
from experiments.signals.proxy_mismatch import proxy_mismatch
from oar.analysis.signals.examine import Subject, as_the_gate_sees_it, gated
from oar.command_line.entry import entry
from oar.common.errors import ConfigError
from oar.config import TrainConfig, validated
from oar.config.checks import one_of, require
from oar.model.load import load_tokenizer
from oar.tasks.words import token_roles

Study = Callable[..., pd.DataFrame]  # of `Examined`, pairs and seed the COLUMNS of `oar.analysis.signals.recall`


def _counterfactuals(signals: Mapping[str, TrainConfig]) -> dict[str, str]:
    """By signal what it changes a token to. Raises ConfigError for a signal that changes none, and for others than are compared:
    pad first, and resampled once.
    """
    kinds = {name: signal.method.estimator.get("counterfactual") for name, signal in signals.items()}
    for name, kind in kinds.items():
        if kind is None:
            raise ConfigError(f"shown must name signals that change tokens (method=oar_p), but {name!r} does not.")
    compared = [str(kind) for name, kind in kinds.items() if not name.endswith(AGAIN)]
    if compared[:1] != [PAD] or compared.count(RESAMPLED) != 1:
        raise ConfigError(
            f"shown must name a signal of counterfactual={PAD} first, and one of counterfactual={RESAMPLED}, whose changed "
            f"tokens are looked at, but has {', '.join(compared)}: change shown."
        )
    neutral_text(signals)
    return {name: str(kind) for name, kind in kinds.items()}


def neutral_text(signals: Mapping[str, TrainConfig]) -> str | None:
    """What counterfactual=text puts in a token's place. Raises ConfigError where signals name several texts."""
    texts = sorted({text for signal in signals.values() if (text := signal.counterfactual.text) is not None})
    if len(texts) > 1:
        raise ConfigError(f"shown must name signals of one counterfactual.text, but theirs are {', '.join(texts)}.")
    return texts[0] if texts else None


def _beside_exact(plan: Plan) -> Study:
    """Raises ConfigError where the first signal, which the others are held against, is not exact OAR-P."""
    first = next(iter(plan.signals))
    if plan.signals[first].method.name != "oar_p":
        raise ConfigError(
            f"shown must begin with exact OAR-P (method=oar_p), which the others are held against, but begins with {first!r}."
        )
    return method_signals


MEASURES: dict[str, Callable[[Plan], Study]] = {
    "mask_artefacts": lambda plan: partial(mask_artefacts, kinds=_counterfactuals(plan.signals)),
    "proxy_mismatch": lambda _: proxy_mismatch,
    "error_location": lambda _: error_location,
    "method_signals": _beside_exact,
    "open_outcomes": _beside_exact,
}


@dataclass
class SignalsConfig(SubjectConfig):
    """One experiment on signals; the keys are explained in conf/signals.yaml and conf/experiment."""

    study: str
    shown: list[str]
    scorer: str | None

    def __post_init__(self) -> None:
        for name in self.shown:
            self.check_signal("shown", name)
        self.signals = {name: self.signals[name] for name in self.shown}
        super().__post_init__()
        one_of("study", self.study, tuple(MEASURES))
        require(bool(self.shown), "shown", "signals, one at least", self.shown)
        stated = self.study != "open_outcomes" or bool(self.scorer)
        require(stated, "scorer", "the folder of a reward model (make reward-model)", self.scorer)


@entry
def main(config: DictConfig) -> None:
    """Validate everything, do what is missing, write the page."""
    cfg = validated(config, SignalsConfig)
    plan = Plan.of(cfg)
    study = MEASURES[cfg.study](plan)

    def measure(model: Path, subject: Subject, importance: dict[str, Tensor]) -> pd.DataFrame:
        examined = examined_signals(plan, model, subject, importance)
        return study(examined, pairs=cfg.pairs, seed=cfg.seed)

    gating, scorer = plan.settings.gating, {} if cfg.scorer is None else {"scorer": how_good(cfg.scorer)}
    run_study(
        cfg.study,
        plan,
        measure,
        Path(__file__).with_name(f"{cfg.study}.md.j2"),
        pictures=PICTURES[cfg.study],
        run={"gating": gating.name, "tau": gating.tau, "beta": gating.beta, **scorer},
    )


def examined_signals(plan: Plan, model: Path, subject: Subject, importance: Mapping[str, Tensor]) -> Examined:
    """The signals of one model beside what is true of its completions; `importance` (N, T) by signal, as estimators give it."""
    tokenizer, batch = load_tokenizer(model), subject.inputs.batch
    ids = [row[mask].tolist() for row, mask in zip(batch.completion_ids, batch.completion_mask, strict=True)]
    roles = [np.array(token_roles(each, tokenizer)) for each in ids]
    errors = subject.inputs.marks["error"].cpu().numpy()
    first_errors = [
        NOWHERE if right or not error.any() else str(of_one[error.argmax()])
        for right, error, of_one in zip(subject.truth.correct, errors, roles, strict=True)
    ]
    return Examined(
        subject.truth,
        [of_one[: marks.size] for of_one, marks in zip(roles, subject.truth.causal, strict=True)],
        first_errors,
        {name: as_the_gate_sees_it(subject, values, plan.signals[name]) for name, values in importance.items()},
        {name: gated(subject, values, plan.signals[name]) for name, values in importance.items()},
        replace(subject.inputs, neutral_id=subject.encode_neutral(neutral_text(plan.signals))),
    )


if __name__ == "__main__":
    main()
