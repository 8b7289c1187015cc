"""Answers as text: one way of writing LaTeX, whole numbers, fractions, words. Nothing here needs sympy."""

import re
from fractions import Fraction

# Longer answers are not read at all: of 11,973 gold answers of the benchmarks the longest has 159 characters.
MAX_CHARACTERS = 1000

# What a number may be counted in.
SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}

_UNICODE = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ", "°": r"^\circ ",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "±": r"\pm ", "∓": r"\mp ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ",
    "∅": r"\emptyset ", "²": "^2", "³": "^3", "½": r"\frac{1}{2}", "€": "", "£": "", "\u00a0": " ",
}  # fmt: skip
_SYNONYMS = (
    (r"(?<![a-zA-Z\\])sqrt(?![a-zA-Z])", "√"),
    (r"√\s*(?:\(([^()]*)\)|(\d+(?:\.\d+)?))", r"\\sqrt{\1\2}"),
    (r"√", r"\\sqrt "),
    (r"(?<![a-zA-Z\\])pi(?![a-zA-Z])", r"\\pi "),
    (r"\\(?:boldsymbol|bm|underline)\s*(?=\{)|\\(?:text)?color\s*\{[^{}]*\}", ""),
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
    (r"\\text\{\s*([ei])\s*\}", r" \1"),  # upright constants
    (rf"\\text\{{\s*((?:{'|'.join(SCALES)})\b[^{{}}]*)\}}", r" \1"),
)  # fmt: skip
_COMPILED = tuple((re.compile(pattern), new) for pattern, new in _SYNONYMS)
_COMMA = re.compile(r",(?:\s*,)+")
_SPACES = re.compile(r"\s+")

# The units that problems ask for, where a completion writes them without \text.
_UNIT_WORDS = (
    "degrees? radians? units? dollars? cents? bucks inch(?:es)? feet foot ft yards? yd miles? mi mph meters? metres? cm mm "
    "km centimeters? kilometers? grams? kg kilograms? pounds? lbs? ounces? oz gallons? liters? litres? hours? hrs? minutes? "
    "mins? seconds? secs? days? weeks? months? years? people students? ways? square cubic sq"
)
_UNITS = re.compile(
    r"(?<=[\d}.)])\s*(?:(?:" + "|".join(_UNIT_WORDS.split()) + r")\b\.?\s*)+(?:(?<=\s)(?:in|m)\b\.?\s*)?"
    r"(?:/\s*[a-z]+)?(?:\^\s*\{?[23]\}?)?\s*$"
)
# These may be variables: they are units after a blank, and after a number without other variables.
_LETTER_UNIT = re.compile(
    r"((?:[^a-zA-Z]|\\[a-zA-Z]+)*[\d}.)])\s+(?:in|m|g)\b\.?(?:/\s*[a-z]+)?(?:\^\s*\{?[23]\}?)?\s*"
)
# Of single upright letters only those of metres, grams, seconds, hours, litres, Celsius and Fahrenheit.
_UNIT_TEXT = re.compile(
    r"(?<=[^\s,;=<>(\[{\\+*/^_-])\s*\\text\{(?!\s*(?![mgshlLCF])[a-zA-Z]\s*\})([^{}]*[a-zA-Z][^{}]*)\}"
    r"\s*(?:\^\s*\{?\s*\d\s*\}?)?(?:/\s*\\text\{[^{}]*\})?\s*$"
)
_CONDITION = re.compile(r"\\text\{[^{}]*\b(?:or|and|if|not|no|except|more|less|least|most)\b[^{}]*\}")  # no unit
_ORDINAL = re.compile(r"(?<=\d)\s*\^?\s*\{?\s*(?:\\text\s*\{\s*)?(?:st|nd|rd|th)\s*\}?\s*\}?$")
_REALS = re.compile(r"(?:\\text\{)?\s*all real numbers\s*\}?|\\mathbb\s*(?:\{R\}|R)")
_HALF_OF_DAY = re.compile(r"(?<![A-Za-z])([ap])\.?\s*m\.?[\s}.$]*$", re.IGNORECASE)
_WHOLE_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
    "nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_NUMBER_WORDS = {word: str(value) for value, word in enumerate(_ONES)}
_NUMBER_WORDS |= {word: str(10 * value) for value, word in enumerate(_TENS, start=2)}
_NUMBER_WORDS |= {
    f"{ten}{between}{one}": str(10 * tens + ones)
    for tens, ten in enumerate(_TENS, start=2)
    for ones, one in enumerate(_ONES[1:10], start=1)
    for between in "- "
}
_NUMBER_WORDS |= {f"{one} hundred": f"{value}00" for value, one in enumerate(_ONES[1:10], start=1)}

