"""The tokenizer of the sheets."""

from transformers import PreTrainedTokenizerFast

from oar.tasks.embedded.tokenizer import word_level_tokenizer
from oar.tasks.sheets import language


def build_tokenizer(max_length: int = 1024) -> PreTrainedTokenizerFast:
    """A token for every word of `language`; the same for all sheets."""
    return word_level_tokenizer(language.words(), max_length)
