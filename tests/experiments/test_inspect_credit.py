"""What the inspector is asked for: refused in one sentence where it cannot be, and shown in part where a part is missing."""

from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from experiments.inspect_credit.__main__ import InspectCreditConfig, make_page, name_of, origin, weights
from experiments.inspect_credit.page import inspector_html
from experiments.inspect_credit.signals import LOGGED
from oar.common.errors import ConfigError
from oar.config import validated
from oar.model.load import load_tokenizer
from tests.analysis.test_examine import RIGHT, WRONG, model, task
from tests.config.test_config import composed
from tests.experiments.test_inspect_signals import STEP, kept, settings


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with two completions of a step, and no checkpoint."""
    folder = tmp_path / "a-run"
    kept(folder, settings(), RIGHT, WRONG)
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.structured(settings())))
    return folder


def config(*overrides: str) -> InspectCreditConfig:
    """conf/inspect_credit without further methods: those need Hydra."""
    return replace(validated(composed(*overrides, name="inspect_credit"), InspectCreditConfig), signals={})


def weights_in(folder: Path) -> Path:
    model().save_pretrained(folder)
    task().tokenizer.save_pretrained(folder)
    return folder


def test_without_a_checkpoint_the_page_shows_what_was_logged(run: Path) -> None:
    step, page = make_page(config(f"run={run}"), run, settings())
    assert step == STEP
    assert {signal.source for signal in page.signals} == {LOGGED}
    assert "keeps no checkpoint" in page.notes[0]
    assert "Credit inspector: OAR-G, model embedded, step 7" in inspector_html(page)


def test_completions_that_were_drawn_ahead_are_of_older_weights(run: Path) -> None:
    ahead = settings("rollout.max_staleness=1", "learner.sampler_correction_cap=2")
    said = [make_page(config(f"run={run}"), run, own)[1].facts["step"] for own in (settings(), ahead)]
    assert said == [
        "7; completions drawn by the policy after 6 updates",
        "7; completions drawn by the policy after 5 or 6 updates",
    ]


def test_a_checkpoint_and_other_weights_stand_side_by_side(run: Path, tmp_path: Path) -> None:
    own = weights_in(run / "checkpoints" / "step_000005")
    other = weights_in(tmp_path / "another" / "checkpoints" / "step_000009")
    cfg = config(f"run={run}", f"against={tmp_path / 'another'}")
    _, page = make_page(cfg, run, settings())
    assert weights(cfg, run, STEP) == [own, other]
    sources = list(dict.fromkeys(signal.source for signal in page.signals))
    assert sources == [LOGGED, "after 5 updates", "another, after 9 updates"]
    assert "after 5 updates; the completions were drawn after 6" in page.notes[0]
    assert load_tokenizer(own).get_vocab() == task().tokenizer.get_vocab()
    base = weights_in(tmp_path / "base")
    assert weights(config(f"run={run}", f"checkpoint={base}"), run, STEP) == [base]
    assert (name_of(base, run, settings()), origin(base, "6")) == ("base", f"the weights in {base}")
    taught = settings()
    taught.model.teach_dir = str(tmp_path)
    assert name_of(base, run, taught) == "the taught base model"


def test_what_cannot_work_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run must be the folder of a training run"):
        config()
    with pytest.raises(ConfigError, match="run must be the folder of a training run"):
        config(f"run={tmp_path}")
    with pytest.raises(ConfigError, match="threads must be 1 or more"):
        config(f"run={run}", "threads=0")
    for key in ("checkpoint", "against"):
        with pytest.raises(ConfigError, match="checkpoint and against must be folders of weights"):
            weights(config(f"run={run}", f"{key}={tmp_path}"), run, STEP)
