"""What a verifier process does with answers to procedural problems: reasoning-gym's scorers. Loaded by worker.py alone."""

import json
import re
import resource
from functools import lru_cache
from typing import Any

# Their scorers run an answer as Python (`eval`, sympy's `parse_expr`). No name of Python's is made of these signs: boards,
# matrices and sums are, and an answer with any other sign is wrong.
RUN_ANSWERS = ("binary_matrix", "countdown", "n_queens", "puzzle24", "spiral_matrix", "string_insertion")
HARMLESS = re.compile(r"""[\dA-EQ_\s+\-*/().,\[\]'"]*""")
MEMORY = 4 * 2**30  # bytes of a process: what an answer makes a scorer hold must not end the machine


def warm_up() -> None:
    """Import all data sets, which takes a second or two."""
    import reasoning_gym  # noqa: F401

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def reply_to(request: dict[str, Any]) -> dict[str, object]:
    """`score`: of the answer to the problem that task, options and seed make, most often between 0 and 1."""
    answer = request["answer"]
    if request["task"] in RUN_ANSWERS and not HARMLESS.fullmatch(answer):
        return {"score": 0.0}
    dataset, entry = _made(request["task"], json.dumps(request["options"]), request["seed"])
    return {"score": float(dataset.score_answer(answer, entry))}


@lru_cache(maxsize=4)  # a problem of spell_backward holds a list of 150,000 words
def _made(task: str, options: str, seed: int) -> tuple[Any, dict[str, Any]]:
    """The completions of a problem come one after the other."""
    import reasoning_gym

    dataset = reasoning_gym.create_dataset(task, **json.loads(options), seed=seed, size=1)
    return dataset, dataset[0]
