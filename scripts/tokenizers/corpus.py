"""Mixed text in many scripts, the same from the same packages: a list of strings.

Prose comes from Debian's manual pages in several languages and from the translations of iso-codes (over a
hundred languages), fetched with apt-get and unpacked, never installed; where that cannot be done, OSError says
why. The rest is generated: white space, control characters, combining marks, emoji, mixed directions,
identifiers, numbers, and characters drawn from all of Unicode.
"""

import gettext
import gzip
import random
import re
import subprocess
import unicodedata
from pathlib import Path

PACKAGES = ["manpages-de", "manpages-fr", "manpages-ja", "manpages-pl", "manpages-ru", "manpages-zh", "iso-codes"]


def unpack(work):
    """The packages' files under work/root."""
    root = work / "root"
    if root.exists():
        return root
    work.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["apt-get", "download", *PACKAGES], cwd=work, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError("the text cannot be fetched: " + done.stderr.strip()[-300:])
    for package in sorted(work.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", package, root], check=True)
    return root


def manual_lines(root):
    """Lines of prose of the manual pages, by language."""
    found = {}
    for page in sorted(root.glob("usr/share/man/*/man*/*.gz")):
        language = page.relative_to(root / "usr/share/man").parts[0]
        if language.startswith("man"):
            continue
        text = gzip.decompress(page.read_bytes()).decode("utf-8", errors="ignore")
        for line in text.splitlines():
            line = re.sub(r"\\f.|\\&|\\-|\\", "", line)
            if len(line) > 30 and not line.startswith((".", "'")):
                found.setdefault(language, []).append(line[:400])
    return found


def translations(root):
    """Translated names, by language."""
    found = {}
    for file in sorted(root.glob("usr/share/locale/*/LC_MESSAGES/iso_3166-1.mo")):
        with open(file, "rb") as stream:
            catalogue = gettext.GNUTranslations(stream)._catalog
        names = [text for key, text in sorted(catalogue.items(), key=str) if key and text]
        if names:
            found[file.parts[-3]] = names
    return found


# Unicode 14's new marks with a combining class: the reference's normalization tables are older.
NEW_MARKS = {*range(0x0898, 0x08A0), *range(0x08CA, 0x08D3), 0x0C3C, 0x1715, *range(0x1AC1, 0x1ACF), 0x1DFA,
             *range(0x10F82, 0x10F86), 0x11070, 0x110C2, 0x1E2AE}


def is_common(character):
    """Assigned long enough for tables of different ages to agree about it."""
    return unicodedata.category(character) not in ("Cn", "Cs", "Co") and ord(character) not in NEW_MARKS


SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n", "\n ", "\u00a0", "\u2003", "\u3000", "\u2028", "\u0085",
          "\u200b", "\u180e", "\ufeff", "\v", "\f", " " * 17]
MARKS = ["\u0301", "\u0308", "\u0327", "\u0323", "\u0302", "\u093c", "\u05b8", "\u064b", "\u3099", "\u1161", "\u11a8"]
EMOJI = ["\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f",
         "\U0001f3f3\ufe0f\u200d\U0001f308", "1\ufe0f\u20e3", "\u263a", "\u00a9", "\u2122"]
PIECES = ["I'm", "we'LL", "DON'T", "'s", "'\u017f", "it\u2019s", "x", "The", "HTTP", "foo_bar", "a.b(c)", "==", "!=", "...", "//", "#!", "3.14",
          "1234567890", "0x1F", "\u0663\u0664", "\u00bd", "\u00b2", "\u2167", "\u0967\u0968", "\ufb01", "\uff21\uff22", "\u212b", "\u1e9b\u0323",
          "\u00e9", "e\u0301", "\uac00", "\u1100\u1161\u11a8", "\u4e2d\u6587", "\u65e5\u672c\u8a9e", "\u0440\u0443\u0441", "\u03b5\u03bb", "\u05e9\u05dc\u05d5\u05dd", "\u0645\u0631\u062d\u0628\u0627",
          "\u0939\u093f\u0928\u094d\u0926\u0940", "\u0e44\u0e17\u0e22", "\u202eabc\u202c", "\x00", "\x01", "\x1b[0m", "\x7f", "\ufffd", "\u2581", "\u2581\u2581a",
          "\u0120the", "<0x41>", "<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>", "[INST]",
          "[/INST]", "<mask>", "WORD", "swords", "<|trim|>"]


def generated(source):
    kind = source.randrange(4)
    if kind == 0:
        return "".join(source.choice(source.choice((SPACES, PIECES, PIECES))) for _ in range(source.randint(1, 40)))
    if kind == 1:
        return " ".join(source.choice(PIECES) + source.choice(MARKS) * source.randint(0, 3) for _ in range(source.randint(1, 20)))
    if kind == 2:
        return "".join(source.choice(source.choice((EMOJI, PIECES, SPACES, EMOJI))) for _ in range(source.randint(1, 30)))
    text = []
    while len(text) < 30:
        character = chr(source.choice((source.randrange(0x3000), source.randrange(0x11000), source.randrange(0x20000))))
        if is_common(character):
            text.append(character)
    return "".join(text)


def lines(work, count):
    """`count` different strings, in an order from a seed."""
    root, source, found = unpack(work), random.Random(20), set()
    prose, names = manual_lines(root), translations(root)
    if len(prose) < 5 or len(names) < 80:
        raise OSError(f"the packages hold only {len(prose)} languages of prose and {len(names)} of names")
    while len(found) < count:
        kind = source.randrange(10)
        if kind < 3:
            text = source.choice(prose[source.choice(sorted(prose))])
        elif kind < 6:
            words = names[source.choice(sorted(names))]
            text = source.choice((" ", ", ", "  ", "\n")).join(source.choice(words) for _ in range(source.randint(1, 8)))
        else:
            text = generated(source)
        if all(is_common(c) for c in text):
            found.add(text)
    ordered = sorted(found)
    source.shuffle(ordered)
    return ordered
