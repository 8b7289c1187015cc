"""A study, run by run: `python -m experiments.study experiment=pays`. Finished runs are not repeated, so it can be interrupted.

Arms are compared under conditions, each under the same training seeds; conf/experiment says which. A run that several studies
need is made once: its folder in `work_dir` is named by what it computes.
"""

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiments.study.ceilings import committed_regimes, earlier_page, kind_of, write_ceilings
from experiments.study.page import write_results
from experiments.study.rates import at_rate
from oar.command_line.entry import entry
from oar.command_line.overrides import key_of, overrides_of_runs
from oar.common.errors import ConfigError
from oar.common.provenance import config_hash
from oar.config import TrainConfig, validated
from oar.config.checks import Positive, one_of, require
from oar.config.composed import composed_run
from oar.launch.in_turn import run_in_turn
from oar.launch.pool import Job, joint_provenance, run_missing
from oar.runs.folder import read_run
from oar.tasks.words import TIER_NAMES


@dataclass(kw_only=True)
class StudyConfig(TrainConfig):
    """One study, and what a run is where the study does not say it; the keys are explained in conf/study.yaml."""

    name: str
    title: str
    question: str
    paper: str
    ran: str
    reference: str
    arms: dict[str, list[str]]
    conditions: dict[str, list[str]]
    only: list[str]
    pairs: list[list[str]]
    logged: dict[str, str]
    seeds: Positive
    first_seed: Positive
    seeds_of: dict[str, Positive]
    overrides: list[str]
    credit: bool
    mistakes: bool
    placement: bool
    ceilings: bool
    beside: list[str]
    rates: list[float]
    arms_of: dict[str, list[str]]
    in_words: dict[str, str]
    expected: dict[str, dict[str, str]]
    parallel_runs: Positive
    work_dir: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reference not in self.arms or len(self.arms) < 2:
            raise ConfigError(
                f"arms must hold the reference {self.reference!r} and one more, but are {list(self.arms)}."
            )
        for pair in self.pairs:
            if len(pair) != 2 or not set(pair) <= set(self.arms):
                raise ConfigError(f"Every entry of pairs must hold two of the arms, but one is {pair}.")
        if len({*self.rates}) < len(self.rates):
            raise ConfigError(f"rates must differ from one another, but are {self.rates}.")
        if self.beside and not self.ceilings:
            raise ConfigError(
                f"beside must be empty where ceilings=false, whose page takes no earlier runs, but is {self.beside}."
            )
        if not self.conditions:
            raise ConfigError("conditions must hold one at least, e.g. default: [].")
        least = min([self.seeds, *self.seeds_of.values()])
        require(
            self.first_seed <= least, "first_seed", f"{least} at most, the least of seeds and seeds_of", self.first_seed
        )
        unknown = {*self.arms_of, *self.in_words, *self.expected} - {*self.conditions}
        unknown |= {arm for arms in self.arms_of.values() for arm in arms} - {*self.arms}
        unknown |= {*self.seeds_of} - {*self.conditions, *self.arms}
        if unknown:
            raise ConfigError(
                "arms_of, seeds_of, in_words and expected must name conditions and arms, but name "
                f"{', '.join(sorted(unknown))}."
            )
        for name, seeds in self.seeds_of.items():
            require(seeds <= self.seeds, f"seeds_of.{name}", f"seeds ({self.seeds}) at most", seeds)
        for name in self.only:
            one_of("only", name, tuple(self.conditions))
        self.conditions = {name: self.conditions[name] for name in self.only or self.conditions}
        if not self.ceilings:  # where earlier pages may have the reference, and arms that no regime of this one runs
            self._leave_out_what_is_not_run()
            self._make_rates_conditions()
        if self.placement and not self.pairs:
            raise ConfigError(
                "placement=true compares arms with their controls, so pairs must name them, but is empty."
            )

    def _leave_out_what_is_not_run(self) -> None:
        """Arms that no condition runs, and pairs that none runs whole. Raises ConfigError for one with nothing to compare."""
        run = {name: self.arms_of.get(name, [*self.arms]) for name in self.conditions}
        for name, arms in run.items():
            if self.reference not in arms or len(arms) < 2:
                raise ConfigError(
                    f"arms_of.{name} must hold the reference {self.reference!r} and one more, but is {arms}."
                )
        self.arms = {arm: how for arm, how in self.arms.items() if any(arm in arms for arms in run.values())}
        self.pairs = [pair for pair in self.pairs if any(set(pair) <= {*arms} for arms in run.values())]

    def _make_rates_conditions(self) -> None:
        """At several learning rates each is a condition: what is compared is within one."""
        if not self.rates:
            return
        at = {at_rate(name, rate): (name, rate) for name in self.conditions for rate in self.rates}
        changed, arms, seeds = self.conditions, self.arms_of, self.seeds_of
        self.conditions = {new: [*changed[name], f"learner.lr={rate}"] for new, (name, rate) in at.items()}
        self.arms_of = {new: arms[name] for new, (name, _) in at.items() if name in arms}
        self.seeds_of = {name: of for name, of in seeds.items() if name not in changed}
        self.seeds_of |= {new: seeds[name] for new, (name, _) in at.items() if name in seeds}

    def compared(self) -> Iterator[tuple[str, str, list[str]]]:
        """Condition, arm and overrides of all that is run under a seed."""
        rates: list[float | None] = [*self.rates] if self.ceilings else []  # elsewhere they are conditions
        for rate in rates or [None]:
            for condition, changed in self.conditions.items():
                for arm in self.arms_of.get(condition, self.arms):
                    at_rate = [] if rate is None else [f"learner.lr={rate}"]
                    yield condition, arm, [*self.overrides, *changed, *self.arms[arm], *at_rate]


