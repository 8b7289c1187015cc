"""Formulas, relations and matrices that are the same answer, and near misses that are not."""

import pytest

from oar.tasks.verifier.grade import equal, shared_pool
from oar.tasks.verifier.text import is_words


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        # a known number beside a formula
        (r"3\times10^8", "3e8", True),
        (r"6.02\times 10^{23}", "6.02e23", True),
        (r"2\text{ million}", r"2\times10^6", True),
        (r"-2 1/2", r"-\frac{\sqrt{25}}{2}", True),
        (r"0.\overline{3}", r"\frac{\sqrt{1}}{3}", True),
        (r"50\%", r"\frac{\sqrt{1}}{2}", True),
        (r"50\%", r"\sqrt{2500}", True),
        (r"3\times10^8", "3e9", False),
        (r"3\times10^8", "3e-8", False),
        (r"6.02\times 10^{23}", "6.0200001e23", False),
        (r"2\text{ million}", r"2\times10^9", False),
        ("2 1/2", r"\sqrt{1}", False),
        (r"0.333", r"\frac{\sqrt1}{3}", False),
        (r"1\%", r"\sqrt{10000}\%", False),
        (r"50\%", r"\frac{\sqrt{1}}{2}\%", False),
        (r"50\%", r"\frac{\sqrt{1}}{200}", False),
        # a point, not the interval that is written with the same brackets
        ("(1,2)", "x=1, y=2", True),
        ("x=1, y=2", "(1,2)", True),
        ("1<x<2", "x=1, y=2", False),
        ("x=1, y=2", "1<x<2", False),
        # a lone letter
        ("n", r"n\cdot1", True),
        ("n", "n+0", True),
        ("n", r"\frac{2n}{2}", True),
        ("x", "2x-x", True),
        ("x_1", "x_1+0", True),
        (r"\alpha", r"\alpha\cdot1", True),
        ("n", r"m\cdot1", False),
        ("n", r"N\cdot1", False),
        ("n", "n+10^{-30}", False),
        ("n", r"\frac{2n}{3}", False),
        ("x", r"\sqrt{x^2}", False),
        ("x", "|x|", False),
        ("x", "x_1+0", False),
        ("i", "i^3", False),
        (r"\theta", r"\arcsin(\sin\theta)", False),
        # relations and their variables
        ("x=3", "3=x", True),
        ("5", "5=x", True),
        ("y=2x+3", "2x+3=y", True),
        ("(1,2)", "2=y, 1=x", True),
        ("y=2x", r"x=\frac{y}{2}", True),
        ("y=x+z", "x=y-z", True),
        ("x>2, y>3", "3<y, 2<x", True),
        ("1<x<2, 3<y<4", "4>y>3, 2>x>1", True),
        (r"x<1\text{ or }x>2", r"x>2\text{ or }x<1", True),
        ("x>2, y>2, y>3", "y>3, y>2, x>2", True),
        ("x=3", "3=y", False),
        ("5", "6=x", False),
        ("10=2x", "5=x", False),
        ("y=2x", "x=2y", False),
        ("y=2x", r"x=-\frac{y}{2}", False),
        ("y=2x", r"X=\frac{y}{2}", False),
        ("2x-y=0", "2X-Y=0", False),
        ("y=x^2", r"x=\sqrt{y}", False),
        (r"\angle ABC=90", r"\angle BAC=90", False),
        ("x>2, y>3", "x>3, y>2", False),
        ("x>2, y>2", "x>2, x>2", False),
        ("x>2, y>2, y>3", "x>2, x>3, y>2", False),
        ("x>2, y>3, z=4", "x>3, y>2, z=4", False),
        ("(x>2, y>3)", "(y>2, x>3)", False),
        ("1<x<2, 3<y<4", "1<y<2, 3<x<4", False),
        (r"x<1\text{ or }x>2", r"x<1\text{ or }y>2", False),
    ],
)
def test_either_way_round(gold: str, answer: str, same: bool) -> None:
    assert equal(gold, answer, shared_pool()) is same
    assert equal(answer, gold, shared_pool()) is same


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        (r"1,000\pi", r"1000\pi", True),
        ("1000x", "1,000x", True),
        (r"12000\sqrt2", r"12,000\sqrt{2}", True),
        ("12,345,678.5x", "12345678.5x", True),
        (r"\frac{1,000\pi}{3}", r"\frac{1000\pi}{3}", True),
        ("f(x)=1,000x", "1000x", True),
        (r"1,000\pi", "1,000x", False),
        (r"1,000\pi", r"1,000\pi^2", False),
        (r"12,000\pi", r"12,000\sqrt{2}", False),
        (r"\pi", r"0,001\pi", False),
        (r"1000\pi", r"1, 000\pi", False),
        (r"1000\pi", r"10,00\pi", False),
        (r"1000\pi", r"1,0000\pi", False),
        (r"1000\pi", r"(1,000\pi)", False),
        (r"1200\pi", r"\{1,200\pi\}", False),
        ("f(1,200)+1", "f(1200)+1", False),
        ("a_{1,100}+1", "a_{1100}+1", False),
        ("2400", "2(1,200)", False),
    ],
)
def test_a_comma_of_thousands_within_a_formula(gold: str, answer: str, same: bool) -> None:
    assert equal(gold, answer, shared_pool()) is same


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        (r"1&2\\3&4\\5&6", r"1&2\\3&4\\5&6\\", True),
        (r"1&2\\3&4\\5&6", r"1&2\\3\\4&5&6", False),
        (r"1&2\\3&4", r"1&2&3\\4", False),
        (r"1&2\\3&4", r"1&2\\3&4&5", False),
        (r"1&2\\3&0", r"1&2\\3", False),
        (r"1&2", r"1\\2", False),
        (r"1&2&3\\4&5&6", r"1&2\\3&4\\5&6", False),
    ],
)
def test_rows_of_a_matrix_are_equally_long(gold: str, answer: str, same: bool) -> None:
    one, other = (rf"\begin{{pmatrix}}{rows}\end{{pmatrix}}" for rows in (gold, answer))
    assert equal(one, other, shared_pool()) is same


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        ("Zürich", r"\text{zürich}.", True),
        ("São Paulo", "são paulo", True),
        ("Île-de-France", "Île-de-France", True),
        ("Москва", "москва", True),
        ("東京", "東京", True),
        ("Zürich, Genève", "Genève, Zürich", True),
        ("Zürich", "Zurich", False),
        ("東京", "京都", False),
        ("São Paulo", "São Paulo 2", False),
    ],
)
def test_words_of_other_alphabets(gold: str, answer: str, same: bool) -> None:
    assert shared_pool().unreadable({"it": gold}) == {}
    assert equal(gold, answer, shared_pool()) is same


@pytest.mark.parametrize("formula", ["α", "ℝ", "xⁿ", "é+1", "5é", "का"])  # the last has a sign that is no letter
def test_letters_of_formulas_are_no_words(formula: str) -> None:
    assert not is_words(formula)
