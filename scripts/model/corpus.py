#!/usr/bin/env python3
"""Builds the training text from freely licensed Debian documentation packages.

Each package in SOURCES is fetched with `apt-get download` and unpacked with
`dpkg-deb -x` into a work folder; nothing is installed.  HTML, manual pages, POD
and plain text become plain text, repeated paragraphs are dropped, and about
2 % of the files (chosen by the hash of their text) are held out.

Writes train.jsonl, heldout.jsonl (one {"package", "path", "text"} per line) and
manifest.json (package, version, licence, files and bytes) into the output folder.
"""

import argparse
import fnmatch
import hashlib
import json
import multiprocessing
import os
import re
import subprocess
from pathlib import Path

from plaintext import to_text

# package: (licence of the documentation by the package's copyright file,
#           glob patterns to take, glob patterns to leave out).  Patterns are
# matched against the path inside the package.
SOURCES = {
    "apache2-doc": ("Apache-2.0", ["*/manual/en/*.html*"], []),
    "apt-doc": ("GPL-2+", ["*/guide.html/*", "*/offline.html/*"], []),
    "aptitude-doc-en": ("GPL-2+", ["*.html"], []),
    "bind9-doc": ("MPL-2.0", ["*.html"], []),
    "cmake-doc": ("BSD-3-clause", ["*.html"], []),
    "debian-faq": ("permissive, same terms for copies (debian-faq)", ["*.html"], []),
    "debian-handbook": ("GPL-2+ or CC-BY-SA-3.0", ["*/html/en-US/*.html"], []),
    "debian-history": ("GPL-2+", ["*/docs/*.en.html"], []),
    "debian-kernel-handbook": ("GPL-2+", ["*.html"], []),
    "debian-policy": ("GPL-2+, FHS permissive", ["*/policy.html/*.html", "*/perl-policy.html/*.html",
                      "*/menu-policy.html/*.html", "*/fhs/*.html"], []),
    "debian-reference-en": ("GPL-2+", ["*.en.html"], []),
    "debmake-doc": ("Expat", ["*.en.html"], []),
    "developers-reference": ("GPL-2+", ["*.html"], []),
    "erlang-doc": ("Apache-2.0", ["*.html"], ["*/man/*"]),
    "exim4-doc-html": ("GPL-2+", ["*.html"], []),
    "ffmpeg-doc": ("LGPL-2.1+", ["*/manual/*.html", "*/html/*.html"], ["*/api/*"]),
    "ghc-doc": ("BSD-3-clause", ["*/users_guide/*.html"], []),
    "git-doc": ("GPL-2", ["*.html"], ["*/RelNotes/*"]),
    "gnuplot-doc": ("gnuplot (changes as patches)", ["*.html"], []),
    "installation-guide-amd64": ("GPL-2", ["*/en/*.html"], []),
    "libboost1.74-doc": ("BSL-1.0", ["*.html"], []),
    "linux-doc-6.1": ("GPL-2", ["*/html/*.html"], ["*/translations/*"]),
    "maint-guide": ("GPL-2+", ["*.en.html"], []),
    "manpages": ("free licences page by page (mostly verbatim man-page licence, GPL, BSD)", ["*/man/man*"], []),
    "manpages-dev": ("free licences page by page (mostly verbatim man-page licence, GPL, BSD)", ["*/man/man*"], []),
    "mercurial-common": ("GPL-2+", ["*.txt"], []),
    "nodejs-doc": ("Expat", ["*/api/*.html"], ["*/all.html"]),
    "perl-doc": ("GPL-1+ or Artistic", ["*.pod"], []),
    "postfix-doc": ("IPL-1.0 or EPL-2.0", ["*.html"], []),
    "postgresql-doc-15": ("PostgreSQL", ["*.html"], []),
    "python-django-doc": ("BSD-3-clause", ["*.html"], []),
    "python-scipy-doc": ("BSD-3-clause", ["*/tutorial/*.html"], []),
    "python-sqlalchemy-doc": ("Expat", ["*/html/*.html"], []),
    "python3.11-doc": ("PSF-2", ["*.html"], []),
    "rust-doc": ("MIT or Apache-2.0", ["*/html/*.html"],
                 ["*/core/*", "*/core_arch/*", "*/src/*", "*/std/os/*", "*/intrinsics/*", "*/arch/*",
                  "*/print.html", "*/test/*", "*/proc_macro/*", "*/implementors/*", "*/simd/*"]),
    "sqlite3-doc": ("public domain", ["*.html"], ["*/matrix/*", "*doclist*", "*keyword_index*"]),
    "valgrind": ("GPL-2+", ["*/html/*.html"], []),
    "varnish-doc": ("BSD-2-clause", ["*.html"], []),
    "vim-runtime": ("Vim licence", ["*/doc/*.txt*"], []),
    "zsh-doc": ("MIT-like (zsh)", ["*.html"], []),
}
SKIP = ["*_sources*", "*/_modules/*", "*genindex*", "*/search.html", "*py-modindex*", "*bookindex*",
        "*/ix01.html", "*-index.html", "*/404.html", "*/toc.html", "*/LICENSE*"]
