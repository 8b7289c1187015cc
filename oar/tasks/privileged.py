"""What a completion's scorer may be shown beside the question: an answer, a solution, a peer's completion, feedback.

Sources of the kinds: SDPG (2606.04036) shows the answer, RLSD (2604.03128) a solution, SDPO (2601.20802) a right completion of
the same group, SERL (2605.19447) the environment's feedback. None of the papers' wordings is copied.
"""

from collections.abc import Sequence

from oar.common.errors import DataError
from oar.tasks.problem import Problem
from oar.tasks.verifier.grade import Verdict
from oar.tasks.words import TIER_NAMES, correction

# How a prompt template's question goes on. A task without a template has a closed vocabulary, and its completions were taught
# to follow a question: what is shown stands before it, a solution behind a question of its own, as an example.
ASKS = {
    "answer": "The right final answer is {shown}. Use it to check your work, but write the whole solution.",
    "solution": "Here is a reference solution:\n{shown}\nSolve the problem in your own way and in the format asked for.",
    "peer": "Here is a right solution:\n{shown}\nSolve the problem in the format asked for.",
    "feedback": "To an earlier attempt this was said: {shown}\nSolve the problem in the format asked for.",
}


def shown_to_group(kind: str, problem: Problem, texts: Sequence[str], verdicts: Sequence[Verdict]) -> list[str]:
    """What is shown beside the question for each completion of a group; empty where there is nothing.

    `peer`: the first other completion that is right; `feedback`: of a wrong completion what is wrong with it. Raises DataError
    where a problem has no solution to show.
    """
    if kind == "answer":
        return [problem.answer] * len(texts)
    if kind == "solution":
        if not problem.solution:
            raise DataError(
                f"context=solution needs a reference solution of every problem, but {problem.id} of {problem.benchmark} has "
                "none: choose context=answer."
            )
        return [problem.solution] * len(texts)
    if kind == "peer":
        right = [row for row, verdict in enumerate(verdicts) if verdict.correct]
        peers = [next((other for other in right if other != row), None) for row in range(len(texts))]
        return ["" if peer is None else texts[peer] for peer in peers]
    return [_feedback(problem, text, verdict) for text, verdict in zip(texts, verdicts, strict=True)]


def _feedback(problem: Problem, text: str, verdict: Verdict) -> str:
    """Of a word problem the equation that belongs where the completion first departs from it, else what the verifier says.

    Word problems have no word for "wrong": shown the wrong equation itself, a model would copy it.
    """
    if verdict.correct:
        return ""
    if problem.benchmark in TIER_NAMES and problem.solution:
        return correction(problem, text) or ""
    return "No final answer was found." if verdict.answer is None else f"{verdict.answer} is not the right answer."
