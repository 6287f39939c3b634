"""Made tests/data/tokenizers/tiny/tokenizer.json: a byte-level BPE in the manner of today's models, trained on this
repository's own text. Run from the root of the repository; the result depends on the text, so it is committed.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from eluvix_extproc.tokens.corpus import SAMPLES

HERE = Path(__file__).parent / "tiny"
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIALS = ["<|bos|>", "<|eos|>", "<|turn|>", "<|end|>", "<|tool|>"]


def main() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=2048, special_tokens=SPECIALS, initial_alphabet=alphabet)
    sources = [path.read_text() for path in sorted(Path("eluvix_extproc").rglob("*.py"))]
    tokenizer.train_from_iterator([*sources, *SAMPLES * 3], trainer)
    tokenizer.add_tokens([AddedToken("<note>", normalized=False), AddedToken("<late>", normalized=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", tokenizer.token_to_id("<|bos|>"))]
    )
    HERE.mkdir(exist_ok=True)
    (HERE / "tokenizer.json").write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False))


if __name__ == "__main__":
    main()