# Held out whatever their hash: the demo document and the bundled sample of held-out text.
ALWAYS_HELDOUT = ["*/postgresql-doc-15/html/transaction-iso.html", "*/html/howto/isolating-extensions.html",
                  "*/html/tutorial/classes.html", "*/html/book/ch12-05-working-with-environment-variables.html"]
MIN_CHARS = 500          # shorter files are left out
LONG_PARAGRAPH = 90      # paragraphs at least this long are kept once only


def fetch(package, work):
    """Downloads and unpacks one package; returns (root folder, version)."""
    debs, root = work / "debs", work / "unpacked" / package
    debs.mkdir(parents=True, exist_ok=True)
    found = sorted(debs.glob(package + "_*.deb"))
    if not found:
        subprocess.run(["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", package], cwd=debs, check=True)
        found = sorted(debs.glob(package + "_*.deb"))
    if not root.exists():
        root.mkdir(parents=True)
        subprocess.run(["dpkg-deb", "-x", str(found[-1]), str(root)], check=True)
    version = subprocess.run(["dpkg-deb", "-f", str(found[-1]), "Version"], check=True,
                             capture_output=True, text=True).stdout.strip()
    return root, version


def choose(root, take, leave):
    """The files of one unpacked package that the patterns ask for, in path order."""
    found = (os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names)
    for path in sorted(p for p in found if not os.path.islink(p)):
        inner = path[len(str(root)):]
        if any(fnmatch.fnmatch(inner, p) for p in take) and not any(fnmatch.fnmatch(inner, p) for p in leave + SKIP):
            yield path


def convert(path):
    """Plain text of one file, or '' where it is no readable English text."""
    try:
        text = to_text(path)
    except (OSError, UnicodeError, subprocess.CalledProcessError):
        return ""
    foreign = sum(ord(c) > 0x24F for c in text)
    symbols = sum(0x2000 <= ord(c) < 0x2C00 for c in text)
    return "" if len(text) < MIN_CHARS or foreign - symbols > 0.05 * len(text) else text


def drop_repeats(text, seen):
    """Leaves out long paragraphs that an earlier file had, and remembers the rest."""
    kept = []
    for paragraph in text.split("\n\n"):
        if len(paragraph) >= LONG_PARAGRAPH:
            key = hashlib.blake2b(re.sub(r"\W+", "", paragraph).lower().encode(), digest_size=8).digest()
            if key in seen:
                continue
            seen.add(key)
        kept.append(paragraph)
    return "\n\n".join(kept)


def write(path, documents):
    with open(path, "w", encoding="utf-8") as out:
        for document in documents:
            out.write(json.dumps(document, ensure_ascii=False) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for downloads and unpacked packages")
    parser.add_argument("--out", type=Path, required=True, help="folder for the text and the manifest")
    parser.add_argument("--heldout-permille", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    documents, manifest = [], []
    with multiprocessing.Pool(args.jobs) as pool:
        for package, (licence, take, leave) in SOURCES.items():
            root, version = fetch(package, args.work)
            paths = list(choose(root, take, leave))
            texts = pool.map(convert, paths, chunksize=8)
            documents += [{"package": package, "path": p[len(str(root)):], "text": t}
                          for p, t in zip(paths, texts) if t]
            manifest.append({"package": package, "version": version, "licence": licence})
            print(package, version, len(paths), "files", sum(map(len, texts)), "characters", flush=True)

    def is_heldout(document):
        if any(fnmatch.fnmatch(document["path"], p) for p in ALWAYS_HELDOUT):
            return True
        digest = hashlib.sha256(document["text"].encode()).digest()
        return int.from_bytes(digest[:4], "big") % 1000 < args.heldout_permille

    # The held-out files come first, so that nothing they say stays in the training text.
    seen, parts = set(), {"heldout": [], "train": []}
    for document in sorted(documents, key=lambda d: not is_heldout(d)):
        before = len(document["text"])
        text = drop_repeats(document["text"], seen)
        if len(text) >= max(MIN_CHARS, before // 3):
            parts["heldout" if is_heldout(document) else "train"].append(dict(document, text=text))
    for name, chosen in parts.items():
        write(args.out / (name + ".jsonl"), chosen)
        for row in manifest:
            own = [d for d in chosen if d["package"] == row["package"]]
            row[name + "_files"] = len(own)
            row[name + "_bytes"] = sum(len(d["text"].encode()) for d in own)
        print(name, len(chosen), "files", sum(len(d["text"].encode()) for d in chosen), "bytes")
    (args.out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main()
