"""Where training problems and evaluation sets come from."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, Protocol

from oar.common.errors import ConfigError, DataError
from oar.common.seeding import derive_seed
from oar.config import BenchmarkConfig, build, validated
from oar.config.checks import one_of, require
from oar.config.data import DatasetConfig
from oar.tasks import sheets
from oar.tasks.data.contamination import Prints, compare
from oar.tasks.data.procedural import held_out
from oar.tasks.data.records import ADVICE, handful, load_problems
from oar.tasks.problem import Problem, ProblemSet
from oar.tasks.verifier.grade import shared_pool
from oar.tasks.words import RL_STREAM, TIER_NAMES, evaluation_set, parts, tier_named, training_problem
from oar.tasks.words.parts import PARTS, Parts


class ProblemSource(Protocol):
    """A stream of training problems that can be entered anywhere, so that resuming needs only the step."""

    def problems(self, seed: int, step: int, n: int) -> list[Problem]:
        """The `n` problems of training step `step` (from 0)."""
        ...

    def fitting(self, fits: Callable[[Problem], bool]) -> "ProblemSource":
        """The source without the problems that do not fit."""
        ...

    def origin(self) -> Mapping[str, object]:
        """Where the problems come from, as JSON-ready values for the record of a run."""
        ...


@dataclass(frozen=True, slots=True)
class WordsSource:
    """Fresh word problems; the tiers take turns, and the wheel goes on where the last step left it."""

    tiers: Sequence[str]

    def __post_init__(self) -> None:
        if not self.tiers:
            raise ConfigError("data.source.tiers must name at least one tier, but is empty.")
        for name in self.tiers:
            tier_named(name)

    def problems(self, seed: int, step: int, n: int) -> list[Problem]:
        """Never one of a held-out set, and never from the stream that taught the base model."""
        tiers = [tier_named(name) for name in self.tiers]
        return [training_problem(tiers, RL_STREAM, seed, step * n + i).problem for i in range(n)]

    def fitting(self, fits: Callable[[Problem], bool]) -> "WordsSource":
        """All of it: these problems are short, and there is no end of them to look at."""
        return self

    def origin(self) -> Mapping[str, object]:
        """The tiers."""
        return {"generated": list(self.tiers)}


@dataclass(frozen=True, slots=True)
class SheetsSource:
    """Fresh sheets of one kind (docs/SHEETS.md)."""

    sheet: sheets.Sheet

    def problems(self, seed: int, step: int, n: int) -> list[Problem]:
        """Never one of a held-out set, and never from the stream that taught the base model."""
        return [sheets.training_problem(self.sheet, RL_STREAM, seed, step * n + i).problem for i in range(n)]

    def fitting(self, fits: Callable[[Problem], bool]) -> "SheetsSource":
        """All of it: every prompt is equally long."""
        return self

    def origin(self) -> Mapping[str, object]:
        """The kind of sheet."""
        return {"generated": sheets.SHEETS, **asdict(self.sheet)}


@dataclass(frozen=True, slots=True)
class PartsSource:
    """Fresh word problems in parts."""

    parts: Parts

    def problems(self, seed: int, step: int, n: int) -> list[Problem]:
        """Never a part of a held-out set, and never from the stream that taught the base model."""
        return [parts.training_problem(self.parts, RL_STREAM, seed, step * n + i).problem for i in range(n)]

    def fitting(self, fits: Callable[[Problem], bool]) -> "PartsSource":
        """All of it, as of WordsSource."""
        return self

    def origin(self) -> Mapping[str, object]:
        """Tier and number of the parts."""
        return {"generated": PARTS, **asdict(self.parts)}


@dataclass(frozen=True)
class Epochs:
    """Problems epoch by epoch, each in an order of its own; every problem comes once an epoch."""

    problem_set: ProblemSet

    def problems(self, seed: int, step: int, n: int) -> list[Problem]:
        """Problems `step * n` to `step * n + n` of the shuffled epochs, one after the other."""
        everything = self.problem_set.problems
        orders: dict[int, list[int]] = {}
        chosen = []
        for position in range(step * n, step * n + n):
            epoch, place = divmod(position, len(everything))
            if epoch not in orders:
                orders[epoch] = list(range(len(everything)))
                Random(derive_seed(seed, "epoch", epoch)).shuffle(orders[epoch])
            chosen.append(everything[orders[epoch][place]])
        return chosen

    def fitting(self, fits: Callable[[Problem], bool]) -> "Epochs":
        """The problems that fit; how many do not stands in the origin. Raises DataError where none does."""
        everything = self.problem_set
        chosen = [problem for problem in everything.problems if fits(problem)]
        if not chosen:
            raise DataError(
                f"No problem of {everything.name} has a prompt that leaves room for rollout.max_new_tokens: raise "
                "rollout.max_model_len."
            )
        left_out = len(everything.problems) - len(chosen)
        return Epochs(ProblemSet(everything.name, chosen, {**everything.origin, "left_out_as_too_long": left_out}))

    def origin(self) -> Mapping[str, object]:
        """Where the problems come from."""
        return self.problem_set.origin


@dataclass(frozen=True)
class DatasetSource:
    """A data set as `Epochs`.

    `path`: a local copy (a file, or a folder that holds it) instead of the hub; `levels`: only problems of these, None:
    all; `dataset`: a `DatasetConfig`; `on_bad_row`: `refuse`, or `drop` to do without rows that cannot be used. Nothing is
    read before the first problem is asked for.
    """

    name: str
    path: str | None
    levels: Sequence[int] | None
    dataset: Mapping[str, Any]
    on_bad_row: str = "refuse"

    def __post_init__(self) -> None:
        one_of("data.source.on_bad_row", self.on_bad_row, ("refuse", "drop"))
        listed = isinstance(self.levels, Sequence) and all(isinstance(level, int) for level in self.levels)
        require(
            self.levels is None or listed,
            "data.source.levels",
            "a list of numbers, e.g. [3, 4, 5], or null",
            self.levels,
        )
        self.settings()

    def settings(self) -> DatasetConfig:
        """How the rows are read. Raises ConfigError for keys that do not fit."""
        from omegaconf import OmegaConf  # nobody else here needs it

        return validated(OmegaConf.create(dict(self.dataset)), DatasetConfig)

    @cached_property
    def problem_set(self) -> ProblemSet:
        """All problems that may be trained on. Raises DataError where there is none, or the data is not what it must be."""
        everything = load_problems(
            self.name,
            self.settings(),
            self.path,
            path_key="data.source.path",
            dataset_key="data.source.dataset",
            drop=self.on_bad_row == "drop",
        )
        if self.levels is None:
            return everything
        levels = sorted(self.levels)
        chosen = [problem for problem in everything.problems if problem.level in levels]
        if not chosen:
            there = sorted({problem.level for problem in everything.problems if problem.level is not None})
            known = ", ".join(map(str, there)) or "it has none"
            raise DataError(f"data.source.levels must name levels of {self.name} ({known}), but is {levels}.")
        return ProblemSet(self.name, chosen, {**everything.origin, "levels": levels, "problems": len(chosen)})

    def problems(self, seed: int, step: int, n: int) -> list[Problem]:
        """Problems `step * n` to `step * n + n` of the shuffled epochs, one after the other."""
        return Epochs(self.problem_set).problems(seed, step, n)

    def fitting(self, fits: Callable[[Problem], bool]) -> Epochs:
        """As that of `Epochs`."""
        return Epochs(self.problem_set).fitting(fits)

    def origin(self) -> Mapping[str, object]:
        """File and hash, or data set and revision."""
        return self.problem_set.origin


def load_benchmark(name: str, split: str, n: int) -> list[Problem]:
    """The first `n` problems of a tier's split (`curve` or `final`). Raises ConfigError for an unknown name."""
    if name not in TIER_NAMES:
        raise ConfigError(f"benchmark.sets must name known benchmarks ({', '.join(TIER_NAMES)}), but names {name!r}.")
    return [word_problem.problem for word_problem in evaluation_set(tier_named(name), split, n)]


