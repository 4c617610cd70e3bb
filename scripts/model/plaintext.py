"""Plain text from HTML, manual pages, POD and text files (see corpus.py)."""

import gzip
import re
import subprocess
from html.parser import HTMLParser

INLINE = re.compile(r"</?(?:span|em|code|tt|b|i|strong|a|cite|var|samp|kbd|font|small|abbr|acronym|q|u|ins|del|"
                    r"mark|wbr|sub|img|label|bdi|big|dfn)(?:\s[^>]*)?/?>", re.I)
BLOCKS = {"p", "div", "section", "article", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "dl", "table",
          "blockquote", "pre", "hr", "details", "summary", "figure", "main", "body", "header", "fieldset"}
LINES = {"li", "dt", "dd", "tr", "br", "caption"}
SKIP_TAGS = {"script", "style", "nav", "footer", "form", "svg", "button", "select", "noscript", "title", "math"}
SKIP_CLASSES = {"sphinxsidebar", "sphinxsidebarwrapper", "related", "navheader", "navfooter", "footer", "breadcrumb",
                "breadcrumbs", "sidebar", "sidebar-elems", "toc", "nav-wrapper", "nav-wide-wrapper", "menu-bar",
                "wy-nav-side", "rst-versions", "rst-footer-buttons", "navbar", "toctree-wrapper", "innertube",
                "contents", "spirit-nav", "langbar", "top", "bottomlang", "up", "quickview", "copyright-footer",
                "src", "srclink", "out-of-band"}
BOILERPLATE = re.compile(r"^(?:Download the ebook|Home +Libraries +People +FAQ +More|Run|Expand description)$", re.M)


class _Text(HTMLParser):
    """Collects readable text: block structure as blank lines, `pre` kept as it is."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.parts, self.pre, self.skip, self.depth = [], 0, None, 0

    def handle_starttag(self, tag, attrs):
        if self.skip:
            self.depth += tag == self.skip
            return
        classes = dict(attrs).get("class") or ""
        if tag in SKIP_TAGS or (tag in ("div", "ul", "table", "p", "section") and SKIP_CLASSES & set(classes.split())):
            self.skip, self.depth = tag, 1
        elif tag in BLOCKS:
            self.parts.append("\n\n")
            self.pre += tag == "pre"
        elif tag in LINES:
            self.parts.append("\n- " if tag == "li" else "\n")
        elif tag in ("td", "th"):
            self.parts.append("  ")

    def handle_endtag(self, tag):
        if self.skip:
            self.depth -= tag == self.skip
            if not self.depth:
                self.skip = None
        elif tag in BLOCKS:
            self.parts.append("\n\n")
            if tag == "pre" and self.pre:
                self.pre -= 1

    def handle_data(self, data):
        if not self.skip:
            self.parts.append(data if self.pre else re.sub(r"\s+", " ", data))


def html_to_text(source):
    """The main part of an HTML page as plain text."""
    match = re.search(r'<[^>]*role="main"|<main\b|<body\b', source)
    parser = _Text()
    parser.feed(INLINE.sub("", source[match.start():] if match else source))
    parser.close()
    text = "".join(parser.parts).replace("\u00b6", "").replace("\u2692", "")
    text = BOILERPLATE.sub("", re.sub(r"\n- \s+", "\n- ", text))
    return re.sub(r"\n[ \t]+\n", "\n\n", re.sub(r"\n (?=\S)", "\n", text))


def pod_to_text(source):
    """POD with its commands and formatting codes taken away."""
    source = re.sub(r"^=(?:head\d|item|over|back|cut|pod|for|begin|end|encoding)\b[ \t]*", "", source, flags=re.M)
    for _ in range(3):
        source = re.sub(r"[BCFILSXZ]<([^<>]*)>", r"\1", source)
    return re.sub(r"E<lt>", "<", re.sub(r"E<gt>", ">", source))


def man_to_text(path):
    """A manual page as `man` would print it."""
    out = subprocess.run(["man", "-l", "-Tutf8", "--no-hyphenation", "--no-justification", path], check=True,
                         capture_output=True, text=True, errors="replace",
                         env={"PATH": "/usr/bin:/bin", "MANWIDTH": "92", "LC_ALL": "C.UTF-8", "MAN_KEEP_FORMATTING": ""})
    text = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", out.stdout)
    return "\n".join(line[7:] if line.startswith("       ") else line for line in text.split("\n"))


def tidy(text):
    """Even white space: no trailing blanks, at most one empty line, no control characters."""
    text = text.replace("\u00a0", " ").replace("\r\n", "\n").replace("\u200b", "").replace("\u2018", "'")
    text = text.replace("\u2019", "'").replace("\u201c", '"').replace("\u201d", '"')
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f\ufeff\ufffd]", "", text)
    text = re.sub(r"[ \t]+$", "", text, flags=re.M)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def to_text(path):
    """Plain text of one documentation file; the kind is told by its name."""
    if "/man/man" in path:
        return tidy(man_to_text(path))
    with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
        raw = file.read()
    try:
        source = raw.decode("utf-8")
    except UnicodeDecodeError:
        source = raw.decode("latin-1")
    name = path.removesuffix(".gz")
    if ".html" in name:
        return tidy(html_to_text(source))
    return tidy(pod_to_text(source) if name.endswith(".pod") else source)
