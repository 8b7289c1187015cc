"""Methods and kinds of gating by name, for trainers that Hydra does not configure; the values are those of conf/."""

from dataclasses import replace

from oar.common.errors import ConfigError
from oar.config import GatingConfig, build
from oar.config.build import TARGET
from oar.config.checks import one_of
from oar.method.importance import (
    CreditSignal,
    EntropyBonusWeights,
    EntropyImportance,
    GradientImportance,
    GradientNormImportance,
    GrailWeights,
    InvertedImportance,
    PerturbationImportance,
    PositionImportance,
    RandomImportance,
    ShuffledImportance,
    UniformImportance,
    gives,
    needs_batch,
)

# Whether tokens below the threshold are suppressed, and those at or above it boosted (docs/METHOD.md §5).
_GATINGS = {
    "bilevel": (True, True),
    "boost_only": (False, True),
    "suppress_only": (True, False),
    "none": (False, False),
    "released_drift": (True, True),
}


def estimator_named(method: str, counterfactual: str) -> CreditSignal:
    """The estimator of conf/method/<method>.yaml; `counterfactual` is what OAR-P and what is made from it put in a token's place.

    A name with a dot is a class of yours, `mypkg.Mine`, which is made without arguments (docs/OWN_SIGNAL.md). Those that need
    the task's marks or its right answers in tokens are not here, nor is the control of random rewards: rewards are the
    trainer's. Raises ConfigError for any other name.
    """
    if "." in method:
        own: CreditSignal = build("method", {TARGET: method}, [method.rpartition(".")[0]])
        if gives(own) == "advantages":
            raise ConfigError(
                f"method must give importance or weights, but {method} gives signed token advantages, whose groups without a "
                "difference in reward this adapter does not have: train it with this repository's own learner."
            )
        if needs_batch(own):
            raise ConfigError(
                f"method must look at each completion alone, but {method} compares completions, which this adapter credits some "
                "at a time: train it with this repository's own learner."
            )
        return own
    oar_p = PerturbationImportance(counterfactual)
    estimators: dict[str, CreditSignal] = {
        "grpo": UniformImportance(),
        "oar_p": oar_p,
        "oar_p_routes": replace(oar_p, window=0, routes=4),
        "oar_p_window": replace(oar_p, window=8),
        "oar_p_budget": replace(oar_p, budget=16),
        "oar_g": GradientImportance(),
        "oar_gn": GradientNormImportance(),
        "grail": GrailWeights(),
        "entropy_advantage": EntropyBonusWeights(),
        "entropy": EntropyImportance(),
        "random": RandomImportance(),
        "position": PositionImportance(),
        "shuffled": ShuffledImportance(oar_p),
        "inverted": InvertedImportance(oar_p),
    }
    one_of("method", method, tuple(estimators))
    return estimators[method]


def gating_named(gating: str, *, tau: float, beta: float, floor: float, threshold: str) -> GatingConfig:
    """The gating of conf/gating/<gating>.yaml with these numbers. Raises ConfigError for another name or number."""
    one_of("gating", gating, tuple(_GATINGS))
    suppress, boost = _GATINGS[gating]
    threshold = "released_drift" if gating == "released_drift" else threshold
    return GatingConfig(gating, suppress=suppress, boost=boost, tau=tau, beta=beta, floor=floor, threshold=threshold)
