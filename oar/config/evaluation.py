"""The group evaluation: how accuracy is measured."""

from dataclasses import dataclass, field

from oar.config.checks import require


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw completions: `n` per prompt; temperature 0 is greedy.

    A completion also ends with a string of `stop` or an id of `stop_token_ids`, which it then holds, beside the EOS that
    the model itself knows.
    """

    n: int
    temperature: float
    max_new_tokens: int
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()


@dataclass
class SetSamplingConfig:
    """What is different in sampling one benchmark; None: as everywhere."""

    k: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_new_tokens: int | None = None


@dataclass
class EvaluationConfig:
    """How accuracy is measured: a small set on the way, the final set at the end (`final_problems` None: all of it).

    `stop_at`: the mean reward on the learning curve at which training ends; None: it ends after `learner.steps`.
    """

    curve_every: int
    curve_problems: int
    final_problems: int | None
    k: int
    temperature: float
    top_p: float
    max_new_tokens: int
    sets: dict[str, SetSamplingConfig] = field(default_factory=dict)
    stop_at: float | None = None

    def __post_init__(self) -> None:
        require(self.curve_every >= 1, "evaluation.curve_every", "1 or more", self.curve_every)
        require(self.curve_problems >= 1, "evaluation.curve_problems", "1 or more", self.curve_problems)
        problems = self.final_problems
        require(problems is None or problems >= 1, "evaluation.final_problems", "null or 1 or more", problems)
        self._check("evaluation", self.sampled(""))
        for name in self.sets:
            self._check(f"evaluation.sets.{name}", self.sampled(name))

    def sampled(self, benchmark: str) -> Sampling:
        """How completions of a benchmark are drawn for avg@k."""
        own = {
            key: value
            for key, value in vars(self.sets.get(benchmark, SetSamplingConfig())).items()
            if value is not None
        }
        chosen = {key: getattr(self, key) for key in ("k", "temperature", "top_p", "max_new_tokens")} | own
        return Sampling(chosen.pop("k"), **chosen)

    def greedy(self, benchmark: str) -> Sampling:
        """How the one completion of pass@1 is drawn."""
        return Sampling(1, 0.0, self.sampled(benchmark).max_new_tokens)

    @staticmethod
    def _check(key: str, sampling: Sampling) -> None:
        require(sampling.n >= 1, f"{key}.k", "1 or more", sampling.n)
        require(sampling.temperature > 0, f"{key}.temperature", "above 0", sampling.temperature)
        require(0 < sampling.top_p <= 1, f"{key}.top_p", "above 0 and at most 1", sampling.top_p)
        require(sampling.max_new_tokens >= 1, f"{key}.max_new_tokens", "1 or more", sampling.max_new_tokens)