# `18 red apples` and `1.5 million dollars`: a number and what it counts.
_COUNTED = re.compile(r"(-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:/\d+)?)((?: [a-z]{3,}){1,3})")
_CHANGES_THE_NUMBER = re.compile(  # so that it is no plain count
    r"\b(?:and|not|except|more|less|fewer|least|most|times|plus|minus|over|under|out|mod|modulo|base|point|squared|cubed|"
    r"factorial|half|halves|(?:(?:[a-z]+ty|one|ten|hundred)[- ])?(?:third|quarter|"
    r"(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|[a-z]+teen|[a-z]+tie|hundred|thousand|[a-z]+illion)th)s?)\b",
    re.IGNORECASE,
)
_THOUSANDS = re.compile(r"-?\d{1,3}(?: \d{3})+")  # 10 080
_PROSE = re.compile(r"[A-Za-z][A-Za-z' .,-]*[A-Za-z.]|[A-Za-z]+ \d{1,4}")
_WORD = re.compile(r"[A-Za-z]{3,}")
# A letter of another alphabet, between letters alone: Greek ones, raised ones and those like ℝ are of formulas, and signs that
# are no letters, such as the vowels of Hindi, would be lost in `words`.
_OTHER_PROSE = re.compile(
    r"(?=.*(?![\u02b0-\u02ff\u0370-\u03ff\u1d00-\u1dbf\u2000-\u2bff\U0001d400-\U0001d7ff])[^\W\d_\x00-\x7f])"
    r"[^\W\d_](?:[^\W\d_]|[' .-])*"
)
_HYPHEN = re.compile(r"(?<=[A-Za-z]{3})-(?=[A-Za-z]{3})")  # any other is a minus

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
_SCIENTIFIC = re.compile(r"(\d+(?:\.\d+)?|\.\d+)[eE]([-+]?\d{1,3})")
_SLASHED = re.compile(r"(?:(\d+)\s+)?(\d+)\s*/\s*(\d+)")


def same_text(gold: str, answer: str) -> bool:
    """Whole numbers as numbers, anything else as text without blanks: the strictest comparison."""
    # A gold list is none (`14 , 178`); in an answer a tokenizer of words leaves blanks around the comma of 1,024.
    written = "".join(answer.split())
    numbers = written_number(gold), written_number(written)
    return numbers[0] == numbers[1] if all(numbers) else "".join(gold.split()) == written


def written_number(answer: str) -> str | None:
    """The canonical digits of a whole number (`1,024` and ` 01024 ` are `1024`); None for anything else: `7,5,3` is a list.

    As text: a degenerate completion may hold more digits than int() takes.
    """
    if _WRITTEN.fullmatch(answer) is None:
        return None
    signed = "".join(answer.split()).replace(",", "")
    digits = signed.removeprefix("-").lstrip("0")
    return ("-" if signed.startswith("-") else "") + digits if digits else "0"


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
            answer = _strip_end(_UNITS.sub("", _UNIT_TEXT.sub(_without_unit, answer)))
    if (measured := _LETTER_UNIT.fullmatch(answer)) is not None:
        answer = measured[1]
    if _THOUSANDS.fullmatch(answer):
        answer = answer.replace(" ", "")
    answer = _count(answer)
    if _REALS.fullmatch(answer):
        return r"(-\infty,\infty)"
    return _NUMBER_WORDS.get(answer.casefold(), answer)


def _without_unit(found: re.Match[str]) -> str:
    """Nothing for a unit (`\\text{ cm squared}`), but what came where the words say another number (`2\\text{ thirds}`)."""
    return found[0] if _CHANGES_THE_NUMBER.match(found[1].lstrip()) else ""


def half_of_day(answer: str) -> str | None:
    """`a` or `p` where an answer as written ends in `a.m.` or `p.m.`, in any spelling; `normalise` takes them for units."""
    found = _HALF_OF_DAY.search(answer)
    return None if found is None else found[1].casefold()


def _count(answer: str) -> str:
    """A number and what it counts without the latter (`3 million` of `3 million people`), else what came."""
    counted = _COUNTED.fullmatch(answer)
    if counted is None or _CHANGES_THE_NUMBER.search(counted[2]):
        return answer
    scale = counted[2].split()[0]
    return f"{counted[1]} {scale}" if scale in SCALES else counted[1]


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
    elif (match := _SCIENTIFIC.fullmatch(body)) is not None:
        value = Fraction(match[1]) * Fraction(10) ** int(match[2])
    return None if value is None else -value if sign == "-" else value


def _mixed(whole: str | None, above: str, below: str) -> Fraction | None:
    if int(below) == 0:
        return None
    return int((whole or "0").replace(",", "")) + Fraction(int(above), int(below))


def is_words(text: str) -> bool:
    """Whether a normalised answer is prose (`Evelyn`, `October 30`, `\\text{(E)}`) and no formula."""
    if text.startswith(r"\text{") and not re.search(r"[\d\\^_=+]", _WHOLE_TEXT.sub("", text)):
        return True
    if _OTHER_PROSE.fullmatch(text):
        return True
    joined = _HYPHEN.sub("", text)
    return "-" not in joined and _PROSE.fullmatch(text) is not None and _WORD.search(text) is not None


def words(text: str) -> str:
    """Letters and digits only, without case: `\\text{(E)}` and `e` are the same."""
    return "".join(re.findall(r"\w", re.sub(r"\\text(?=\{)", "", text))).casefold()
