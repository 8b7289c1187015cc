"""Keys of a method that would change nothing are refused: whoever types one believes that it does something."""

import pytest

from oar.common.errors import ConfigError
from oar.learner.credit import Method
from tests.learner.on_ranks import config

GENERIC = "method.generic={members: 1, identity: 0.02}"


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["method=grpo", "method.control=shuffled"], "control must be none"),
        (["method=sdpo", "method.control=shuffled"], "control must be none"),
        (["method=oar_p", "method.control=even"], "control must be none"),
        (["method=entropy_mask", "method.control=even", "method.preserve_mass=true"], "control must be none"),
        (["method=entropy_mask", "method.times_surprisal=true"], "times_surprisal must be false"),
        (["method=oar_p", "method.preserve_mass=true"], "preserve_mass must be false"),
        (["method=token_baseline", "method.decoupled_rewards=true"], "decoupled_rewards must be false"),
        (["method=reward_head", GENERIC], "generic.identity must be 0"),
    ],
)
def test_a_key_without_effect_is_refused(overrides: list[str], key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^method\.{key} with \w+, where it changes nothing\.$"):
        Method.built(config(*overrides))


@pytest.mark.parametrize(
    "overrides",
    [
        ["method=oar_p", "method.control=shuffled", "method.times_surprisal=true", GENERIC],
        ["method=entropy_mask", "method.control=shuffled", "method.preserve_mass=true"],
        ["method=entropy_mask", "method.control=even"],
        ["method=oar_s_advantage", "method.control=even", "method.decoupled_rewards=true"],
    ],
)
def test_the_same_keys_where_they_have_one_are_not(overrides: list[str]) -> None:
    Method.built(config(*overrides))
