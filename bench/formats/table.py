"""Rows of the measurement as tables of text, in Markdown so that they can go into a page as they are."""


def markdown(head, lines):
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *lines])


def shown(value, digits=0):
    return "" if value is None else f"{value:,.{digits}f}"


def first_tokens(rows):
    """{(format, prefix, chunk): {source: ms}}"""
    found = {}
    for row in rows:
        parts = row["name"].split(".")
        if parts[1] == "first_token":
            found.setdefault((parts[0], int(parts[2]), int(parts[3])), {})[parts[4]] = row["value"]
    return found


def of_formats(rows, formats):
    """One line a format: size, quality, and first tokens of the longest prefix at the most rows of a step."""
    times = first_tokens(rows)
    longest = max((key[1:] for key in times), default=None)
    sources = list(next(iter(times.values()), {}))
    columns = [("bytes a token", "{}.bytes_a_token", 0), ("tokens a GiB", "{}.tokens_a_gib", 0), ("bits a byte", "{}.bits_per_byte", 5),
               ("needles right, %", "{}.needles.all.right", 1), ("needles as f32, %", "{}.needles.all.as_f32", 1),
               ("bits a needle", "{}.needles.all.bits", 2),
               ("serving: requests a second", "{}.serving.requests_per_s", 1),
               ("serving: first token p50, ms", "{}.serving.first_token_p50", 1)]
    there = [column for column in columns if any(rows.value(column[1].format(name)) is not None for name in formats)]
    if not there and not sources:
        return ""
    head = ["format", *[title for title, _, _ in there], *[f"{source}, ms" for source in sources]]
    lines = []
    for name in formats:
        cells = [name, *[shown(rows.value(row.format(name)), digits) for _, row, digits in there]]
        found = times.get((name, *longest), {}) if longest else {}
        lines.append([*cells, *[shown(found.get(source), 1) for source in sources]])
    under = f"\n\nms: first tokens of a prefix of {longest[0]:,} tokens, {longest[1]:,} rows a step." if longest else ""
    return markdown(head, lines) + under


def of_times(rows, formats):
    times = first_tokens(rows)
    if len({key[1:] for key in times}) < 2:
        return ""
    sources = list(next(iter(times.values())))
    order = sorted(times, key=lambda key: (key[1], key[2], formats.index(key[0])))
    return markdown(["prefix", "rows a step", "format", *[f"{source}, ms" for source in sources]],
                    [[shown(key[1]), shown(key[2]), key[0], *[shown(times[key].get(source), 1) for source in sources]] for key in order])


def of_static(rows):
    """Scales of blocks beside fixed ones: a line for each text, format and kind of scales."""
    lines = []
    for row in rows:
        parts = row["name"].split(".")
        if parts[0] == "static" and parts[-1] == "bits_per_byte":
            more = [rows.value(".".join([*parts[:-1], what])) for what in ("divergence", "bits_a_number", "cut")]
            lines.append([*parts[1:4], shown(row["value"], 5), f"{100 * (row['ratio'] - 1):+.3f} %",
                          *[shown(value, 2) for value in more]])
    head = ["text", "format", "scales", "bits a byte", "beside f32", "divergence, nat / 1000", "bits a number", "cut off, in a million"]
    return markdown(head, lines) if lines else ""


def of_eviction(rows):
    lines = [[row["name"].removeprefix("eviction."), shown(row["value"], 4), row["unit"]] for row in rows
             if row["name"].startswith("eviction.")]
    return markdown(["eviction", "figure", "unit"], lines) if lines else ""
