"""What OAR's trainer in TRL is told: `OARGRPOConfig` is TRL's GRPOConfig with the settings of credit."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trl import GRPOConfig

from oar.common.errors import ConfigError
from oar.config import CounterfactualConfig, GatingConfig, ProbeConfig
from oar.config.checks import require
from oar.integrations.methods import estimator_named, gating_named
from oar.method.importance import CreditSignal, gives, reads_gold


@dataclass
class OARGRPOConfig(GRPOConfig):
    """What GRPOConfig holds, and how credit is assigned. The defaults are those of conf/; `beta` is still TRL's KL coefficient.

    Raises ConfigError where a name is not known or a number out of range.
    """

    method: str = field(
        default="oar_g",
        metadata={
            "help": "Which signal says what a token is worth: grpo, oar_p, oar_p_routes, oar_p_window, oar_p_budget, oar_g, "
            "oar_gn, oar_ga, oar_s, oar_s_routes, oar_s_gradient, oar_s_attention, oar_s_advantage, oar_s_outcome, grail, shear, "
            "entropy_mask, entropy_advantage, token_baseline, rlsd, "
            "or the controls entropy, random, position, shuffled, inverted."
        },
    )
    marker: str = field(
        default="\\boxed{",
        metadata={"help": "Text that announces the answer in a completion; what comes before reasons."},
    )
    gating: str = field(
        default="bilevel",
        metadata={"help": "From importance to weights: bilevel, boost_only, suppress_only, none or released_drift."},
    )
    gating_tau: float = field(default=0.4, metadata={"help": "Threshold level in [0, 1] (paper)."})
    gating_beta: float = field(default=2.0, metadata={"help": "Strength of the boost (paper)."})
    gating_floor: float = field(default=0.1, metadata={"help": "Smallest weight before rescaling."})
    gating_threshold: str = field(
        default="quantile",
        metadata={"help": "quantile: the threshold is the completion's tau-quantile; absolute: it is tau itself."},
    )
    probe: str = field(
        default="warmup",
        metadata={
            "help": "What stands for the outcome: lt_logits, as_mean, as_joint, warmup, one after the other, or reward_model."
        },
    )
    probe_path: str | None = field(
        default=None,
        metadata={"help": "Of reward_model: a folder with a reward model of one label and the policy's tokenizer."},
    )
    probe_warmup_steps: int = field(
        default=20, metadata={"help": "Batches of completions with lt_logits before as_mean, where probe is warmup."}
    )
    probe_conclude: str | None = field(
        default=None, metadata={"help": "Text that lt_logits puts behind the reasoning; by default the marker."}
    )
    counterfactual: str = field(
        default="pad",
        metadata={
            "help": "What OAR-P changes a token to: pad, text, mean_embedding, random_token, resampled or knockout."
        },
    )
    counterfactual_draws: int = field(
        default=1, metadata={"help": "Of random_token and resampled: importance is the mean over so many."}
    )
    counterfactual_text: str | None = field(
        default=None, metadata={"help": "Of text: one token of the model's vocabulary in words, such as ' the'."}
    )
    times_surprisal: bool = field(
        default=False, metadata={"help": "Whether importance is multiplied by -logprob of its token before gating."}
    )
    answer_column: str = field(
        default="answer",
        metadata={
            "help": "Column of the data set with the right answer, as it would stand behind the marker: of oar_s*."
        },
    )
    solution_column: str = field(
        default="solution", metadata={"help": "Column of the data set with a solution to show to the teacher: of rlsd."}
    )

    def __post_init__(self) -> None:
        require(bool(self.marker), "marker", "the text that announces an answer", self.marker)
        CounterfactualConfig(self.counterfactual, self.counterfactual_draws, self.counterfactual_text)
        estimator = self.make_estimator()
        self.gating_settings()
        require(
            self.probe != "reference",
            "probe",
            "one that needs no reference response, which TRL has none of",
            self.probe,
        )
        needs_answer = self.probe_settings().needs_answer
        require(
            needs_answer or not reads_gold(estimator),
            "probe",
            f"one that reads the answer with {self.method}, which reads the right answer in its place",
            self.probe,
        )
        require(
            not self.times_surprisal or gives(estimator) == "importance",
            "times_surprisal",
            f"false with {self.method}, where it changes nothing",
            self.times_surprisal,
        )
        super().__post_init__()

    def make_estimator(self) -> CreditSignal:
        """What `method` and `counterfactual` name."""
        return estimator_named(self.method, self.counterfactual, self.counterfactual_draws)

    def probe_settings(self) -> ProbeConfig:
        """What `probe` names."""
        return ProbeConfig(self.probe, self.probe_warmup_steps, self.probe_conclude, self.probe_path)

    def gating_settings(self) -> GatingConfig:
        """What `gating` names, with the numbers given here."""
        return gating_named(
            self.gating,
            tau=self.gating_tau,
            beta=self.gating_beta,
            floor=self.gating_floor,
            threshold=self.gating_threshold,
        )


def refuse_unsupported(given: Mapping[str, Any]) -> None:
    """Raises ConfigError for arguments of GRPOTrainer with which token weights would be wrong, or are not known to be right."""
    args = given.get("args")
    if not isinstance(args, OARGRPOConfig):
        raise ConfigError(
            f"args must be an OARGRPOConfig, but is {type(args).__name__}: it says how credit is assigned."
        )
    for name in ("tools", "environment_factory"):
        if given.get(name):
            raise ConfigError(
                f"{name} must not be given: credit is for completions whose tokens the policy wrote itself."
            )
    if args.deepspeed or args.fsdp:
        raise ConfigError(
            "OARGRPOTrainer must run without DeepSpeed and FSDP, which spread the weights that credit reads: start it with "
            "`accelerate launch --multi_gpu` (DDP), or train with learner.ranks of experiments.train (FSDP2)."
        )
    if args.use_liger_kernel:
        raise ConfigError("use_liger_kernel must be false: it replaces layers that counterfactuals run through.")
    if args.importance_sampling_level == "sequence" and args.method != "grpo":
        raise ConfigError(
            "importance_sampling_level must be 'token' for token weights: under one ratio for a whole completion, weights of "
            "mean 1 change nothing."
        )
