"""Cuts in prompts: for tokenizers of every kind, what is cut encodes like the whole, or is not cut."""

from collections.abc import Callable
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer, UnigramTrainer, WordLevelTrainer, WordPieceTrainer

from kvtool import embedded, tokens
from kvtool.segments import line_cuts, special_cuts
from kvtool.tokens import FastTokenizer

SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
CORPUS = ["hello world, don't say 123 words twice\n\n" * 3, 'été 漢字 {"a": 1}\nuser\nassistant Hello'] * 4
PIECES = [
    *SPECIALS,
    " ",
    "  ",
    "\n",
    "a\n",
    ".\n",
    "\r\n",
    "\t",
    "\xa0",
    "\x1c",
    "\u3000",
    "\u0301",
    "hello",
    "Wor",
    "1",
    "é",
    "漢字",
    "don't",
    "'s",
    "🙂",
    "\U0010fffd",
    "<mask>",
    "<TOOL>",
    "<|im",
    "x<s",
]


def byte_level(prefix: bool = False, **options: object) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix, **options)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return trained(made, BpeTrainer(vocab_size=330, special_tokens=SPECIALS, initial_alphabet=alphabet))


def trained(made: Tokenizer, trainer: object) -> Tokenizer:
    made.train_from_iterator(CORPUS, trainer)
    return made


def sentencepiece(scheme: str, unigram: bool = False) -> Tokenizer:
    """BPE as in Llama and Mistral, or Unigram as in T5 and XLM-R."""
    made = Tokenizer(models.Unigram() if unigram else models.BPE(unk_token="<unk>", fuse_unk=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    specials = ["<unk>", *SPECIALS]
    if unigram:
        return trained(made, UnigramTrainer(vocab_size=120, special_tokens=specials, unk_token="<unk>"))
    return trained(made, BpeTrainer(vocab_size=300, special_tokens=specials))


def old_llama() -> Tokenizer:
    """Without a pre-tokenizer: the normalizer marks the beginning of a text and its spaces."""
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return trained(made, BpeTrainer(vocab_size=300, special_tokens=["<unk>", *SPECIALS]))


def bert(normalizer: object = None) -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="<unk>"))
    made.normalizer = normalizer or normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return trained(made, WordPieceTrainer(vocab_size=200, special_tokens=["<unk>", *SPECIALS]))


def word_pieces_without_words() -> Tokenizer:
    """A whole text is one word, of which at most a hundred characters are looked up."""
    made = Tokenizer(models.WordPiece(unk_token="<unk>"))
    return trained(made, WordPieceTrainer(vocab_size=200, special_tokens=["<unk>", *SPECIALS]))


