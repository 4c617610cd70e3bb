"""Small tokenizers of each family, trained from text: the same shape as the real ones, another vocabulary."""

import io
import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# Mistral's newer byte-level vocabularies: upper and lower case apart.
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
          r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def special(*names):
    return [AddedToken(name, special=True, normalized=False) for name in names]


# Tokens with every option, so that each is compared.
OPTIONS = [AddedToken("<mask>", lstrip=True, special=True, normalized=False),
           AddedToken("WORD", single_word=True, normalized=True),
           AddedToken("swords", single_word=True, normalized=False),
           AddedToken("<|trim|>", lstrip=True, rstrip=True, normalized=False)]


def byte_level(text, size, expression, names, normalizer=None, ignore_merges=False, prefix=None):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(expression), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(text, trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.add_special_tokens(special(*names))
    tokenizer.add_tokens(OPTIONS)
    if prefix is not None:
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{prefix} $A", special_tokens=[(prefix, tokenizer.token_to_id(prefix))])])
    return tokenizer


def character_level(text, size, metaspace):
    """Llama 2's: spaces as U+2581, bytes for what the vocabulary lacks."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    # Trained on words, so that the merges stay within them; the real ones see a text as one word.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(text, trainers.BpeTrainer(
        vocab_size=size, limit_alphabet=400, special_tokens=["<unk>", "<s>", "</s>", *bytes_], show_progress=False))
    # The trainer's special tokens include the bytes, which a text's own "<0x41>" is not.
    parts = json.loads(tokenizer.to_str())
    parts["added_tokens"] = [token for token in parts["added_tokens"] if not token["content"].startswith("<0x")]
    if metaspace:
        parts["normalizer"] = None
        parts["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    else:
        parts["pre_tokenizer"] = None
        parts["normalizer"] = {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
    tokenizer = Tokenizer.from_str(json.dumps(parts))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    if metaspace:
        tokenizer.add_special_tokens(special("[INST]", "[/INST]"))
    tokenizer.add_tokens(OPTIONS)
    return tokenizer


JSON_FAMILIES = {
    "llama3": lambda text, size: byte_level(text, size, LLAMA3, ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"),
                                            ignore_merges=True, prefix="<|begin_of_text|>"),
    "qwen2": lambda text, size: byte_level(text, size, QWEN2, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
                                           normalizer=normalizers.NFC()),
    "mistral-bytes": lambda text, size: byte_level(text, size, TEKKEN, ("<unk>", "<s>", "</s>", "[INST]", "[/INST]")),
    "llama2": lambda text, size: character_level(text, size, False),
    "mistral": lambda text, size: character_level(text, size, True),
}

SENTENCEPIECE_FAMILIES = {
    "sentencepiece-bpe": dict(model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
                              remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True),
    "sentencepiece-unigram": dict(model_type="unigram", normalization_rule_name="nmt_nfkc"),
}


def sentencepiece_model(text, size, options):
    """The bytes of a tokenizer.model."""
    import sentencepiece

    out = io.BytesIO()
    # The trainer reads lines, and takes no U+2581 or NUL from them.
    clean = [line for one in text for line in one.replace("\u2581", " ").replace("\x00", " ").splitlines() if line.strip()]
    # Few enough characters for a small vocabulary to hold.
    clean = [line for line in clean if all(c < "\u0600" for c in line)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(clean), model_writer=out, vocab_size=size, character_coverage=0.995, num_threads=1,
        minloglevel=2, hard_vocab_limit=False, **options)
    return out.getvalue()
