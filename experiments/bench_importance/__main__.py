"""What importance costs and how true it is, side by side in one run: `python -m experiments.bench_importance`.

Four parts: one update with made-up models by size and length; fidelity and cost on the embedded task; whole training steps
with the real engine, of OAR's variants and of every other method. Every case that is measured is kept in the output folder
under a hash of what made it, so the command can be interrupted and run again.
"""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiments.bench_importance.costs import (
    EMBEDDED,
    METHODS,
    STEPS,
    SYNTHETIC,
    Row,
    cheapest_faithful,
    embedded_rows,
    method_rows,
    step_rows,
    synthetic_rows,
    tidy,
)
from experiments.bench_importance.page import write_bench
from experiments.bench_importance.plan import Bench, BenchConfig
from experiments.bench_importance.steps import Make, learner_of, measure_apart, measure_steps
from experiments.bench_importance.update import (
    Synthetic,
    Update,
    listed,
    measure_memory,
    measure_seconds,
    timed_rounds,
)
from experiments.shared.cases import Case
from experiments.shared.counted_tokens import counted_tokens
from experiments.shared.fresh_process import in_fresh_process
from experiments.shared.lazy_engine import engine_when_needed
from oar.analysis.signals.examine import completion_advantages, warm_probe
from oar.command_line.entry import entry
from oar.common.clock import Clock
from oar.common.errors import DataError
from oar.common.progress import progress_bars
from oar.common.provenance import ROOT, collect_provenance, git_state
from oar.config import validated
from oar.learner.collect import collate_groups


@entry
def main(config: DictConfig) -> None:
    """Validate everything, measure what is missing, write the files; the last line is one JSON object."""
    cfg = validated(config, BenchConfig)
    started, git = datetime.now(UTC), git_state(ROOT)
    folder = Path(HydraConfig.get().runtime.output_dir)
    rows: list[Row] = []
    skipped: dict[str, dict[str, float]] = {}
    told: Case = {"completions": ""}
    chosen = None
    with progress_bars() as progress:
        bench = Bench(cfg, folder, progress)
        if SYNTHETIC in cfg.parts:
            for case in bench.synthetic_cases():
                found = measure_synthetic(bench, case)
                rows += synthetic_rows(found)
                skipped[f"{case.size}, {case.length}"] = found["skipped"]
        with engine_when_needed(bench.settings, folder, progress) as engine:
            make = partial(learner_of, engine)
            if EMBEDDED in cfg.parts:
                embedded = measure_embedded(bench, make)
                rows += embedded_rows(embedded)
                told["completions"] = embedded["told"]
                chosen = cheapest_faithful(tidy(rows), bench.candidates(), cfg.faithful)
                if STEPS in cfg.parts:
                    names = [*cfg.step_methods, *([chosen] if chosen else [])]
                    stepping = {name: bench.variants[name] for name in names}
                    rows += step_rows(measure_steps(bench, STEPS, stepping, make), embedded["length"])
            if METHODS in cfg.parts:
                apart = measure_apart(bench, METHODS, bench.methods, make)
                rows += method_rows(measure_steps(bench, METHODS, bench.methods, make), apart)
    numbers = write_bench(
        tidy(rows),
        folder,
        chosen=chosen,
        skipped=skipped,
        run=bench.description() | told,
        provenance=collect_provenance(asdict(cfg), started=started, git=git),
    )
    print((folder / "bench_importance.md").read_text())
    print(f"written to {folder}: bench_importance.csv, its page and picture, provenance.json")
    print(json.dumps(numbers, allow_nan=False))


def measure_synthetic(bench: Bench, case: Synthetic) -> Case:
    """Seconds of all methods in one process, then memory and tokens of each in a process of its own."""
    cfg, methods, name = bench.cfg, bench.synthetic_methods(), f"{case.size}-{case.length}"
    fields = {field: getattr(case, field) for field in Synthetic.__slots__ if field != "cfg"}
    made_of = {**fields, "settings": case.cfg.identity()}
    bounds = {"rounds": cfg.rounds, "method_seconds": cfg.method_seconds, "limit_s": cfg.limit_s}
    timed = bench.case(
        f"{name}-seconds",
        {**made_of, **bounds, "methods": {method: repr(how) for method, how in methods.items()}},
        lambda: in_fresh_process(measure_seconds, case, methods, *bounds.values()),
    )
    memory = {}
    for method in timed["seconds"]:
        how = methods[method]
        memory[method] = bench.case(
            f"{name}-memory-{method}",
            {**made_of, "method": repr(how)},
            partial(in_fresh_process, measure_memory, case, how),
        )
    sizes = {"size": case.size, "length": case.length, "completions": case.completions}
    return {**sizes, **timed, "memory": memory}


def measure_embedded(bench: Bench, make: Make) -> Case:
    """One batch of the embedded profile: seconds, tokens, importance and weights of every variant."""
    cfg, settings = bench.cfg, bench.settings

    def measure() -> Case:
        learner = make(bench.settings)
        learner.sync.push(learner.model, learner.step)
        drawn = learner.groups.take(learner.step, Clock())
        graded = collate_groups(drawn.groups, learner.task, learner.model.device)
        batch, advantages = graded.batch, completion_advantages(graded.rewards, settings.learner)
        update = Update(learner.model, batch, advantages, warm_probe(settings.probe, learner.task), settings)
        found: Case = {"seconds": timed_rounds(update, bench.estimators, cfg.rounds, cfg.method_seconds)}
        judged = (batch.has_answer & (advantages != 0) & batch.reasoning_mask.any(dim=1)).nonzero()[:, 0]
        if not len(judged):
            raise DataError(
                "Fidelity needs completions with an advantage and an answer, but the model gave none: train it."
            )
        for name, estimator in bench.estimators.items():
            with counted_tokens(learner.model) as count:
                data = update.run(estimator, Clock())
            found.setdefault("tokens", {})[name] = count.forward
            for key, values in (("importance", data.token_importance), ("weights", data.token_weights)):
                by_row = listed(values[judged], batch.reasoning_mask[judged])
                found.setdefault(key, {})[name] = by_row
        length = float(batch.completion_mask.sum(dim=1).float().mean())
        return {
            **found,
            "problems": [graded.problems[row].id for row in judged.tolist()],
            "completions": int((advantages != 0).sum()),
            "length": round(length, 1),
            "told": f"{len(batch)} completions of {length:.1f} tokens on average, {len(judged)} of them with an advantage "
            "and an answer",
        }

    methods = {name: variant.identity() for name, variant in bench.variants.items()}
    bounds = {"rounds": cfg.rounds, "method_seconds": cfg.method_seconds}
    return bench.case(EMBEDDED, {**bounds, "methods": methods, "weights": bench.weights}, measure)


if __name__ == "__main__":
    main()
