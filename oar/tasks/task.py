"""From problems to prompts and from completions to verdicts, for one model's tokenizer and answer form."""

import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from transformers import PreTrainedTokenizerBase

from oar.common.errors import DataError
from oar.config.evaluation import Sampling
from oar.method.segments import Markers, Segments, extract_answer, find_answer, find_segments
from oar.tasks.equations import equations
from oar.tasks.offsets import token_ends
from oar.tasks.privileged import ASKS, shown_to_group
from oar.tasks.problem import Problem
from oar.tasks.sheets import SHEETS
from oar.tasks.sheets import marks as sheet_marks
from oar.tasks.spellings import spellings
from oar.tasks.template import Template, load_template
from oar.tasks.verifier.grade import Verdict, equal, grade, same_answer, shared_pool
from oar.tasks.verifier.pool import VerifierPool
from oar.tasks.verifier.scored import score
from oar.tasks.verifier.shown import shown
from oar.tasks.verifier.text import same_text
from oar.tasks.words import TIER_NAMES, causal_mask, first_error, written_mask
from oar.tasks.words.language import STOP

GSM8K = ("gsm8k", "gsm8k_train")  # the sets of conf/benchmark and conf/data
LINE_BREAKS = (
    "\n",
    "\u010a",
    "<0x0A>",
)  # as it stands in vocabularies: itself, of bytes (GPT-2's, Qwen's), of SentencePiece