def load_benchmarks(benchmark: BenchmarkConfig, split: str, n: int | None) -> dict[str, ProblemSet]:
    """The sets of a benchmark by name, of each its first `n` problems (None, or more than it has: all).

    What is generated here or by reasoning-gym has splits of its own (`curve`, `final`); a published benchmark is one set, and
    every split is its beginning. Raises ConfigError for an unknown name and for all of what has no end; DataError for
    whatever is wrong with the data.
    """
    known = (*benchmark.sources, *TIER_NAMES)
    found = {}
    for name in benchmark.sets:
        if name not in known and benchmark.options is None:
            raise ConfigError(f"benchmark.sets must name known benchmarks ({', '.join(known)}), but names {name!r}.")
        if name in benchmark.sources:
            everything = _published(name, benchmark)
            found[name] = ProblemSet(name, everything.problems[:n], everything.origin)
        elif n is None:
            raise ConfigError(
                f"{name} is generated and has no end: set evaluation.final_problems to a number, e.g. 200."
            )
        elif name == sheets.SHEETS and benchmark.options is not None:
            sheet = build("benchmark.options.sheets (of data=sheets)", benchmark.options.get(name))
            made = [one.problem for one in sheets.evaluation_set(sheet, split, n)]
            found[name] = ProblemSet(name, made, {"generated": name, **asdict(sheet), "split": split})
        elif name == PARTS and benchmark.options is not None:
            kind = build("benchmark.options.parts (of data=parts)", benchmark.options.get(name))
            several = [one.problem for one in parts.evaluation_set(kind, split, n)]
            found[name] = ProblemSet(name, several, {"generated": name, **asdict(kind), "split": split})
        elif benchmark.options is not None:
            found[name] = held_out(name, benchmark.options, split, n)
        else:
            found[name] = ProblemSet(name, load_benchmark(name, split, n), {"generated": name, "split": split})
    return found


