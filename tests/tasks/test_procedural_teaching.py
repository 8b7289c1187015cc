"""Teaching tasks of reasoning-gym in characters: the tokenizer, the demonstrations, and what is refused."""

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oar.common.errors import ConfigError
from oar.config import TrainConfig, build, validated
from oar.tasks.data.procedural import ReasoningGymSource, held_out
from oar.tasks.data.procedural_teaching import ProceduralTeaching
from oar.tasks.embedded.teaching import Lesson
from oar.tasks.embedded.tokenizer import character_tokenizer
from oar.tasks.task import Task
from tests.config.test_config import composed

TASKS = ("spell_backward", "chain_sum")
TOKENIZER = character_tokenizer(["####"], 256)
TASK = Task(TOKENIZER, "####")
SMALL: dict[str, Any] = {"max_steps": 3, "batch_size": 8, "check_problems": 4}


def lesson(tasks: tuple[str, ...] = TASKS, **options: Any) -> Lesson:
    return ProceduralTeaching(tasks=tasks, options=options, **SMALL).lesson()


@given(st.text(alphabet=[*string.ascii_letters, *string.digits, *string.punctuation, " ", "\n"]))
def test_text_comes_back_and_no_token_rewrites_what_stands_before_it(text: str) -> None:
    ids = TOKENIZER(text, add_special_tokens=False).input_ids
    assert TOKENIZER.unk_token_id not in ids
    assert TASK.decode(ids) == text
    assert [TASK.decode(ids[:end]) for end in range(len(ids) + 1)] == [
        "".join(TOKENIZER.convert_ids_to_tokens(ids[:end])) for end in range(len(ids) + 1)
    ]


def test_the_marker_is_one_token_and_any_other_sign_one_character() -> None:
    assert TOKENIZER.tokenize("ab #### 1##") == ["a", "b", " ", "####", " ", "1", "#", "#"]
    assert TOKENIZER("a").input_ids[0] == TOKENIZER.bos_token_id


def test_a_demonstration_is_right_by_the_tasks_own_scorer() -> None:
    taught, source = lesson(), ReasoningGymSource(TASKS)
    problems = [problem for task in TASKS for problem in source.problems(1, 0, 40) if problem.benchmark == task]
    assert {taught.demonstration(index)[0] for index in range(24)}.isdisjoint(one.question for one in problems)
    for index in range(24):
        question, text = taught.demonstration(index)
        draft, _, answer = text.partition(" #### ")
        assert draft == answer
        if index % 2 == 0:
            assert question.endswith(f": {answer[::-1]}")
    for task, tuning in taught.tuning().items():
        assert tuning == held_out(task, {}, "tuning", 4).problems
        right = [f"{one.answer} #### {one.answer}" for one in tuning]
        assert all(verdict.correct for verdict in TASK.grade_all(tuning, right))
        assert all(map(taught.is_good, tuning, right))
        assert not any(map(taught.is_good, tuning, [*right[1:], "####"]))
        assert not any(map(taught.is_good, tuning, [f"{one.answer} #### {one.answer}0" for one in tuning]))


def test_the_same_configuration_teaches_the_same_and_another_seed_other_problems() -> None:
    seeds = [0, 0, 1]
    first, again, other = (
        ProceduralTeaching(tasks=["chain_sum"], seed=seed, **SMALL).lesson().demonstration(5) for seed in seeds
    )
    assert first == again != other


def test_a_signed_signal_sees_the_characters_of_the_answer() -> None:
    problem = held_out("spell_backward", {}, "curve", 1).problems[0]
    assert TASK.decode(TASK.encode_gold(problem)).strip() == problem.answer


def test_the_model_is_taught_what_the_run_trains_on() -> None:
    chosen = ["data.source.tasks=[spell_backward]", "+data.source.options.spell_backward.max_word_len=5"]
    cfg = validated(composed("model=reasoning_gym", "data=reasoning_gym", *chosen), TrainConfig)
    teaching = build("model.teach", cfg.model.teach)
    assert isinstance(teaching, ProceduralTeaching)
    assert list(teaching.tasks or []) == ["spell_backward"]
    assert all(len(teaching.lesson().demonstration(index)[0].split()[-1]) <= 5 for index in range(20))


@pytest.mark.parametrize(
    ("teaching", "said"),
    [
        (ProceduralTeaching(), "choose data=reasoning_gym"),
        (ProceduralTeaching(tasks=["chain_sums"]), r"model\.teach\.tasks .*'chain_sums'; did you mean chain_sum\?"),
        (ProceduralTeaching(tasks=["word_ladder"]), "must not name word_ladder"),
    ],
)
def test_what_cannot_be_taught_is_refused_in_one_sentence(teaching: ProceduralTeaching, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        teaching.lesson()


def test_a_task_without_an_answer_to_show_is_no_lesson() -> None:
    with pytest.raises(ConfigError, match=r"graph_color shows no answer"):
        lesson(("graph_color",)).demonstration(0)