@dataclass(frozen=True, slots=True)
class Task:
    """`marker` announces the answer in a completion, e.g. `####`.

    Without a template the prompt is the bare question and an answer must be its gold answer to the letter: the embedded
    task. With one (`Task.with_template`) it says both, and answers are compared by `oar.tasks.verifier.grade` in `pool`.
    """

    tokenizer: PreTrainedTokenizerBase
    marker: str
    template: Template | None = None
    pool: VerifierPool | None = None

    @classmethod
    def with_template(
        cls, tokenizer: PreTrainedTokenizerBase, template: Template, pool: VerifierPool | None = None
    ) -> "Task":
        """The task of a template; without a pool answers share the one of `oar.tasks.verifier.grade.verify`."""
        return cls(tokenizer, template.marker, template, pool)

    @classmethod
    def named(cls, tokenizer: PreTrainedTokenizerBase, marker: str, template: str | None) -> "Task":
        """The task of a configuration: the template of that name, or without one the bare question and `marker`.

        Raises ConfigError where there is no such template.
        """
        return cls(tokenizer, marker) if template is None else cls.with_template(tokenizer, load_template(template))

    @property
    def markers(self) -> Markers:
        """What announces an answer in a completion, first what decides."""
        return self.marker if self.template is None else self.template.markers

    @property
    def pad_id(self) -> int:
        """The id that masks and pads. Raises DataError where the tokenizer has none."""
        if self.tokenizer.pad_token_id is None:
            raise DataError(
                "The tokenizer must have a pad token (OAR-P masks with it), but has none: set one in its folder."
            )
        return int(self.tokenizer.pad_token_id)

    @property
    def stop_ids(self) -> list[int]:
        """The ids that end a completion."""
        return [self.tokenizer.eos_token_id] if self.template is None else self.template.stop_ids(self.tokenizer)

    def encode_prompt(self, problem: Problem) -> list[int]:
        """The prompt's token ids."""
        if self.template is not None:
            return self.template.encode(problem.question, self.tokenizer)
        return list(self.tokenizer.encode(problem.question))

    def encode_generic(self, problem: Problem) -> list[int]:
        """Token ids of the prompt without what makes it this task's: with a template the question without an instruction.

        A bare question loses what is told before it is asked: its last sentence is left. Raises DataError where nothing can be
        stripped.
        """
        if self.template is None:
            ids = list(self.tokenizer.encode(problem.question.rpartition(f"{STOP} ")[2]))
        else:
            ids = self.template.without_instruction().encode(problem.question, self.tokenizer)
        if ids == self.encode_prompt(problem):
            raise DataError(
                f"method.generic needs a prompt that can be stripped, but that of {problem.id} of {problem.benchmark} is its "
                "question alone: choose method.generic=null."
            )
        return ids

    def render(self, problem: Problem) -> str:
        """The prompt as text, for servers that tokenise it themselves."""
        return problem.question if self.template is None else self.template.render(problem.question, self.tokenizer)

    def ending(self, sampling: Sampling) -> Sampling:
        """The same sampling, ended where a completion of this task ends."""
        return sampling if self.template is None else self.template.ending(sampling, self.tokenizer)

    def template_record(self) -> dict[str, str] | None:
        """The template's name and the digest of what it makes of a question; goes with every number."""
        if self.template is None:
            return None
        return {"name": self.template.name, "digest": self.template.digest(self.tokenizer)}

    def encode_marker(self, text: str | None) -> list[int]:
        """Token ids of the conclude text, by default the marker; never empty."""
        ids = self.tokenizer.encode(text or self.marker, add_special_tokens=False)
        if not ids or self.tokenizer.unk_token_id in ids:
            raise DataError(
                f"The conclude text {text or self.marker!r} has no tokens in this model's vocabulary: change probe.conclude."
            )
        return list(ids)

    def encode_neutral(self, text: str | None) -> int | None:
        """The id of a text that is one token, for counterfactual=text; None for None. Raises DataError where it is not one."""
        if text is None:
            return None
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        if len(ids) != 1 or ids[0] == self.tokenizer.unk_token_id:
            raise DataError(
                f"counterfactual.text must be one token of the model's vocabulary, but {text!r} is {len(ids)}"
                f"{' that it does not know' if len(ids) == 1 else ''}: choose another text, e.g. with a space before it."
            )
        return int(ids[0])

    def encode_gold(self, problem: Problem) -> list[int]:
        """Token ids of the right answer as they would stand behind the marker; none where it cannot be written there."""
        ids = self._announced(problem.answer)
        found = self.segments(ids)
        return [] if found is None else ids[found.answer_start : found.answer_end]

    def encode_spellings(self, problem: Problem) -> list[list[int]]:
        """The same for other ways to write the right answer: those that the vocabulary can say and the verifier takes."""
        found = [self.encode_gold(problem)]
        for spelled in spellings(problem.answer):
            said, ids = self._announced(spelled), self.encode_gold(replace(problem, answer=spelled))
            sayable = ids and self.tokenizer.unk_token_id not in said
            if sayable and ids not in found and self.grade(problem, self.decode(said)):
                found.append(ids)
        return found[1:]

    def _announced(self, answer: str) -> list[int]:
        marker = self.markers if isinstance(self.markers, str) else self.markers[0]
        written = f"{marker}{answer}}}" if marker.endswith("{") else f"{marker} {answer}"
        return list(self.tokenizer.encode(written, add_special_tokens=False))

    def encode_solution(self, problem: Problem) -> list[int]:
        """Token ids of the problem's reference solution; none where it has none."""
        return list(self.tokenizer.encode(problem.solution, add_special_tokens=False)) if problem.solution else []

    def encode_contexts(
        self, kind: str, problem: Problem, texts: Sequence[str], verdicts: Sequence[Verdict]
    ) -> list[list[int]]:
        """For each completion of a group the token ids of a prompt with a privileged look; none where there is nothing to show.

        `kind`: one of `oar.names.CONTEXTS`. Raises DataError where what is shown cannot be said, or is not known.
        """
        shown = shown_to_group(kind, problem, texts, verdicts)
        known = {one: self._encode_context(kind, problem, one) for one in set(shown) - {""}}
        return [known.get(one, []) for one in shown]

    def _encode_context(self, kind: str, problem: Problem, shown: str) -> list[int]:
        if self.template is not None:
            asked = ASKS[kind].replace("{shown}", shown)
            return self.template.encode(f"{problem.question}\n\n{asked}", self.tokenizer)
        hint = {"answer": f"{self.marker} {shown}", "feedback": shown}.get(kind, f"{problem.question} {shown}")
        ids = list(self.tokenizer.encode(f"{hint} {problem.question}"))
        if self.tokenizer.unk_token_id in ids:
            raise DataError(
                f"context={kind} shows {shown!r}, which this model's vocabulary cannot say: choose another."
            )
        return ids

    def step_end_ids(self) -> list[int]:
        """The tokens that end a step of the reasoning: those with a line break, without a template those of `_step_ends`."""
        ends = LINE_BREAKS if self.template is not None else self._step_ends
        return sorted(
            ids for token, ids in self.tokenizer.get_vocab().items() if any(token.endswith(end) for end in ends)
        )

    @property
    def _step_ends(self) -> list[str]:
        """Of the embedded tasks: a sentence's full stop, or on sheets, whose vocabulary has none, the digit of an entry."""
        return [STOP] if STOP in self.tokenizer.get_vocab() else list(string.digits)

    def decode(self, ids: Sequence[int]) -> str:
        """A completion's text, special tokens left out."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def segments(
        self, completion_ids: Sequence[int], text: str | None = None, *, needs_answer: bool = True
    ) -> Segments | None:
        """Where reasoning, marker and answer are. `text`: the ids decoded, where that is known.

        Where there is no answer: None, or without `needs_answer` all but the last token as reasoning.
        """
        found = find_segments(completion_ids, self.decode, self.markers, text)
        return found if found or needs_answer else Segments.without_answer(len(completion_ids))

    def step_starts(self, completion_ids: Sequence[int]) -> list[int]:
        """Where steps of a completion begin, but the first: behind a line's end, in the embedded tasks `_step_ends`.

        Of an embedded task the answer is the last step.
        """
        ends, ids = ["\n"], list(completion_ids)
        if self.template is None:
            ends, marker = self._step_ends, self.tokenizer.convert_tokens_to_ids(self.marker)
            ids = ids[: ids.index(marker) + 1] if marker in ids else ids
        said = {token: self.decode([token]) for token in set(ids)}
        following = enumerate(pairwise(ids), start=1)
        return [
            at for at, (before, token) in following if said[token].strip() and any(end in said[before] for end in ends)
        ]

    def grade(self, problem: Problem, completion: str) -> bool:
        """Whether the completion's final answer is right."""
        return self.grade_all([problem], [completion])[0].correct

    def grade_all(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[Verdict]:
        """The verdict of each completion, all at once: what needs a computer algebra system is shared out in the pool.

        An answer to a procedural problem is judged by its data set's scorer instead.
        """
        items = list(zip(problems, completions, strict=True))
        compared = iter(
            self._compared([(problem.answer, text) for problem, text in items if problem.scored_as is None])
        )
        scored = iter(
            score(
                [(how, extract_answer(text, self.markers)) for one, text in items if (how := one.scored_as) is not None]
            )
        )
        return [next(compared if problem.scored_as is None else scored) for problem in problems]

    def _compared(self, items: Sequence[tuple[str, str]]) -> list[Verdict]:
        if self.template is None:
            return [same_answer(gold, text, self.marker) for gold, text in items]
        return grade(items, self.pool or shared_pool(), self.markers)

    def same_answer(self, one: str, other: str) -> bool:
        """Whether two final answers are the same one, by the rule of `grade_all`."""
        return same_text(one, other) if self.template is None else equal(one, other, self.pool or shared_pool())

    def parsed(self, answer: str) -> str | None:
        """How an answer is read before it is compared; None where it cannot be read."""
        return "".join(answer.split()) if self.template is None else shown(answer)

    def marks(self, problem: Problem, completion_ids: Sequence[int]) -> dict[str, list[bool] | list[int]]:
        """Ground truth for attribution by name, each one bool or id per completion token; empty where the task knows none.

        A word problem that carries its computation has three: `causal`, the tokens the computation is made of; `written`, these
        and the signs that decide whether a result is written; `error`, of a wrong completion its first wrong token (nothing
        where it cannot be located), of a right one its causal tokens. The sources are docs/EMBEDDED.md (oracle) and
        docs/METHOD.md §7; `written` is ours. GSM8K has two: `causal`, the numbers and operators of every written equation, and
        `error`, of a wrong completion the result of the first equation that does not hold. Those of sheets are told in
        oar/tasks/sheets/grading.py.
        """
        if problem.benchmark == SHEETS:
            return sheet_marks(problem, completion_ids, self.tokenizer)
        if problem.benchmark in GSM8K:
            return self._equation_marks(problem, completion_ids)
        if problem.benchmark not in TIER_NAMES or not problem.solution:
            return {}
        causal = causal_mask(completion_ids, self.tokenizer)
        error = causal
        if not self.grade(problem, self.decode(completion_ids)):
            wrong = first_error(problem, completion_ids, self.tokenizer)
            error = [position == wrong for position in range(len(completion_ids))]
        return {"causal": causal, "written": written_mask(completion_ids, self.tokenizer), "error": error}

    def _equation_marks(self, problem: Problem, completion_ids: Sequence[int]) -> dict[str, list[bool] | list[int]]:
        text, ends = self.decode(completion_ids), token_ends(completion_ids, self.tokenizer)
        announced = find_answer(text, self.markers)
        written = equations(text if announced is None else text[: announced.marker_start])
        causal = _tokens_of([part for equation in written for part in equation.parts], ends)
        if self.grade(problem, text):
            return {"causal": causal, "error": causal}
        wrong = next((equation.result for equation in written if equation.holds is False), None)
        at = None if wrong is None else _tokens_of([wrong], ends).index(True)
        return {"causal": causal, "error": [position == at for position in range(len(ends))]}


def _tokens_of(spans: Sequence[tuple[int, int]], ends: Sequence[int]) -> list[bool]:
    """Which tokens hold a character of the spans, (T,)."""
    borders = pairwise([0, *ends])
    return [any(start < last and first < end for first, last in spans) for start, end in borders]
