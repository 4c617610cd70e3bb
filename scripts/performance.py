#!/usr/bin/env python3
"""Makes docs/performance.md and its plots of docs/performance.toml and the results in docs/results.

  scripts/performance.py            writes the page and the plots
  scripts/performance.py --check    ends with 1 where they are not what it would write

A result is what a benchmark prints with --json: a list of rows with name, value, unit, limit and ratio; or any other JSON,
whose values are named by their path ("runs/computed/first_token_ms"). A claim in the TOML file is a row `w`. Where its
group names a `file`, the figures are that file's: of the row `name` (or `w`), beside its limit, or beside the row
`of_name`; with `times` the ratio says how many times less than that it is, with `percent` how much more. Where it names none, they stand in the claim (`v`, the figure; `of`, what it is held against; `r`, the ratio), and
the page says that the file is missing. A ratio that does not follow from its two figures is an error, and so is a row that
no result has. `bound` is of the ratio ("<= 1.6", ">= 25 x", "<= 2 %"), or with the figure's unit of the figure ("<= 15 s").
"""
import argparse
import json
import math
import pathlib
import re
import sys
import tomllib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from performance_plot import plot_svg  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLAIMS, PAGE, PLOTS, RESULTS = "docs/performance.toml", "docs/performance.md", "docs/images", "docs/results"
ROUNDING = 0.04  # of a ratio of figures with two digits

HEAD = """# Performance

Made by `scripts/performance.py` of [performance.toml](performance.toml) and the files in [results](results); do not edit it.
Every figure comes from the project's own programs and stands beside a limit or a peer of the same run. `file` is where it can
be looked up. A figure with "none, re-measure" was measured on that date and its file was not kept.

| machine | |
| --- | --- |
"""


class Mistake(Exception):
    pass


def flatten(node, path=""):
    """Any JSON as {path: scalar}; elements of a list go by their name, or by number."""
    if isinstance(node, dict):
        pairs = node.items()
    elif isinstance(node, list):
        pairs = ((item.get("name", i) if isinstance(item, dict) else i, item) for i, item in enumerate(node))
    else:
        return {path: node}
    return {key: value for name, item in pairs for key, value in flatten(item, f"{path}/{name}" if path else str(name)).items()}


def read_results(root):
    """{file: {row: (value, unit, limit)}}"""
    results = {}
    for path in sorted((root / RESULTS).glob("*.json")):
        content = json.loads(path.read_text())
        if isinstance(content, list) and all("value" in row for row in content):
            results[path.name] = {row["name"]: (row["value"], row["unit"], row["limit"]) for row in content}
        else:
            results[path.name] = {name: (value, "", None) for name, value in flatten(content).items()
                                  if isinstance(value, (int, float))}
    return results


def shown(value):
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{digits}f}"
    return text if isinstance(value, float) and not value.is_integer() else f"{value:g}"


def number(text):
    """The first number in a text such as "1,794", "+0.3 %" or "1.18 to 1.31"; None where there is none."""
    found = re.search(r"[-+]?[\d,]*\.?\d+(?:e[-+]?\d+)?", text or "")
    return float(found[0].replace(",", "")) if found else None


def numbers(text):
    return [number(part) for part in text.split(" to ")]


def is_met(bound, figure, unit, ratio):
    """"yes", "no" or "" for a bound such as "<= 1.6", or "<= 15 s", which is of the figure."""
    if not bound:
        return ""
    relation, limit, *bound_unit = bound.split()
    of_figure = (bound_unit and bound_unit[0] == unit) or not ratio
    holds = {"<=": lambda x: x <= float(limit), ">=": lambda x: x >= float(limit), "=": lambda x: x == float(limit)}
    return "yes" if all(holds[relation](x) for x in numbers(figure if of_figure else ratio)) else "no"


def check_ratio(row):
    """A ratio that is written down follows from its figures, one over the other."""
    if row.get("loose") or "r" not in row or "%" in row["r"] or not (row.get("v") and row.get("of")):
        return
    v, of, ratio = number(row["v"]), number(row["of"]), number(row["r"])
    if min(abs(v / of / ratio - 1), abs(of / v / ratio - 1)) > ROUNDING:
        raise Mistake(f"{row['w']}: {row['v']} beside {row['of']} is no ratio of {row['r']}")


