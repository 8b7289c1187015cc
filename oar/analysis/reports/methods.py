"""How methods are called and drawn, in which order they stand, and which of them are no methods but controls.

LOOKS is the one table of names, colours and markers: every picture, page and dashboard reads it. Most colours are Okabe and
Ito's; where two methods share a colour they are of one family and differ in the marker.
"""

import re
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from oar.names import CONTROLS as OWN_CONTROLS

BASE, GRPO = "base", "grpo"
METHOD, CONTROL, ORACLE = "method", "control", "oracle"
KINDS = (METHOD, CONTROL, ORACLE)
# They keep the learner and take from the credit what it is said to know: a gain that these have too is not credit's.
CONTROLS = ("entropy", "random", "position", "shuffled", "inverted", "random_reward")
# A method under method.control has the control's name behind its own, and is a control as well.
OF_A_METHOD = tuple(f"_{name}" for name in OWN_CONTROLS if name != "none")
ORACLES = "oracle_"  # they are told by the task what no method knows

GREY, BLUE, ORANGE, GREEN, VERMILLION = "#7f7f7f", "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PINK, BLACK, INDIGO, BROWN = "#56B4E9", "#CC79A7", "#000000", "#332288", "#8C510A"
# Of what is not in LOOKS (new methods, levels of a setting, models): none of these colours is there.
OTHER_COLOURS = ("#882255", "#44AA99", "#999933", "#CC6677", "#117733", "#6699CC", "#AA4499", "#661100")
# matplotlib's; < and > stand for an interval that goes on beyond the edge
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "p", "h", "d", "8", "H")


class Look(NamedTuple):
    """How something is called in text and drawn in pictures; controls and oracles are drawn hollow and dashed."""

    label: str
    colour: str
    marker: str
    kind: str = METHOD


LOOKS = {
    BASE: Look("Base model", GREY, "s"),
    GRPO: Look("GRPO", BLUE, "o"),
    "oar_g": Look("OAR-G", ORANGE, "^"),
    "oar_p": Look("OAR-P", GREEN, "D"),
    "oar_gn": Look("OAR-GN", VERMILLION, "v"),
    "oar_ga": Look("OAR-GA", VERMILLION, "<"),
    "oar_p_routes": Look("OAR-P routes", SKY, "P"),
    "oar_p_window": Look("OAR-P window", PINK, "X"),
    "oar_p_budget": Look("OAR-P budget", BLACK, "p"),
    "oar_p_window_budget": Look("OAR-P window + budget", BROWN, "d"),
    "plain": Look("OAR-P plain", GREY, "D"),
    "oar_p_random_token": Look("OAR-P random token", ORANGE, "h"),
    "oar_p_resampled": Look("OAR-P resampled", BLUE, "h"),
    "oar_p_knockout": Look("OAR-P knock-out", VERMILLION, "h"),
    "oar_p_mean_embedding": Look("OAR-P mean embedding", PINK, "h"),
    "oar_p_text": Look("OAR-P text", SKY, "h"),
    "oar_p_surprisal": Look("OAR-P × surprisal", GREEN, "*"),
    "oar_gn_surprisal": Look("OAR-GN × surprisal", VERMILLION, "*"),
    "oar_p_last": Look("OAR-P last token", SKY, "D"),
    "oar_p_reward": Look("OAR-P reward model", BROWN, "D"),
    "oar_p_reward_knockout": Look("OAR-P reward model, knock-out", BROWN, "h"),
    "oar_p_reward_resampled": Look("OAR-P reward model, resampled", BROWN, "p"),
    "oar_g_reward": Look("OAR-G reward model", BROWN, "^"),
    "oar_gn_reward": Look("OAR-GN reward model", BROWN, "v"),
    "oar_p_reward_surprisal": Look("OAR-P reward model × surprisal", BROWN, "*"),
    "oar_p_reference": Look("OAR-P reference", INDIGO, "D"),
    "oar_gn_reference": Look("OAR-GN reference", INDIGO, "X"),
    "oar_p_reference_answer": Look("OAR-P right answer", INDIGO, "P"),
    "oar_p_position": Look("OAR-P position", GREEN, "s"),  # beside OAR-P shuffled, which has OAR-P's marker
    "oar_s": Look("OAR-S", PINK, "o"),
    "oar_s_routes": Look("OAR-S routes", PINK, "P"),
    "oar_s_gradient": Look("OAR-S gradient", PINK, "^"),
    "oar_s_attention": Look("OAR-S attention", PINK, "<"),
    "oar_s_advantage": Look("OAR-S advantage", PINK, "D"),
    "oar_s_outcome": Look("OAR-S outcome", PINK, "*"),
    "oar_s_outcome_even": Look("OAR-S outcome even", PINK, "d"),  # beside OAR-S outcome shuffled, which has its marker
    "surprisal": Look("surprisal", BLACK, "*"),
    "uniform": Look("uniform (chance)", GREY, "o"),
    "best_by_class": Look("best by class", GREY, "*"),
    "entropy": Look("entropy", BLACK, "o"),
    "random": Look("random", GREY, "^"),
    "position": Look("position", SKY, "s"),
    "shuffled": Look("shuffled", BLACK, "v"),
    "inverted": Look("inverted", BLACK, "^"),
    "random_reward": Look("random_reward", GREY, "X"),
    "oracle_causal": Look("oracle_causal", INDIGO, "s"),
    "oracle_causal_boost": Look("oracle_causal_boost", INDIGO, "^"),
    "oracle_causal_suppress": Look("oracle_causal_suppress", INDIGO, "v"),
    "oracle_error": Look("oracle_error", PINK, "s"),
    "oracle_error_boost": Look("oracle_error_boost", PINK, "p"),
    "oracle_error_suppress": Look("oracle_error_suppress", PINK, "v"),
    "oracle_written": Look("oracle_written", SKY, "o"),
    "oracle_written_boost": Look("oracle_written_boost", SKY, "^"),
}
_SET_TO = re.compile(r"(window|routes|budget)_?(\d+)_?")  # a variant of OAR-P at a value, as benchmarks name it


