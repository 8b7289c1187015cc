"""How a question becomes a prompt, where a completion ends and what announces its answer: templates/, one file each."""

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from oar.common.errors import ConfigError, DataError
from oar.config.evaluation import Sampling
from oar.method.segments import BOX, HASH, Markers

FOLDER = Path(__file__).with_name("templates")  # within the package, so that they come with it
QUESTION = "{question}"
# Qwen2.5 base models end with one of these, whichever their config calls EOS (151643 and 151645); a vocabulary without them has
# its own EOS alone.
END_TOKENS = ("<|endoftext|>", "<|im_end|>")
_MARKERS: dict[str, tuple[str, ...]] = {"boxed": (BOX,), "hash": (HASH, BOX)}


@dataclass
class Template:
    """What a file of templates/ says; each key is explained there.

    Raises ConfigError for an unknown answer form, or where the question has no place.
    """

    name: str
    answer_form: str
    chat: bool
    text: str
    system: str | None = None
    user: str | None = None
    stop: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.answer_form not in _MARKERS:
            raise ConfigError(f"template.answer_form must be one of boxed, hash, but is {self.answer_form!r}.")
        for key, used in (("text", True), ("user", self.chat)):
            if used and (getattr(self, key) or "").count(QUESTION) != 1:
                raise ConfigError(f"template.{key} must hold {QUESTION} once, but is {getattr(self, key)!r}.")
        if not all(self.stop):
            raise ConfigError("template.stop must hold no empty string: it would end every completion at once.")

    @property
    def markers(self) -> Markers:
        """What announces an answer in a completion: the form asked for, first."""
        return _MARKERS[self.answer_form]

    @property
    def marker(self) -> str:
        """The form asked for."""
        return _MARKERS[self.answer_form][0]

    def render(self, question: str, tokenizer: PreTrainedTokenizerBase) -> str:
        """The prompt as text. Raises DataError where the question holds one of the tokenizer's special tokens."""
        found = [token for token in tokenizer.all_special_tokens if token in question]
        if found:
            raise DataError(f"A question must not hold special tokens, but one holds {found[0]!r}: {question[:80]!r}.")
        if not self._uses_chat(tokenizer):
            return self.text.replace(QUESTION, question)
        messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        messages.append({"role": "user", "content": (self.user or "").replace(QUESTION, question)})
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def encode(self, question: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """The prompt's token ids; a chat template brings its own special tokens."""
        special = not self._uses_chat(tokenizer)
        return list(tokenizer.encode(self.render(question, tokenizer), add_special_tokens=special))

    def without_instruction(self) -> "Template":
        """The same with the question alone, in a chat where there is one."""
        return replace(self, system=None, user=QUESTION, text=QUESTION)

    def stop_ids(self, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """Ids that end a completion, ascending: the tokenizer's EOS and every end token it knows."""
        vocabulary = tokenizer.get_vocab()
        known = {vocabulary[token] for token in END_TOKENS if token in vocabulary}
        return sorted(known | ({tokenizer.eos_token_id} if tokenizer.eos_token_id is not None else set()))

    def ending(self, sampling: Sampling, tokenizer: PreTrainedTokenizerBase) -> Sampling:
        """The same sampling, ended where a completion of this template ends."""
        return replace(sampling, stop=tuple(self.stop), stop_token_ids=tuple(self.stop_ids(tokenizer)))

    def digest(self, tokenizer: PreTrainedTokenizerBase) -> str:
        """Eight hexadecimal digits to go with every number: of the prompt as rendered for this tokenizer, and how it ends.

        The tokenizer's chat template counts, the template's name does not.
        """
        what = [self.render("?", tokenizer), self.stop, self.stop_ids(tokenizer), self.answer_form]
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:8]

    def _uses_chat(self, tokenizer: PreTrainedTokenizerBase) -> bool:
        return self.chat and tokenizer.chat_template is not None


def load_template(name: str) -> Template:
    """The template of templates/`name`.yaml. Raises ConfigError where there is none, or it is not one."""
    known = {file.stem: file for file in sorted(FOLDER.glob("*.yaml"))}  # a name with a path in it is none of them
    if name not in known:
        raise ConfigError(f"template must be one of {', '.join(known)}, but is {name!r}.")
    path = known[name]
    from omegaconf import OmegaConf  # the embedded task has no template, and needs none of it
    from omegaconf.errors import OmegaConfBaseException

    try:
        template = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Template), OmegaConf.load(path)))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{path.name} does not fit: {str(error).splitlines()[0]}.") from error
    assert isinstance(template, Template)
    return template
