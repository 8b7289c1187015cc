"""No operation of a training step mixes devices: every method, and every option that changes which operations there are."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from oar.learner.distributed import ALONE
from oar.tasks.words import build_tokenizer
from tests.learner.on_ranks import config, learner_of
from tests.models import tiny_scorer
from tests.pretended_gpu import pretended_gpu
from tests.pretended_gpu.steps import METHODS, OF_SHEETS, SMALL, choices, in_many_forwards, starts, trained
from tests.pretended_gpu.sync_points import COMMAND, committed

OPTIONS = {
    "gating.threshold=absolute": ["method=entropy", "method.times_surprisal=true"],
    "model.lora={r: 4, alpha: 8, targets: [q_proj, up_proj]}": ["method=oar_gn", "counterfactual=knockout"],
    "learner.kl_coef=0.1": ["method=oar_p", "learner.ratio_level=sequence"],
    "learner.updates_per_rollout=2": [
        "learner.batch_size=8",
        "method=oar_g",
        "learner.sampler_correction_cap=2",
        "learner.overlong=mask",
    ],
    "learner.activation_checkpointing=true": ["method=oar_gn", "learner.aggregation=token_mean"],
    "learner.overlong=soft_penalty": ["method=oar_p_budget", "probe=as_joint", "learner.aggregation=constant"],
    "method.generic={members: 1, identity: 0.02}": ["method=oar_g"],
    "learner.max_refills=1": ["method=grpo", "rollout.max_staleness=1", "learner.sampler_correction_cap=2"],
}
# One of each kind; the others differ from these by a few lines and wait for make test-all.
KINDS = (
    "grpo",
    "oar_g",
    "oar_gn",
    "oar_p",
    "oar_p_routes",
    "oar_s",
    "random",
    "shear",
    "grail",
    "vineppo",
    "rlsd",
    "sdpo",
    "oracle_signed",
)
GROUPS = ("counterfactual", "probe", "gating")


@pytest.fixture(scope="module")
def by_words(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    return starts(tmp_path_factory.mktemp("pretended"))


@pytest.fixture
def start(by_words: dict[bool, Path]) -> Path:
    return by_words[False]


@pytest.mark.parametrize(
    "method", [name if name in KINDS else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_methods(method: str, by_words: dict[bool, Path]) -> None:
    """And the CPU waits no more often than docs/SYNC_POINTS.md says."""
    found = trained(by_words[method in OF_SHEETS], *in_many_forwards(method))
    waits, uploads = committed()[method]
    again = f"if that must be, run {COMMAND}; the lines: {found.waits.most_common()}"
    assert found.waits.total() <= waits, again
    assert found.uploads.total() <= uploads, again
    assert found.synchronised > 10  # at both ends of each stage


@pytest.mark.parametrize("method", ["grpo", "oar_p_routes"])
def test_the_numbers_are_those_of_the_cpu(method: str, start: Path) -> None:
    """What is pretended changes no arithmetic: it is the CPU's training step that was looked at."""
    cfg, found = config(*SMALL, f"method={method}"), []
    for place in (nullcontext(), pretended_gpu()):
        with place:
            found.append(learner_of(cfg, start, ALONE).training_step().metrics)
    assert found[1] == pytest.approx(found[0], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("option", OPTIONS)
def test_options(option: str, start: Path) -> None:
    trained(start, option, *OPTIONS[option])


@pytest.mark.parametrize("number", range(max(len(choices(group)) for group in GROUPS)))
def test_every_choice_of_these_groups(number: int, start: Path, tmp_path: Path) -> None:
    """The first of each together, then the second of each: what one group changes does not depend on another."""
    chosen = [f"{group}={choices(group)[number % len(choices(group))]}" for group in GROUPS]
    if "probe=reward_model" in chosen:
        tiny_scorer(vocab=len(build_tokenizer())).save_pretrained(tmp_path)
        build_tokenizer().save_pretrained(tmp_path)
        chosen.append(f"probe.path={tmp_path}")
    trained(start, "method=oar_p_routes", *chosen)
