#!/usr/bin/env python3
"""Writes 200 strings with the ids and the decoded text that the tokenizers library gives for them.

    tokenizer_cases.py --tokenizer tokenizer.json --out tokenizer-cases.json

Encoded with add_special_tokens=False, decoded with skip_special_tokens=False.
"""

import argparse
import json
import random
from pathlib import Path

import tokenizers
from tokenizers import Tokenizer

END = "<|endoftext|>"

FIXED = [
    "", " ", "  ", "   ", "\n", "\n\n", "\n\n\n\n", "\t", "\t\t  \t", "\r\n", "\r\n\r\n", " \n ", "\n \n  \n   x",
    "a", " a", "a ", " a ", "  a  ", "   leading spaces", "trailing spaces   ", "two  spaces", "three   spaces here",
    "end of line \nnext line", "end of line  \n  next line", "tab\tseparated\tvalues", "x" * 40, " " * 33, "\n" * 17,
    " " * 16 + "indented", "a" + " " * 20 + "b", "-" * 79, "=" * 33 + "\n", "....", "...", "!?!?", "#" * 7,
    "Hello, world!", "The quick brown fox jumps over the lazy dog.", "the the the the", "THE PACKAGE MANAGER",
    "Use the --force option only if you know what you are doing.",
    "If the file does not exist, it is created; otherwise it is opened for reading and writing.",
    "For more information, see the section called \"Configuration\" below.", "(see below)", "[optional]", "{}", "<>",
    "I'm", "you're", "it's", "we've", "they'll", "he'd", "don't", "IT'S", "DON'T", "I'LL", "'s", "'", "''", "' s",
    "rock 'n' roll", "the dogs' bowls", "o'clock", "'tis", "x's y't z're", "It\u2019s curly", "a'b'c", "'ve been",
    "0", "7", "42", "2024", "3.14159", "1,000,000", "-273.15", "1e-10", "0xDEADBEEF", "192.168.0.1", "2001:db8::1",
    "12:34:56", "2023-06-10", "v1.2.3-rc4", "abc123def456", "100%", "$19.99", "1/2", "10^9", "3rd", "64bit",
    "int main(void) { return 0; }", "#include <stdio.h>\n\nint main(void)\n{\n\tputs(\"hello\");\n\treturn 0;\n}\n",
    "def f(x):\n    return x ** 2\n\n\nprint(f(3))\n", "for i in range(10):\n        pass", "x = y if z else None",
    "SELECT name, count(*) FROM t WHERE id >= 10 GROUP BY name;", "git commit -m 'first commit' && git push",
    "if [ -f \"$HOME/.bashrc\" ]; then . \"$HOME/.bashrc\"; fi", "std::vector<std::unique_ptr<int>> v;",
    "fn main() { let mut v: Vec<u8> = vec![1, 2, 3]; }", "{\"key\": [1, 2.5, null, true, \"text\"]}",
    "<p class=\"note\">Text &amp; more</p>", "/usr/share/doc/README.gz", "C:\\Windows\\System32", "a_b_c __init__ _x",
    "user@example.org", "https://example.org/path?query=1&other=2#part", "*bold* _under_ `code`", "a+b-c*d/e%f",
    "camelCaseIdentifier", "snake_case_identifier", "kebab-case-identifier", "ALL_CAPS_123",
    "caf\u00e9", "cafe\u0301", "na\u00efve fa\u00e7ade", "Stra\u00dfe", "\u0130stanbul \u0131", "\u01c5 \ufb01",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!", "\u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac",
    "\u05e9\u05dc\u05d5\u05dd", "\u0645\u0631\u062d\u0628\u0627 \u0628\u0643", "\u0928\u092e\u0938\u094d\u0924\u0947",
    "\u4f60\u597d\uff0c\u4e16\u754c", "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c", "\uc548\ub155\ud558\uc138\uc694",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "ti\u1ebfng Vi\u1ec7t", "English \u0438 \u0440\u0443\u0441\u0441\u043a\u0438\u0439 \u548c\u4e2d\u6587",
    "\u0663\u0664\u0665", "\u00bd \u00b2 \u2167 \u2460", "x\u00b2+y\u00b3", "\u0967\u0968\u0969 abc", "1\u06602",
    "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\U0001f44d\U0001f3fd ok",
    "ok\U0001f680\U0001f680 done", "\u2764\ufe0f", "a\U0001f600b", "\u2192 \u21d2 \u2264 \u2260 \u221e", "\u20ac5 \u00a33 \u00a52",
    "\u201cquoted\u201d \u2018single\u2019", "em\u2014dash en\u2013dash", "ellipsis\u2026", "\u00a7 12 \u00b6 3",
    "\x00", "\x01\x02\x03", "a\x00b", "\x1b[31mred\x1b[0m", "\x7f", "bell\x07", "\x0b\x0c", "\x08 back", "\x1c\x1d\x1e\x1f",
    "\u0080", "\u0085", "\u009f\u0090", "\u00a0", "a\u00a0b", "a\u2003b \u2003c", "\u3000\u3000x", "\u2028line\u2029par",
    "\u200bzero\u200bwidth", "\ufeffbom", "\ufffd", "\ufffd\ufffd", "\ufffe\uffff", "\U0010ffff", "\U00010000\U0001d11e",
    "\u00c3\u00a9 \u00e2\u20ac\u2122", "\u00c0\u0080", "\u00ff\u00fe", "\u00ed\u00a0\u0080", "\u00f8\u0088\u0080\u0080\u0080",
    "\u0120\u010a\u0122", "\u0120the", "\u010a\u010a", "o\u0300\u0301\u0302\u0303", "\u200f\u202eabc\u202c", "\u180e x",
    END, END + END, "before" + END + "after", "before " + END + " after", "\n" + END + "\n", "<|endoftext", "<|endoftext|",
    "|endoftext|>", "<|EndOfText|>", "<|" + END + "|>", "a" + END + " b" + END + "  c",
]
PIECES = ["the", " the", " of", "ing", " file", "'s", "'ll", " ", "  ", "\n", "\t", "\r\n", "0", "19", "x", " (", ").", "--",
          "\u00e9", "\u0301", "\u043f\u0440\u0438", "\u4e2d", "\U0001f600", "\u200d", "\u00a0", "\u00bd", "\x00", "\x1b",
          "_", "::", "\\n", "\"", "'", "\u2019", "\ufffd", "\u0120", END, " Debian", "ERROR", " kernel", "=", ";", "\u3000"]


def strings():
    """The fixed strings, then random joins of pieces up to 200."""
    found, source = list(dict.fromkeys(FIXED)), random.Random(7)
    while len(found) < 200:
        text = "".join(source.choice(PIECES) for _ in range(source.randint(20, 120)))
        if text not in found:
            found.append(text)
    return found[:200]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    cases = []
    for text in strings():
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        cases.append({"text": text, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False)})
    assert all(case["decoded"] == case["text"] for case in cases)
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text('{"made_with": "tokenizers %s", "cases": [\n%s\n]}\n' % (tokenizers.__version__, lines))
    print(len(cases), "cases", sum(len(c["ids"]) for c in cases), "ids")


if __name__ == "__main__":
    main()
