"""Do the credit methods of the field find the tokens that matter, and do they agree with exact OAR-P?"""

from collections.abc import Sequence

import pandas as pd

from experiments.signals.examined import Examined
from oar.analysis.signals.recall import recall_table


def method_signals(examined: Examined, *, pairs: Sequence[Sequence[str]], seed: int) -> pd.DataFrame:
    """`recall_table` of weights, of the size of signed advantages, and of importance; the first signal is the reference."""
    reference = next(iter(examined.importance))
    return recall_table(examined.importance, examined.truth, reference=reference, pairs=pairs, k=(), seed=seed)