def _published(name: str, benchmark: BenchmarkConfig) -> ProblemSet:
    return load_problems(
        name,
        benchmark.sources[name],
        _path_of(name, benchmark),
        path_key="benchmark.path",
        dataset_key=f"benchmark.sources.{name}",
    )


def _path_of(name: str, benchmark: BenchmarkConfig) -> str | None:
    """Where the local copy of a set is, None: there is none. Raises ConfigError for one file for several sets."""
    if isinstance(benchmark.path, Mapping):
        return benchmark.path.get(name)
    if benchmark.path is not None and len(benchmark.sets) > 1 and not Path(benchmark.path).is_dir():
        raise ConfigError(
            f"benchmark.path must be a folder, or name a file for each of {', '.join(benchmark.sets)}, but is "
            f"{benchmark.path!r}."
        )
    return benchmark.path


def refuse_unreadable(sets: Iterable[ProblemSet]) -> None:
    """Raises DataError, naming the problems, where the verifier cannot compare a gold answer with anything."""
    golds = {
        f"{one.id} of {found.name}": one.answer for found in sets for one in found.problems if one.scored_as is None
    }
    if bad := list(shared_pool().unreadable(golds).values()):
        raise DataError(f"{handful(bad)} {ADVICE}")


def refuse_contaminated(source: ProblemSource, benchmark: BenchmarkConfig, allowed: Collection[str]) -> None:
    """Raises DataError where training problems are those of a benchmark that `allowed` does not name."""
    if not isinstance(source, DatasetSource):
        return  # generated problems are never those of a held-out set
    train = Prints.of(source.problem_set)
    for name in benchmark.sets:
        if name not in benchmark.sources or name in allowed:
            continue
        found = compare(train, Prints.of(_published(name, benchmark)))
        if found.copies:
            first = found.copies[0]
            raise DataError(
                f"{source.name} holds {len(found.copied)} of the {found.problems} problems of {name}, {first.benchmark_id} "
                f"as {first.train_id} among them: train on other data, or say data.allow_contaminated=[{name}]."
            )
