"""Answers as text: one way of writing LaTeX, whole numbers, fractions, words. Nothing here needs sympy."""

import re
from fractions import Fraction

# Longer answers are not read at all: of 11,973 gold answers of the benchmarks the longest has 159 characters.
MAX_CHARACTERS = 1000

_UNICODE = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ", "°": r"^\circ ",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "±": r"\pm ", "∓": r"\mp ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ",
    "∅": r"\emptyset ", "²": "^2", "³": "^3", "½": r"\frac{1}{2}", "€": "", "£": "", "\u00a0": " ",
}  # fmt: skip
_SYNONYMS = (
    (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
    (r"\\(?:left|right)\s*\.", ""),
    (r"\\(?:left|right|[bB]igg?[lrm]?)(?![a-zA-Z])\s*", ""),
    (r"\\(?:displaystyle|textstyle|limits|rm|bf|it)(?![a-zA-Z])", ""),
    (r"(?<=\d),\\!\s*(?=\d)|\\!|\\,(?=\d{3}(?!\d))", ""),  # 10,\!080 and 10\,080
    (r"(?<!\\)\\[,;:> ]|~|\\q?quad(?![a-zA-Z])|\\(?:hspace|[hv]?phantom)(?:\s*\{[^{}]*\}|(?![a-zA-Z]))", " "),
    (r"\\frac\s*(\d|[a-zA-Z]|\\[a-zA-Z]+)\s*(\d|[a-zA-Z]|\\[a-zA-Z]+)", r"\\frac{\1}{\2}"),
    (r"\\frac\s*(\{[^{}]*\})\s*(\d|[a-zA-Z]|\\[a-zA-Z]+)", r"\\frac\1{\2}"),
    (r"\\frac\s*(\d|[a-zA-Z]|\\[a-zA-Z]+)\s*(?=\{)", r"\\frac{\1}"),
    (r"\{,\}", "\x00"),  # a comma within a number
    (r"\\(?:mbox|text(?:bf|it|rm|normal|sf|tt)|emph|math(?:rm|bf|it|sf)|operatorname\*?)\s*(?=\{)", r"\\text"),
    (r"\\text\s+\{", r"\\text{"),
    (r"\\lbrace(?![a-zA-Z])", r"\\{"),
    (r"\\rbrace(?![a-zA-Z])", r"\\}"),
    (r"\\leq?(?:slant)?(?![a-zA-Z])|<=", r"\\le "),
    (r"\\geq?(?:slant)?(?![a-zA-Z])|>=", r"\\ge "),
    (r"\\lt(?![a-zA-Z])", "<"),
    (r"\\gt(?![a-zA-Z])", ">"),
    (r"\\neq(?![a-zA-Z])", r"\\ne "),
    (r"\\varnothing(?![a-zA-Z])|\\\{\s*\\\}", r"\\emptyset "),
    (r"\^\s*\{?\s*(?:\\circ(?![a-zA-Z])|\\degree(?![a-zA-Z]))\s*\}?|\\degree(?![a-zA-Z])", ""),
    (r"\\\$|\$", ""),
    (r"\\%|%|\\?\s*(?:\\text\{\s*)?\bpercent\b(?:\s*\})?", "%"),
    (r"\\text\{\s*,?\s*(?:and|or)\s*,?\s*\}|(?<=[\s\d}])(?:and|or)(?=[\s\d])", ","),
    (r"\\text\{\s*,\s*(?:and|or)?\s*\}", ","),
    (r"\\text\{\s*\}", " "),
)  # fmt: skip
_COMPILED = tuple((re.compile(pattern), new) for pattern, new in _SYNONYMS)
_COMMA = re.compile(r",(?:\s*,)+")
_SPACES = re.compile(r"\s+")

# The units that problems ask for, where a completion writes them without \text.
_UNIT_WORDS = (
    "degrees? radians? units? dollars? cents? bucks inch(?:es)? in feet foot ft yards? yd miles? mi mph meters? metres? m cm mm "
    "km centimeters? kilometers? grams? g kg kilograms? pounds? lbs? ounces? oz gallons? liters? litres? hours? hrs? minutes? "
    "mins? seconds? secs? days? weeks? months? years? people students? ways? square cubic sq"
)
_UNITS = re.compile(
    r"(?<=[\d}.)])\s*(?:(?:" + "|".join(_UNIT_WORDS.split()) + r")\b\.?\s*)+(?:/\s*[a-z]+)?(?:\^\s*\{?[23]\}?)?\s*$"
)
_UNIT_TEXT = re.compile(
    r"(?<=[^\s,;=<>(\[{\\+*/^_-])\s*\\text\{[^{}]*[a-zA-Z][^{}]*\}\s*(?:\^\s*\{?\s*\d\s*\}?)?(?:/\s*\\text\{[^{}]*\})?\s*$"
)
_CONDITION = re.compile(r"\\text\{[^{}]*\b(?:or|and|if|not|no|except|more|less|least|most)\b[^{}]*\}")  # no unit
_ORDINAL = re.compile(r"(?<=\d)\s*\^?\s*\{?\s*(?:\\text\s*\{\s*)?(?:st|nd|rd|th)\s*\}?\s*\}?$")
_REALS = re.compile(r"(?:\\text\{)?\s*all real numbers\s*\}?|\\mathbb\s*(?:\{R\}|R)")
_WHOLE_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_NUMBER_WORDS = {
    word: str(value)
    for value, word in enumerate("zero one two three four five six seven eight nine ten eleven twelve".split())
}
_PROSE = re.compile(r"[A-Za-z][A-Za-z' .,-]*[A-Za-z.]|[A-Za-z]+ \d{1,4}")
_WORD = re.compile(r"[A-Za-z]{3,}")

_INTEGER = r"\d+|\d{1,3}(?:,\d{3})+"
_DECIMAL = rf"(?:{_INTEGER})?\.\d+|(?:{_INTEGER})\.?"
_WRITTEN = re.compile(rf"\s*-?\s*(?:{_INTEGER})\s*")
_BLANKS = re.compile(r"(?<!\d)\s+|\s+(?!\d)")
_SIGNED = re.compile(r"([-+]?)\s*(.*)", re.DOTALL)
_PLAIN = re.compile(_DECIMAL)
_FRACTION = re.compile(
    rf"(?:({_INTEGER})\s*)?\\frac\s*(?:\{{\s*(-?\s*\d+)\s*\}}|\s*(\d))\s*(?:\{{\s*(-?\s*\d+)\s*\}}|(\d))"
)
_REPEATING = re.compile(r"(\d*)\.(\d*)\\overline\s*\{(\d+)\}")
_SLASHED = re.compile(r"(?:(\d+)\s+)?(\d+)\s*/\s*(\d+)")


def whole_number(answer: str) -> str | None:
    """The canonical digits of a whole number (`1,024` and ` 01024 ` are `1024`), or None. Commas may stand anywhere.

    As text: a degenerate completion may hold more digits than int() takes.
    """
    compact = "".join(answer.split())
    sign, digits = ("-", compact[1:]) if compact.startswith("-") else ("", compact)
    digits = digits.replace(",", "")
    if not digits.isdecimal():
        return None
    number = digits.lstrip("0")
    return sign + number if number else "0"


def same_text(gold: str, answer: str) -> bool:
    """Whole numbers as numbers, anything else as text without blanks: the strictest comparison."""
    numbers = whole_number(gold), whole_number(answer)
    return numbers[0] == numbers[1] if all(numbers) else "".join(gold.split()) == "".join(answer.split())


def written_number(answer: str) -> str | None:
    """Like `whole_number`, but None unless blanks and commas stand where a number has them: `7,5,3` is a list."""
    return whole_number(answer) if _WRITTEN.fullmatch(answer) else None


def compact(text: str) -> str:
    """Without the blanks that mean nothing: `2 1/2` keeps its own."""
    return _BLANKS.sub("", text.strip())


def normalise(answer: str) -> str:
    """One way of writing: sizes, spacing, synonyms, currency, degrees and units gone, `\\text` for all its kin."""
    for old, new in _UNICODE.items():
        answer = answer.replace(old, new)
    answer = answer.replace(r"\(", " ").replace(r"\)", " ") if answer.lstrip().startswith(r"\(") else answer
    answer = answer.strip().removeprefix(r"\[").removesuffix(r"\]")
    answer = re.sub(r"^\s*\\approx\b", "", answer)
    for pattern, new in _COMPILED:
        answer = pattern.sub(new, answer)
    answer = re.sub(r"(?<=\d),?\x00", "", answer).replace("\x00", ",")
    answer = _COMMA.sub(",", _SPACES.sub(" ", answer)).strip()
    answer = _strip_end(answer)
    if (whole := _WHOLE_TEXT.fullmatch(answer)) is not None:
        answer = _strip_end(re.sub(r",?\s*\b(?:and|or)\b\s*", ",", whole[1].strip()) if "," in whole[1] else whole[1])
    answer = _ORDINAL.sub("", answer)
    for _ in range(2):
        if _CONDITION.search(answer) is None:
            answer = _strip_end(_UNITS.sub("", _UNIT_TEXT.sub("", answer)))
    if _REALS.fullmatch(answer):
        return r"(-\infty,\infty)"
    return _NUMBER_WORDS.get(answer.casefold(), answer)


def _strip_end(answer: str) -> str:
    return re.sub(r"(?:[\s.,;:]|\\\\)+$", "", answer).strip()


def fraction(text: str) -> Fraction | None:
    """The exact value of an integer, decimal (repeating ones too), fraction or mixed number in normalised text, else None."""
    sign, body = _SIGNED.fullmatch(text.strip()).groups()  # type: ignore[union-attr]
    value: Fraction | None = None
    if _PLAIN.fullmatch(body):
        value = Fraction(body.replace(",", "").rstrip("."))
    elif (match := _FRACTION.fullmatch(body)) is not None:
        above, below = (match[2] or match[3]).replace(" ", ""), (match[4] or match[5]).replace(" ", "")
        value = _mixed(match[1], above, below)
    elif (match := _REPEATING.fullmatch(body)) is not None:
        once, again = f"{match[1]}{match[2]}", match[3]
        value = Fraction(int(once + again) - int(once or "0"), 10 ** len(match[2]) * (10 ** len(again) - 1))
    elif (match := _SLASHED.fullmatch(body)) is not None:
        value = _mixed(match[1], match[2], match[3])
    return None if value is None else -value if sign == "-" else value


def _mixed(whole: str | None, above: str, below: str) -> Fraction | None:
    if int(below) == 0:
        return None
    return int((whole or "0").replace(",", "")) + Fraction(int(above), int(below))


def is_words(text: str) -> bool:
    """Whether a normalised answer is prose (`Evelyn`, `October 30`, `\\text{(E)}`) and no formula."""
    if text.startswith(r"\text{") and not re.search(r"[\d\\^_=+]", _WHOLE_TEXT.sub("", text)):
        return True
    return _PROSE.fullmatch(text) is not None and _WORD.search(text) is not None


def words(text: str) -> str:
    """Letters and digits only, without case: `\\text{(E)}` and `e` are the same."""
    return "".join(re.findall(r"\w", re.sub(r"\\text(?=\{)", "", text))).casefold()
