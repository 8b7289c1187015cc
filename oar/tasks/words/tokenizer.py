"""The tokenizer of the word problems."""

from transformers import PreTrainedTokenizerFast

from oar.tasks.embedded.tokenizer import word_level_tokenizer
from oar.tasks.words import language


def build_tokenizer(max_length: int = 1024) -> PreTrainedTokenizerFast:
    """A token for every word of `language`, punctuation mark and digit."""
    return word_level_tokenizer(language.words(), max_length)