@entry
def main(config: DictConfig) -> None:
    """Plan the runs, run what is missing, write the page."""
    cfg = validated(config, StudyConfig)
    folder = Path(HydraConfig.get().runtime.output_dir)
    cfg.overrides = overrides_of_all(cfg, HydraConfig.get().overrides.task)
    jobs = plan(cfg)
    for one in cfg.beside:
        earlier_page(Path(one))  # a folder without a page is told now, not after the runs
    if cfg.ceilings and cfg.parallel_runs == 1:
        run_in_turn(jobs, Path(cfg.work_dir))
    else:
        run_missing(jobs, Path(cfg.work_dir), cfg.parallel_runs)
    runs = [read_run(job.folder, arm=job.arm, condition=job.condition) for job in jobs]
    write = write_ceilings if cfg.ceilings else write_results
    page = write(described(cfg, jobs), runs, folder, joint_provenance(jobs, cfg.parallel_runs))
    print(page.read_text())
    print(f"written to {folder}")
    if cfg.ceilings:
        print(json.dumps(committed_regimes(folder)))


def overrides_of_all(cfg: StudyConfig, typed: Sequence[str]) -> list[str]:
    """The overrides of every run, the study's and those `typed`.

    Raises ConfigError for one that conditions or arms set, and for an arm that no condition of this study runs.
    """
    run = {arm for _, arm, _ in cfg.compared()}
    for text in typed:
        group, _, arm = key_of(text).partition(".")
        if group == "arms" and arm and arm not in run and not text.startswith("~"):
            raise ConfigError(
                f"arms.{arm} is run under no condition, as arms_of names the arms of each: name it there too, "
                f"'arms_of.CONDITION=[{cfg.reference},{arm}]'."
            )
    said = {"seed": "type seeds=3 for the seeds 1 to 3"}
    if cfg.rates:
        said["learner.lr"] = "rates sets it; type rates=[3e-4], or rates=[] for the profile's"
    for kind, changes in (("conditions", cfg.conditions), ("arms", cfg.arms)):
        for name, how in changes.items():
            said |= {key_of(text): f"{kind}.{name} sets it" for text in how}
    chosen = overrides_of_runs(typed, {*StudyConfig.__annotations__, "experiment"}, said)
    replaced = {key_of(text) for text in chosen}
    return [*(text for text in cfg.overrides if key_of(text) not in replaced), *chosen]


def plan(cfg: StudyConfig) -> list[Job]:
    """Every run, validated before any of them starts; seed by seed, so that an interrupted study has whole comparisons.

    Raises ConfigError where two runs of one seed compute the same, and where `mistakes` cannot be measured on a run.
    """
    jobs: list[Job] = []
    for seed in range(cfg.first_seed, cfg.seeds + 1):
        for condition, arm, changed in cfg.compared():
            if seed > min(cfg.seeds_of.get(name, cfg.seeds) for name in (condition, arm)):
                continue
            overrides = [*changed, f"seed={seed}"]
            settings = composed_run(overrides)
            job = Job(Path(cfg.work_dir) / _folder_name(settings), overrides, settings, arm, condition)
            foreign = [name for name in settings.benchmark.sets if name not in TIER_NAMES]
            if cfg.mistakes and foreign:
                raise ConfigError(
                    f"mistakes=true needs problems of the embedded task, but {condition}: {arm} is evaluated on "
                    f"{', '.join(foreign)}: set mistakes=false."
                )
            for other in jobs:
                if other.folder == job.folder:
                    raise ConfigError(
                        f"{condition}: {arm} and {other.condition}: {other.arm} are the same run; change or remove one."
                    )
            jobs.append(job)
    return jobs


def _folder_name(settings: TrainConfig) -> str:
    """What the run computes: runs of several studies that compute the same are one."""
    computes = config_hash({"run": settings.identity(), "measure": settings.measure(), "steps": settings.learner.steps})
    return f"{settings.method.name}-seed{settings.seed}-{computes[:12]}"


def described(cfg: StudyConfig, jobs: Sequence[Job]) -> dict[str, object]:
    """What the page says and no table holds, JSON-ready; seconds of steps are added when they are known."""
    told = (
        "name",
        "title",
        "question",
        "paper",
        "ran",
        "reference",
        "arms",
        "conditions",
        "pairs",
        "logged",
        "overrides",
    )
    switches = (
        "first_seed",
        "seeds",
        "seeds_of",
        "credit",
        "mistakes",
        "placement",
        "beside",
        "rates",
        "in_words",
        "expected",
    )
    evaluation = jobs[0].settings.evaluation
    return {key: getattr(cfg, key) for key in (*told, *switches)} | {
        "kinds": {arm: kind_of(arm, how) for arm, how in cfg.arms.items()},
        "runs": len(jobs),
        "steps": sorted({job.settings.learner.steps for job in jobs}),
        "problems": "all" if evaluation.final_problems is None else evaluation.final_problems,
        "k": evaluation.k,
        "repeat": shlex.join(["python", "-m", "experiments.study", *HydraConfig.get().overrides.task]),
    }


if __name__ == "__main__":
    main()
