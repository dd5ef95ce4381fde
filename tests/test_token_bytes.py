"""A token's bytes, against what each kind of tokenizer decodes the whole text to."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from kvtool.tokens import BytesTokenizer, FastTokenizer

CORPUS = ["été 漢字 don't say\n\n words twice "] * 4


def byte_level() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(CORPUS, BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    return made


def sentencepiece() -> Tokenizer:
    """As Llama 2's: spaces are a mark of their own, and what is not in the vocabulary becomes bytes."""
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(parts)
    specials = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    made.train_from_iterator(CORPUS, BpeTrainer(vocab_size=400, special_tokens=specials))
    # A file says so: the trainer has made the bytes special, and Llama's are not.
    return Tokenizer.from_str(_without_added(made, set(specials[1:])))


def _without_added(made: Tokenizer, contents: set[str]) -> str:
    read = json.loads(made.to_str())
    read["added_tokens"] = [token for token in read["added_tokens"] if token["content"] not in contents]
    return json.dumps(read)


MADE = {"byte-level": (byte_level(), ""), "sentencepiece": (sentencepiece(), " ")}


@pytest.mark.parametrize("kind", MADE)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="▁"), max_size=30))
def test_joined_they_are_the_text(kind: str, text: str) -> None:
    backend, before = MADE[kind]
    tokenizer = FastTokenizer(backend, kind, None, {})
    ids = tokenizer.encode(text).tolist()
    joined = b"".join(map(tokenizer.spelled, ids)).decode()
    assert joined == (before + text if ids else "")


def test_a_word_with_a_space_before_it_is_another_token_than_without() -> None:
    tokenizer = FastTokenizer(MADE["sentencepiece"][0], "sentencepiece", None, {})
    backend = MADE["sentencepiece"][0]
    assert tokenizer.spelled(backend.token_to_id("▁")) == b" "
    assert tokenizer.spelled(backend.token_to_id("<0xE6>")) == b"\xe6"


def test_special_tokens_and_ids_beyond_the_vocabulary() -> None:
    backend = byte_level()
    backend.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer = FastTokenizer(backend, "", None, {})
    assert tokenizer.spelled(backend.token_to_id("<|end|>")) == b"<|end|>"
    assert tokenizer.spelled(99_999) == b""
    assert BytesTokenizer().spelled(int.from_bytes(b"ab\0\0", "little")) == b"ab"
