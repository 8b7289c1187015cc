"""Other people's trainers are given the methods and gatings of conf, and the page says which."""

import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from oar.common.errors import ConfigError
from oar.config import GatingConfig, build
from oar.integrations.methods import MISSING, estimator_named, gating_named
from tests.config.test_config import CONF, composed

PAGE = Path(__file__).parents[2] / "docs" / "YOUR_TRAINER.md"


@pytest.mark.filterwarnings("ignore:.*missing `_self_`")
def test_methods_and_gatings_are_those_of_conf() -> None:
    """Every method of conf/method with the same numbers, unless a sentence says what it needs; so with conf/gating."""
    knockout = OmegaConf.create({"counterfactual": {"name": "knockout", "draws": 1}})
    for name in names("method") - set(MISSING):
        method = OmegaConf.merge(knockout, composed(name=f"method/{name}")).method
        assert method.surrogate is None, name
        assert method.auxiliary is None, name
        assert method.continuations is None, name
        assert estimator_named(name, "knockout") == build("method.estimator", method.estimator), name
    assert set(MISSING) <= names("method")
    for name, missing in MISSING.items():
        with pytest.raises(
            ConfigError, match=f"{name} needs {re.escape(missing)}: train it with this repository's own"
        ):
            estimator_named(name, "pad")
    for name in names("gating"):
        gating = GatingConfig(
            **composed("gating.tau=0.3", "gating.beta=1.5", "gating.floor=0.2", name=f"gating/{name}").gating
        )
        assert gating_named(name, tau=0.3, beta=1.5, floor=0.2, threshold="quantile") == gating, name


def test_the_page_lists_which_methods_are_here() -> None:
    page = PAGE.read_text()
    rows = re.findall(r"^\| (.*`.+?) \| (.+?) \|", page, flags=re.MULTILINE)
    told = {name: not how.startswith("no:") for methods, how in rows for name in re.findall(r"`(\w+)`", methods)}
    del told["random_reward"]  # among the controls that are, it is not
    assert {name for name, here in told.items() if not here} == {
        name for name in MISSING if not name.startswith(("oracle_", "random_"))
    }
    for name, here in told.items():
        if here:
            estimator_named(name, "pad")


def names(group: str) -> set[str]:
    return {path.stem for path in (CONF / group).glob("*.yaml")}
