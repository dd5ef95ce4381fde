"""The bound is never above the truth, for tokenizers of every kind, and near it where texts allow."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer, WordPieceTrainer

from kvtool import embedded
from kvtool.token_lengths import fewest_tokens
from kvtool.tokens import BytesTokenizer, load_tokenizer

CORPUS = ["hello world, don't say 123 words twice\n\n" * 3, 'été 漢字 {"a": 1}\nuser\nassistant Hello'] * 4
ALPHABET = pre_tokenizers.ByteLevel.alphabet()
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LONG = "=" * 40


def bpe(
    pre: object,
    normalizer: object = None,
    alphabet: list[str] = ALPHABET,
    added: tuple[object, ...] = (),
    **model: object,
) -> Tokenizer:
    made = Tokenizer(models.BPE(**model))
    made.pre_tokenizer = pre
    if normalizer is not None:
        made.normalizer = normalizer
    specials = ["<s>", *(BYTES if model.get("byte_fallback") else [])]
    made.train_from_iterator(
        CORPUS, BpeTrainer(vocab_size=800, special_tokens=specials, initial_alphabet=alphabet)
    )
    made.add_tokens([LONG, *added])
    return made


def byte_level(**options: object) -> Tokenizer:
    return bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), **options)


def metaspace(**options: object) -> Tokenizer:
    return bpe(pre_tokenizers.Metaspace(), alphabet=[], unk_token="<s>", fuse_unk=True, **options)


def word_pieces() -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="<s>"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.train_from_iterator(CORPUS, WordPieceTrainer(special_tokens=["<s>"]))
    return made


def old_llama() -> Tokenizer:
    marks = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return bpe(None, marks, alphabet=[], unk_token="<s>", fuse_unk=True, byte_fallback=True)


def split(behavior: str) -> Tokenizer:
    parts = [pre_tokenizers.Split(Regex(r"\s"), behavior), pre_tokenizers.ByteLevel(use_regex=False)]
    return bpe(pre_tokenizers.Sequence(parts))


KINDS: dict[str, tuple[Callable[[], Tokenizer], bool]] = {
    # name: (tokenizer, whether there is a bound)
    "byte-level": (byte_level, True),
    "byte-level that lacks bytes": (lambda: byte_level(alphabet=["a", "Ġ"]), True),
    "byte-level that melts the bytes it lacks": (
        lambda: byte_level(alphabet=["a", "Ġ"], unk_token="<s>", fuse_unk=True),
        True,
    ),
    "composing": (lambda: byte_level(normalizer=normalizers.NFC()), True),
    "decomposing": (lambda: byte_level(normalizer=normalizers.NFKD()), False),
    "stripping": (lambda: byte_level(normalizer=normalizers.Strip()), False),
    "shortening": (lambda: byte_level(normalizer=normalizers.Replace("  ", " ")), False),
    "shortening by pattern": (lambda: byte_level(normalizer=normalizers.Replace(Regex(" +"), "  ")), False),
    "an added token that takes white space": (
        lambda: byte_level(added=(AddedToken("<mask>", lstrip=True),)),
        False,
    ),
    "split": (lambda: split("isolated"), True),
    "split, white space removed": (lambda: split("removed"), False),
    "metaspace, the unknown melts": (metaspace, False),
    "metaspace, the unknown as bytes": (lambda: metaspace(byte_fallback=True), True),
    "old llama": (old_llama, True),
    "word pieces": (word_pieces, False),
}
MADE = {name: make() for name, (make, _) in KINDS.items()}
TEXT = st.lists(
    st.sampled_from(
        [
            "hello",
            "world",
            " ",
            "  ",
            "\n",
            LONG,
            "é",
            "e\u0301",
            "\u212b",
            "漢字",
            "\x04",
            "🙂",
            "<s>",
            "<mask>",
        ]
    )
    | st.text(max_size=5),
    max_size=30,
).map("".join)


@pytest.mark.parametrize("name", KINDS)
def test_there_is_a_bound_where_nothing_is_dropped(name: str) -> None:
    assert (fewest_tokens(MADE[name]) is not None) is KINDS[name][1]


@pytest.mark.parametrize("name", [name for name, (_, known) in KINDS.items() if known])
@settings(max_examples=150, deadline=None)
@given(text=TEXT)
def test_no_text_has_fewer_tokens_than_the_bound(name: str, text: str) -> None:
    fewest = fewest_tokens(MADE[name])
    assert fewest is not None
    assert fewest(text) <= len(MADE[name].encode(text, add_special_tokens=False).ids)


def test_the_bound_is_met_by_the_longest_token() -> None:
    fewest = fewest_tokens(MADE["byte-level"])
    assert fewest is not None
    assert fewest(LONG * 25) == len(MADE["byte-level"].encode(LONG * 25, add_special_tokens=False).ids) == 25


def test_what_the_vocabulary_lacks_counts_as_nothing() -> None:
    kind = MADE["byte-level that lacks bytes"]
    fewest = fewest_tokens(kind)
    assert fewest is not None
    assert fewest("\x04" * 1000) == len(kind.encode("\x04" * 1000, add_special_tokens=False).ids) == 0


@pytest.mark.skipif(not embedded.installed(), reason="needs the embedded model's package")
def test_a_text_far_too_long_for_the_embedded_model_is_known_to_be() -> None:
    tokenizer = load_tokenizer("embedded")
    assert tokenizer.fewest("word " * 200_000) > 8192
    for text in (" " * 50_000, "\x04" * 50_000, "=" * 50_000, "🙂漢字é" * 5_000):
        assert tokenizer.fewest(text) <= len(tokenizer.encode(text))


@given(text=st.text(st.characters(exclude_categories=())))
def test_the_byte_fallback_counts_exactly(text: str) -> None:
    assert BytesTokenizer().fewest(text) == len(BytesTokenizer().encode(text))
