"""Pages of the credit inspector that are made by hand, for tests of what they hold and of what a browser makes of them."""

import numpy as np

from experiments.inspect_credit.page import InspectorPage
from experiments.inspect_credit.token_signal import TokenSignal
from oar.learner.samples import Sample

ATTACK = "</script><img src=x onerror=\"document.title='owned'\"><!-- & {{js}} \u2028"


def sample(
    tokens: list[str], segments: list[int] | None, *, reward: float = 1.0, text: str | None = None, **more: object
) -> Sample:
    """A completion with made-up numbers where a test does not care."""
    count = len(tokens)
    known: dict[str, object] = {
        "row": 0,
        "problem": "p1",
        "benchmark": "words1",
        "prompt": "How many ?",
        "completion": " ".join(tokens) if text is None else text,
        "gold": "5",
        "correct": reward > 0,
        "rewards": {"answer": float(reward)},
        "advantage": 0.5 if reward else -0.5,
        "prompt_ids": [1],
        "completion_ids": list(range(count)),
        "old_logprobs": [-0.5] * count,
        "entropy": [0.25] * count,
        "token_importance": [0.0] * count,
        "token_weights": [1.0] * count,
        "marks": {},
    }
    known |= more
    advantages = [known["advantage"] * weight for weight in known["token_weights"]]  # type: ignore[operator, attr-defined]
    shown = {"tokens": tokens, "segments": segments, "reward": reward, "token_advantages": advantages}
    return Sample(**(shown | known))  # type: ignore[arg-type]


def page(samples: list[Sample], signals: list[TokenSignal]) -> InspectorPage:
    """A page of these."""
    return InspectorPage(f"A run {ATTACK}", {"fact": ATTACK}, [f"note {ATTACK}"], samples, signals, {"command": ATTACK})


def small_page() -> InspectorPage:
    """Two completions; every number that a browser shows of them can be worked out by hand.

    oar_p's importance orders the reasoning of the first as oar_g's does, that of the second the other way round.
    """
    samples = [
        sample(["Two", "and", "three", ATTACK, "####", "5", ""], [4, 5, 6], text=f"Two and three {ATTACK} #### 5"),
        sample(["Six", "it", "is", "####", "6"], [3, 4, 5], reward=0.0, problem="p2", benchmark="words2", gold="7"),
    ]
    here, there = "as the run logged it", "step_000010"
    signals = [
        TokenSignal(
            "oar_g",
            here,
            "weight",
            "Logged.",
            [[0.1, 0.3, 1.2, 2.4], [1.5, 0.9, 0.6]],
            [[0.0, 1e-4, 1e-3, 1e-2], [3.0, 2.0, 1.0]],
            [5e-4, 1.5],
        ),
        TokenSignal(
            "advantage",
            here,
            "advantage",
            "",
            [[0.05, 0.15, 0.6, 1.2, 0.5, 0.5, 0.5], [-0.75, -0.45, -0.3, -0.5, -0.5]],
        ),
        TokenSignal("entropy", here, "amount", "", [[0, 0.2, 0.4, 0.6, 0.8, 1, 0.1], [0.5, 0.5, 0.5, 0, 0]]),
        TokenSignal("surprisal", here, "amount", "", [[0.125, 0.25, 0.5, 1, 2, 3, 4], [1, 2, 3, 4, 5]]),
        TokenSignal("causal", here, "mark", "", [[1, 0, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0]]),
        TokenSignal("error", here, "mark", "", [[1, 0, 1, 0, 0, 0, 0], [0, 1, 0, 0, 0]]),
        TokenSignal(
            "oar_p",
            there,
            "weight",
            "Anew.",
            [[0.5, 0.75, 1.25, 1.5], [0.8, 1.0, 1.2]],
            [[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0]],
            [2.5, None],
        ),
        TokenSignal("ratio", there, "ratio", "", [[1, 1.3, 0.7, 1, 1, 1, 1], [1, 1, 1, 1, 1]]),
    ]
    return page(samples, signals)


def large_page(completions: int, tokens: int) -> InspectorPage:
    """Random completions of so many tokens with a dozen signals, as big as a page of a real run."""
    rng = np.random.default_rng(0)
    words = np.array(["we", "have", "7", "+", "3", "=", "10", ".", "so", "the", "count", "is"])
    segments = [tokens - 3, tokens - 2, tokens - 1]
    samples = [
        sample([*rng.choice(words, tokens - 3), "####", "5", ""], segments, reward=row % 2, benchmark=f"words{row % 5}")
        for row in range(completions)
    ]
    importance = rng.exponential(size=(completions, tokens - 3)) * 10.0 ** rng.integers(-6, 0, (completions, 1))
    thresholds = np.quantile(importance, 0.4, axis=1).tolist()
    weights = (importance / importance.mean(axis=1, keepdims=True)).tolist()
    values = rng.exponential(size=(completions, tokens)).tolist()
    signals = [
        TokenSignal(f"oar_{at}", "logged", "weight", "", weights, importance.tolist(), thresholds) for at in range(4)
    ]
    signals += [
        TokenSignal(name, "logged", "amount", "", values) for name in ("surprisal", "entropy", "a", "b", "c", "d")
    ]
    signals += [
        TokenSignal("advantage", "logged", "advantage", "", values),
        TokenSignal("ratio", "step", "ratio", "", values),
    ]
    return page(samples, signals)