def claim(row, group, results):
    """One row of the page, as texts: workload, figure, limit, ratio, bound, met, file."""
    unit, bound, peer = row.get("unit", group.get("unit", "")), row.get("bound", ""), group.get("peer", "")
    if "file" not in group:
        check_ratio(row)
        figure, of, ratio, source = row.get("v", ""), row.get("of", ""), row.get("r", ""), "none, re-measure"
    else:
        rows = results.get(group["file"])
        name = row.get("name", row["w"])
        if rows is None or name not in rows:
            raise Mistake(f"{RESULTS}/{group['file']} has no row {name!r}")
        value, own_unit, limit = rows[name]
        unit = own_unit or unit
        if "of_name" in row:
            limit = rows[row["of_name"]][0]
        figure, of, ratio = shown(value), "" if limit is None else shown(limit), "" if not limit else f"{value / limit:.3f}"
        if group.get("times") and limit:
            ratio = f"{shown(limit / value)} x"
        if group.get("percent"):
            figure, of = f"{value:.6g}", of and f"{limit:.6g}"
            ratio = ratio and f"{100 * (value / limit - 1):+.3f} %"
        source = f"[{group['file']}](results/{group['file']})"
    met = is_met(bound, figure, unit, ratio)
    beside = f"{peer} {of} {unit}".strip() if of else (peer if ratio else "")
    return [row["w"], f"{figure} {unit}".strip() if figure else "", beside, ratio, bound, met, source]


def section_text(section, claims, results):
    lines = [f"## {section['title']}", "", section["text"].strip(), ""]
    commands = []
    for group in section["group"]:
        if group["command"] not in commands:
            commands.append(group["command"])
    lines += [f"{i}. `{command}`" for i, command in enumerate(commands, 1)]
    if plot := section.get("plot"):
        [which] = [p for p in claims["plot"] if p["name"] == plot]
        series, missing = plotted(which, results)
        lines.append("")
        if series:
            lines.append(f"![{which['title']}](images/{plot}.svg)")
        if missing:
            lines.append(("\nNot drawn yet, for want of a file: " if series else
                          f"{which['title']}: not drawn yet, for want of a file: ") + ", ".join(missing) + ".")
    lines += ["", "| workload | command | machine | figure | limit or peer | ratio | bound | met | date | file |",
              "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for group in section["group"]:
        where = claims["results"].get(group.get("file"), group)
        if "file" in group and where is group:
            raise Mistake(f"{CLAIMS} does not say machine and date of {group['file']}")
        for row in group["rows"]:
            workload, figure, beside, ratio, bound, met, source = claim(row, group, results)
            cells = [workload, str(commands.index(group["command"]) + 1), where["machine"], figure, beside, ratio, bound,
                     met, where["date"], source]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def plotted(plot, results):
    """The series that have a figure at every tick, as (label, values, limits or None), and the labels of the others."""
    series, missing = [], []
    for line in plot["series"]:
        found = [next((results[f][row] for f in plot["files"] if row in results.get(f, {})), None) for row in line["rows"]]
        points = [None if hit is None else hit[0] for hit in found]
        if all(point is None for point in points):
            missing.append(line["label"])
            continue
        series.append((line["label"], points))
        if "limit" in line:
            series.append((line["limit"], [None if hit is None else hit[2] for hit in found]))
    return series, missing


def make(root):
    """{path: text} of everything that is made."""
    claims = tomllib.loads((root / CLAIMS).read_text())
    results = read_results(root)
    page = HEAD + "".join(f"| {name} | {what} |\n" for name, what in claims["machines"].items())
    made = {}
    rows = [claim(row, group, results) + [claims["results"].get(group.get("file"), group)["machine"]]
            for section in claims["section"] for group in section["group"] for row in group["rows"]]
    bounds = [row for row in rows if row[4]]
    page += (f"\n{len(rows)} figures, {sum('none' not in row[6] for row in rows)} of them with a file. "
             f"{len(bounds)} have a bound; {sum(row[5] == 'no' for row in bounds)} do not meet it:\n\n")
    page += "".join(f"- {row[0]} on {row[7]}: {row[3] or row[1]}, bound {row[4]}\n" for row in bounds if row[5] == "no")
    for section in claims["section"]:
        page += "\n" + section_text(section, claims, results)
    made[PAGE] = page
    for plot in claims["plot"]:
        series, _ = plotted(plot, results)
        if series:
            limits = {line["limit"] for line in plot["series"] if "limit" in line}
            made[f"{PLOTS}/{plot['name']}.svg"] = plot_svg(plot, series, limits)
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 where something would change")
    parser.add_argument("--tree", type=pathlib.Path, default=ROOT, help="the tree (default: the one it is in)")
    options = parser.parse_args()
    try:
        made = make(options.tree)
    except Mistake as mistake:
        print(f"{CLAIMS}: {mistake}", file=sys.stderr)
        return 1
    stale = [path for path, text in made.items()
             if not (options.tree / path).is_file() or (options.tree / path).read_text() != text]
    if options.check:
        for path in stale:
            print(f"{path}: not what scripts/performance.py makes")
        print(f"{len(stale)} of {len(made)} files are stale" if stale else "performance.md is what the results say")
        return 1 if stale else 0
    for path in stale:
        (options.tree / path).write_text(made[path])
        print(f"{path} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
