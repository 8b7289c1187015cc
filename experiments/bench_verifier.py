"""How many completions the verifier grades a minute, plain numbers and formulas apart: `python -m experiments.bench_verifier`.

Half of the completions are right. The last line is one JSON object; `items_per_minute` is that of plain numbers.
"""

import json
import random
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from oar.command_line.entry import entry
from oar.common.errors import ConfigError
from oar.common.files import write_text_atomic
from oar.common.provenance import ROOT, collect_provenance, git_state
from oar.common.seeding import derive_seed
from oar.config import validated
from oar.config.checks import AtLeast, Positive
from oar.tasks.verifier.grade import grade
from oar.tasks.verifier.pool import VerifierPool

Item = tuple[str, str]
SENTENCE = "Let $x$ be the number of apples, so that $2x + 3 = \\frac{x}{4} \\cdot {7}$ and hence x = 12. "


@dataclass
class BenchVerifierConfig:
    """See conf/bench_verifier.yaml."""

    seed: int
    workers: Positive
    timeout_s: float
    completion_characters: Annotated[int, AtLeast(0)]
    plain: Positive
    latex: Positive
    output_dir: str


def plain_items(n: int, draw: random.Random, text: str) -> list[Item]:
    """Numbers: whole ones in three forms of writing, decimals, fractions; every other completion is right."""
    items = []
    for index in range(n):
        number, off = draw.randrange(1, 100_000), index % 2
        gold, answer = [
            (f"{number}", f"\\boxed{{{number + off}}}"),
            (f"{number}", f"\\boxed{{{number + off:,}}}"),
            (f"{number}", f"#### {number + off}"),
            (f"{number / 100}", f"\\boxed{{{(number + off) / 100}}}"),
            (f"\\frac{{{number}}}{{100003}}", f"\\boxed{{\\dfrac{{{number + off}}}{{100003}}}}"),
        ][index // 2 % 5]
        items.append((gold, text + answer))
    return items


def latex_items(n: int, draw: random.Random, text: str) -> list[Item]:
    """Roots, multiples of pi, polynomials and points that need algebra, all different; every other completion is right."""
    items = []
    for index in range(n):
        a, b, off = draw.randrange(2, 1000), draw.randrange(2, 1000), index % 2
        gold, answer = [
            (f"{a}\\sqrt{{{b}}}", f"\\sqrt{{{a * a * b + off}}}"),
            (f"\\frac{{{a}\\pi}}{{{b}}}", f"\\frac{{{2 * a + off}}}{{{2 * b}}}\\pi"),
            (f"(x+{a})(x+{b})", f"x^2+{a + b}x+{a * b + off}"),
            (f"\\left({a}, \\sqrt{{{b}}}\\right)", f"({a + off}, {b}^{{\\frac{{1}}{{2}}}})"),
        ][index // 2 % 4]
        items.append((gold, f"{text}\\boxed{{{answer}}}"))
    return items


def timed(items: list[Item], pool: VerifierPool) -> dict[str, float]:
    """Items a minute; the verdicts must be the known ones."""
    began = time.perf_counter()
    verdicts = grade(items, pool)
    seconds = time.perf_counter() - began
    wrong = [item for index, item in enumerate(items) if verdicts[index].correct is not (index % 2 == 0)]
    if wrong:
        raise ConfigError(
            f"{len(wrong)} of {len(items)} verdicts are not the known ones: raise timeout_s on a slow machine."
        )
    return {"items": len(items), "seconds": round(seconds, 3), "items_per_minute": round(60 * len(items) / seconds)}


@entry
def main(config: DictConfig) -> None:
    """Grade both kinds, write the file, print the numbers."""
    started, git = datetime.now(UTC), git_state(ROOT)
    cfg = validated(config, BenchVerifierConfig)
    draw = random.Random(derive_seed(cfg.seed, "bench_verifier"))
    text = (SENTENCE * (cfg.completion_characters // len(SENTENCE) + 1))[: cfg.completion_characters]
    with VerifierPool(cfg.workers, cfg.timeout_s) as pool:
        pool.compare([("\\sqrt{8}", "2\\sqrt{2}")] * cfg.workers)  # started before the clock
        plain = timed(plain_items(cfg.plain, draw, text), pool)
        latex = timed(latex_items(cfg.latex, draw, text), pool)
    result = {"items_per_minute": plain["items_per_minute"], "plain": plain, "latex": latex, "workers": cfg.workers}
    provenance = collect_provenance(asdict(cfg), started=started, git=git)
    content = json.dumps({"results": result, "provenance": provenance}, indent=2)
    write_text_atomic(Path(HydraConfig.get().runtime.output_dir) / "bench_verifier.json", content + "\n")
    print(f"plain numbers: {plain['items_per_minute']:,} a minute")
    print(f"formulas:      {latex['items_per_minute']:,} a minute")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
