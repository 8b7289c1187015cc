"""Copies are found in whatever dress, and what is only alike is not called one."""

from hypothesis import given
from hypothesis import strategies as st

from oar.tasks.data.contamination import Comparison, Prints, compare
from oar.tasks.problem import Problem, ProblemSet

STAMPS = (
    "Max bought stamps at the post office . Some had a snowflake design , some had a truck design , and some had a rose "
    "design . Max bought 16 snowflake stamps and 3 more truck stamps than snowflake stamps . How many did he buy"
)


def prints(name: str, *problems: tuple[str, str]) -> Prints:
    return Prints.of(
        ProblemSet(name, [Problem(f"{name}{i}", text, answer, name) for i, (text, answer) in enumerate(problems)], {})
    )


def found(train: tuple[str, str], asked: tuple[str, str]) -> Comparison:
    return compare(prints("train", ("Nothing of the kind", "0"), train), prints("test", ("Another one", "9"), asked))


def test_the_same_text_in_another_dress_is_an_exact_copy() -> None:
    asked = r"Evaluate $\left( \frac{1}{2} \right)^{10}$ and  write it down."
    for text in (
        r"evaluate $(\dfrac12)^{10}$ and write it down",
        r"Evaluate $\left(\tfrac{1}{2}\right)^{10}$" + "\nand write it down .",
        "Evaluate $\\, (\\frac12)^{10} $ and write it down.",
    ):
        (copy,) = found((text, "1/1024"), (asked, "2^{-10}")).copies
        assert (copy.benchmark_id, copy.train_id, copy.kind) == ("test1", "train1", "exact")


def test_signs_and_numbers_are_part_of_the_text() -> None:
    for text in (r"Find the roots of $x^2 - 1$.", r"Find the roots of $x^2 + 2$.", r"Find the roots of $x^{21} + 1$."):
        assert not found((text, "1"), (r"Find the roots of $x^2 + 1$.", "1")).copies


def test_a_copy_inside_a_longer_text_is_found_by_its_13_grams() -> None:
    result = found((f"Read this carefully! {STAMPS}? Please put your answer in a box.", "35"), (f"{STAMPS}?", "35"))
    (copy,) = result.copies
    assert (copy.kind, copy.overlap, result.largest_overlap) == ("overlap", 1.0, 1.0)


def test_overlap_is_counted_by_hand() -> None:
    """20 words are 8 13-grams; a change of the last word leaves 7 of them, of the 8th from the front none."""
    words = "a b c d e f g h i j k l m n o p q r s t".split()
    asked = (" ".join(words), "1")
    last = found((" ".join([*words[:19], "z"]), "1"), asked)
    assert (last.largest_overlap, last.sharing, len(last.copies)) == (7 / 8, 1, 1)
    assert found((" ".join([*words[:7], "z", *words[8:]]), "1"), asked).largest_overlap == 0


def test_another_answer_is_another_problem() -> None:
    changed = STAMPS.replace("3 more", "3 fewer")
    assert found((STAMPS + " in all", "35"), (STAMPS, "36")).copies == []
    assert found((changed, "35"), (STAMPS, "35")).largest_overlap < 0.8


def test_another_sign_is_another_problem() -> None:
    asked = "What is the smallest positive integer $n$ such that all roots of $z^4 {} z^2 + 1 = 0$ are $n$th roots of unity?"
    result = found((asked.format("-") + " Say it.", "6"), (asked.format("+"), "6"))
    assert result.copies == []
    assert 0 < result.largest_overlap < 0.8


def test_figures_and_short_problems_do_not_count() -> None:
    drawing = "[asy] draw((0,0)--(1,0)--(1,1)--(0,1)--cycle); label('$A$',(0,0),W); dot((0,1)); [/asy]"
    result = found((f"What is the area? {drawing}", "1"), (f"How long is the diagonal? {drawing}", "1"))
    assert (result.copies, result.sharing, result.too_short) == ([], 0, 2)


def test_repeated_problems_of_one_set() -> None:
    assert prints("train", ("What is $x+y$?", "1"), ("What is  x + y?", "1"), ("What is x - y?", "1")).repeated == 1


@given(st.lists(st.sampled_from(["x", "y", "12", "+", "\\frac{1}{2}", "$", "."]), min_size=1, max_size=40))
def test_every_set_is_a_copy_of_itself(words: list[str]) -> None:
    one = prints("a", (" ".join(words), "1"))
    assert compare(one, one).copied == {"a0"}