def kind(method: str) -> str:
    """One of KINDS; the base model and GRPO, which the others are compared with, count as methods."""
    if method in CONTROLS or method.endswith(OF_A_METHOD):
        return CONTROL
    return ORACLE if method.startswith(ORACLES) else METHOD


def method_order(method: str) -> tuple[int, int, str]:
    """The order of LOOKS, then everything else by name; after all methods the controls, then the oracles."""
    known = list(LOOKS).index(method) if method in LOOKS else len(LOOKS)
    return KINDS.index(kind(method)), known, method


def look(method: str) -> Look:
    """Its entry in LOOKS; a variant at a value, as `routes4`, has its family's with the value in the label, and a method under
    a control the method's with the control in the label.

    What is not in the table has a colour that nothing in it has; colour and marker follow from the name alone.
    """
    if values := _values(method):
        return family(method)._replace(label=f"OAR-P {', '.join(' '.join(value) for value in values)}")
    found = LOOKS.get(method)
    if found is None and method.endswith(OF_A_METHOD):
        of, _, control = method.rpartition("_")
        found = look(of)._replace(label=f"{label(of)} {control}")
    elif found is None:
        number = zlib.crc32(method.encode())
        colour, marker = number % len(OTHER_COLOURS), number // len(OTHER_COLOURS) % len(MARKERS)
        found = Look(method, OTHER_COLOURS[colour], MARKERS[marker])
    of_kind = kind(method)
    return found if of_kind == METHOD else found._replace(label=f"{found.label} ({of_kind})", kind=of_kind)


def family(method: str) -> Look:
    """The look of all variants that differ from it in a value: of `budget_8_window_8` that of `oar_p_window_budget`."""
    names = [name for name, _ in _values(method)]
    return look("_".join(["oar_p", *names])) if names else look(method)


def _values(method: str) -> list[tuple[str, str]]:
    """(window, 8), (budget, 16) of `window8_budget16` or `budget_16_window_8`; nothing of what is no variant at a value."""
    return sorted(_SET_TO.findall(method), reverse=True) if not _SET_TO.sub("", method) else []


def looks_of(methods: Sequence[str]) -> dict[str, Look]:
    """The looks of methods by name, in this order."""
    return {method: look(method) for method in methods}


def numbered(names: Sequence[str]) -> dict[str, Look]:
    """Looks by place, for what is no method: levels of a setting, models, kinds of tokens. No colour of LOOKS is among them."""
    return {
        name: Look(
            name, OTHER_COLOURS[at % len(OTHER_COLOURS)], MARKERS[(at + at // len(OTHER_COLOURS)) % len(MARKERS)]
        )
        for at, name in enumerate(dict.fromkeys(names))
    }


def label(method: str) -> str:
    """How a method is called in tables and pictures; what is none is marked."""
    return look(method).label


def listed(names: Sequence[str]) -> str:
    """`a, b and c`, or `none`, by how methods are called."""
    *first, last = [label(name) for name in names] or ["none"]
    return f"{', '.join(first)} and {last}" if first else last
