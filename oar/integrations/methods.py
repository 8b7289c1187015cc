"""Methods and kinds of gating by name, for trainers that Hydra does not configure; the values are those of conf/."""

from dataclasses import replace

from oar.common.errors import ConfigError
from oar.config import GatingConfig, build
from oar.config.build import TARGET
from oar.config.checks import one_of
from oar.integrations.columns import shown_column
from oar.method.importance import (
    AttentionGradientDrop,
    AttentionGradientImportance,
    CounterfactualDrop,
    CreditSignal,
    EntropyBonusWeights,
    EntropyImportance,
    GradientDrop,
    GradientImportance,
    GradientNormImportance,
    GrailWeights,
    HighEntropyWeights,
    InvertedImportance,
    PerturbationImportance,
    PositionImportance,
    RandomImportance,
    SelfDistilledWeights,
    ShearWeights,
    ShuffledImportance,
    SignedAdvantages,
    SignMatchedImportance,
    TokenBaseline,
    UniformImportance,
    needs_continuations,
)

# Whether tokens below the threshold are suppressed, and those at or above it boosted (docs/METHOD.md §5).
_GATINGS = {
    "bilevel": (True, True),
    "boost_only": (False, True),
    "suppress_only": (True, False),
    "none": (False, False),
    "released_drift": (True, True),
}


# What a method needs that no TRL trainer gives.
_CONTINUATIONS = "continuations of completions, which the learner's own engine draws"
_LOSS = "a loss of its own for each token, which TRL's loss does not take"
_OBJECTIVE = "other ratios or advantages within the clipped objective, which is TRL's"
_MARKS = "the task's own marks of its tokens"
MISSING = {
    "vineppo": _CONTINUATIONS,
    "spo": _CONTINUATIONS,
    "spo_tree": "completions that are a tree, which the learner's own engine draws",
    "prime": "a reward model that learns beside the policy",
    "reward_head": "a reward head that learns beside the policy",
    "value_head": "a value head that learns beside the policy",
    "serl": f"{_MARKS} and its feedback",
    "sdpg": _LOSS,
    "sdpo": _LOSS,
    "mig": _LOSS,
    "mig_steps": _LOSS,
    "crpo": _LOSS,
    "grpo_lambda": _OBJECTIVE,
    "fipo": _OBJECTIVE,
    "random_reward": "rewards drawn by chance: give TRL a reward function that draws them",
    **{f"oracle_{name}": _MARKS for name in ("causal", "error", "written", "signed", "sign_matched", "unsigned")},
}


def estimator_named(method: str, counterfactual: str, draws: int = 1) -> CreditSignal:
    """The estimator of conf/method/<method>.yaml; `counterfactual` is what OAR-P and what is made from it put in a token's place.

    draws: of a random counterfactual. A name with a dot is a class of yours, `mypkg.Mine`, which is made without arguments
    (docs/OWN_SIGNAL.md). Raises ConfigError for a method that needs what TRL does not give (MISSING), and for any other name.
    """
    if "." in method:
        own: CreditSignal = build("method", {TARGET: method}, [method.rpartition(".")[0]])
        _refuse(method, _missing(own))
        return own
    oar_p = PerturbationImportance(counterfactual, draws)
    routes, drop = replace(oar_p, window=0, routes=4), CounterfactualDrop(oar_p)
    estimators: dict[str, CreditSignal] = {
        "grpo": UniformImportance(),
        "oar_p": oar_p,
        "oar_p_routes": routes,
        "oar_p_window": replace(oar_p, window=8),
        "oar_p_budget": replace(oar_p, budget=16),
        "oar_g": GradientImportance(),
        "oar_gn": GradientNormImportance(),
        "oar_ga": AttentionGradientImportance(),
        "oar_s": SignMatchedImportance(drop),
        "oar_s_routes": SignMatchedImportance(CounterfactualDrop(routes)),
        "oar_s_gradient": SignMatchedImportance(GradientDrop()),
        "oar_s_attention": SignMatchedImportance(AttentionGradientDrop()),
        "oar_s_advantage": SignedAdvantages(drop),
        "oar_s_outcome": SignedAdvantages(replace(drop, bounded=True), outcome=1.0),
        "grail": GrailWeights(),
        "shear": ShearWeights(),
        "entropy_mask": HighEntropyWeights(),
        "entropy_advantage": EntropyBonusWeights(),
        "token_baseline": TokenBaseline(),
        "rlsd": SelfDistilledWeights(),
        "entropy": EntropyImportance(),
        "random": RandomImportance(),
        "position": PositionImportance(),
        "shuffled": ShuffledImportance(oar_p),
        "inverted": InvertedImportance(oar_p),
    }
    _refuse(method, MISSING.get(method))
    one_of("method", method, tuple(estimators))
    return estimators[method]


def _missing(own: CreditSignal) -> str | None:
    """What TRL does not give of what a class of somebody else's says that it needs."""
    if needs_continuations(own):
        return _CONTINUATIONS
    if getattr(own, "learned", None) is not None:
        return "a model that learns beside the policy"
    return "a verifier's verdicts" if shown_column(own) not in (None, "answer", "solution") else None


def _refuse(method: str, missing: str | None) -> None:
    if missing is not None:
        raise ConfigError(
            f"method must need no more than TRL gives, but {method} needs {missing}: train it with this repository's own learner."
        )


def gating_named(gating: str, *, tau: float, beta: float, floor: float, threshold: str) -> GatingConfig:
    """The gating of conf/gating/<gating>.yaml with these numbers. Raises ConfigError for another name or number."""
    one_of("gating", gating, tuple(_GATINGS))
    suppress, boost = _GATINGS[gating]
    threshold = "released_drift" if gating == "released_drift" else threshold
    return GatingConfig(gating, suppress=suppress, boost=boost, tau=tau, beta=beta, floor=floor, threshold=threshold)
