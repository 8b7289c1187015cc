"""Does a completion's final answer equal the gold answer?"""

from oar.segments import extract_answer


def verify(gold: str, completion: str, marker: str = "####") -> bool:
    """True where the answer behind the completion's last `marker` equals `gold`.

    Whole numbers are compared as numbers (`1,024` is `1024`), anything else as text without blanks. A completion
    without an answer is wrong.
    """
    answer = extract_answer(completion, marker)
    return answer is not None and _canonical(answer) == _canonical(gold)


def _canonical(answer: str) -> str:
    compact = "".join(answer.split())
    sign, digits = ("-", compact[1:]) if compact.startswith("-") else ("", compact)
    digits = digits.replace(",", "")
    if not digits.isdecimal():
        return compact
    number = digits.lstrip("0")  # as text: a degenerate completion may hold more digits than int() takes
    return sign + number if number else "0"