def word_level() -> Tokenizer:
    made = Tokenizer(models.WordLevel(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return trained(made, WordLevelTrainer(vocab_size=200, special_tokens=["<unk>", *SPECIALS]))


def melts_the_unknown() -> Tokenizer:
    """Neighbouring characters that it does not know are one token, also across a line end."""
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    return trained(made, BpeTrainer(vocab_size=300, special_tokens=["<unk>", *SPECIALS], limit_alphabet=40))


def with_added(*added: AddedToken, base: Callable[[], Tokenizer] = byte_level) -> Tokenizer:
    made = base()
    for one in added:
        (made.add_special_tokens if one.special else made.add_tokens)([one])
    return made


def token(content: str, special: bool = True, **flags: bool) -> AddedToken:
    return AddedToken(content, special=special, **{"normalized": False, **flags})


def stripped() -> Tokenizer:
    """A normalizer that takes white space off both ends of whatever it is given."""
    return bert(normalizers.Sequence([normalizers.Strip(), normalizers.Lowercase()]))


KINDS: dict[str, tuple[Callable[[], Tokenizer], bool, bool]] = {
    # name: (tokenizer, cut at special tokens, cut at line ends)
    "byte-level": (byte_level, True, True),
    "byte-level, a space before each piece": (lambda: byte_level(prefix=True), True, False),
    "byte-level, without the pattern": (lambda: byte_level(use_regex=False), True, False),
    "bert": (bert, True, True),
    "strip": (stripped, True, True),
    "word pieces without words": (word_pieces_without_words, True, False),
    "word level": (word_level, True, True),
    "metaspace first": (lambda: sentencepiece("first"), False, False),
    "metaspace always": (lambda: sentencepiece("always"), True, False),
    "metaspace never": (lambda: sentencepiece("never"), True, False),
    "unigram first": (lambda: sentencepiece("first", unigram=True), False, False),
    "unigram never": (lambda: sentencepiece("never", unigram=True), True, True),
    "old llama": (old_llama, True, False),
    "melts": (melts_the_unknown, True, False),
    "lstrip": (lambda: with_added(token("<mask>", lstrip=True)), True, False),
    "rstrip": (lambda: with_added(token("<mask>", rstrip=True)), True, True),
    "both": (lambda: with_added(token("<s>", lstrip=True, rstrip=True), token("<mask>")), True, False),
    "rstrip, as phi": (lambda: with_added(*(token(one, rstrip=True) for one in SPECIALS)), True, True),
    "single word": (lambda: with_added(token("<mask>", single_word=True)), True, True),
    "found in lower case": (lambda: with_added(token("<TOOL>", normalized=True), base=bert), True, True),
    "ordinary token around a special one": (lambda: with_added(token("x<s>y", special=False)), True, True),
    "ordinary token that ends inside": (lambda: with_added(token("x<s", special=False)), True, True),
    "ordinary token across lines": (lambda: with_added(token("a\nb", special=False)), True, False),
}  # fmt: skip
BACKENDS: dict[str, Tokenizer] = {}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if name not in BACKENDS:
        BACKENDS[name] = KINDS[name][0]()
    return name


def test_cuts_are_made_where_they_change_nothing(kind: str) -> None:
    """A cut that is given up needlessly would only cost time; one made wrongly costs the truth."""
    _, specials, lines = KINDS[kind]
    found = special_cuts(BACKENDS[kind]), line_cuts(BACKENDS[kind])
    assert (found[0] is not None, found[1] is not None) == (specials, lines)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_what_is_cut_encodes_like_the_whole(text: str) -> None:
    for name, (make, _, _) in KINDS.items():
        backend = BACKENDS.setdefault(name, make()) if name not in BACKENDS else BACKENDS[name]
        with mock.patch.object(tokens, "LONG", 1):
            ours = TOKENIZERS.setdefault(name, FastTokenizer(backend, name, None, {}))
            assert ours.encode(text).tolist() == backend.encode(text, add_special_tokens=False).ids, name


TOKENIZERS: dict[str, FastTokenizer] = {}


def test_special_tokens_that_are_found_otherwise_are_not_cut_at() -> None:
    pattern = special_cuts(with_added(token("<mask>", single_word=True), token("<s>y", special=False)))
    assert pattern is not None
    assert pattern.split("a<mask>b<|im_end|><s>") == ["a<mask>b", "<|im_end|>", "<s>"]
    inside = special_cuts(with_added(token("x<s>y", special=False)))
    assert inside is not None and inside.split("<s></s>") == ["<s>", "</s>", ""]


def test_white_space_goes_with_the_token_that_takes_it() -> None:
    pattern = special_cuts(with_added(token("<|im_end|>", rstrip=True)))
    assert pattern is not None and pattern.split("a<|im_end|> \n\xa0\x1c b") == [
        "a",
        "<|im_end|> \n\xa0",
        "\x1c b",
    ]


@pytest.mark.skipif(not embedded.installed(), reason="the embedded model is not installed")
@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from([*PIECES, "<|endoftext|>", "system", "user\n"]), max_size=20).map("".join))
def test_the_embedded_tokenizer_is_cut_at_both(text: str) -> None:
    if "embedded" not in TOKENIZERS:
        loaded = tokens.load_tokenizer("embedded")
        assert isinstance(loaded, FastTokenizer) and loaded._specials and loaded._lines
        TOKENIZERS["embedded"] = loaded
    ours = TOKENIZERS["embedded"]
    with mock.patch.object(tokens, "LONG", 1):
        assert ours.encode(text).tolist() == ours._backend.encode(text, add_special_tokens=False).ids


def test_much_text_is_encoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = byte_level()
    texts = ["hello " * count for count in range(30)]
    monkeypatch.setattr(tokens, "AT_ONCE", 50)
    ours = FastTokenizer(backend, "t", None, {})
    calls: list[int] = []

    class Counting:
        def encode_batch(self, part: list[str], **options: object) -> object:
            calls.append(sum(map(len, part)))
            return backend.encode_batch(part, **options)

    ours._backend = Counting()
    assert [ids.tolist() for ids in ours.encode_batch(texts)] == [backend.encode(text).ids for text in texts]
    assert len(calls) > 20 and all(size <= 50 or size in map(len, texts) for size in calls)
