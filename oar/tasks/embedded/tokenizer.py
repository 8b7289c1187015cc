"""Tokenizers of the embedded tasks, of words or of characters, as ordinary Hugging Face fast tokenizers."""

import re
import string
from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

PAD, EOS, BOS, UNKNOWN = "<pad>", "<eos>", "<bos>", "<unk>"  # ids 0, 1, 2, 3
_NO_CONTINUATION = "\u0000"  # WordPiece joins tokens with this prefix to the one before: no token has it


def word_level_tokenizer(words: Sequence[str], max_length: int) -> PreTrainedTokenizerFast:
    """Words, punctuation and single digits as tokens; encoding puts `<bos>` first.

    Decoding puts one blank before each token except between two digits. What is written before a token depends on
    nothing after it, so the text of a token prefix is a prefix of the text: span mapping relies on it.
    """
    core = _of_tokens(words)
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(individual_digits=True)]
    )
    core.decoder = decoders.Sequence(
        [
            decoders.WordPiece(prefix=_NO_CONTINUATION, cleanup=False),
            decoders.Fuse(),
            decoders.Replace(Regex(r"(?<=[0-9]) (?=[0-9])"), ""),
        ]
    )
    return _fast(core, max_length)


def character_tokenizer(words: Sequence[str], max_length: int) -> PreTrainedTokenizerFast:
    """Printable characters of ASCII, a line break and these `words` as tokens, in which a word is taken whole; `<bos>` first.

    Decoding puts nothing between tokens, so the text of a token prefix is a prefix of the text.
    """
    core = _of_tokens([*words, "\n", " ", *string.digits, *string.ascii_letters, *string.punctuation])
    pattern = "|".join([*map(re.escape, words), r"[\s\S]"])
    core.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    core.decoder = decoders.Fuse()
    return _fast(core, max_length)


def _of_tokens(words: Sequence[str]) -> Tokenizer:
    tokens = [PAD, EOS, BOS, UNKNOWN, *words]
    core = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token=UNKNOWN))
    core.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokens.index(BOS))]
    )
    return core


def _fast(core: Tokenizer, max_length: int) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=EOS,
        bos_token=BOS,
        unk_token=UNKNOWN,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
        # AutoTokenizer gives any qwen2 folder Qwen's own tokenizer class, which reads this vocabulary wrongly and says
        # nothing; an (empty) auto_map makes it take the class that wrote the folder.
        auto_map={"AutoTokenizer": [None, None]},
    )
