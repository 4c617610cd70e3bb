"""Line plots as SVG, for scripts/performance.py."""
import html
import math

WIDTH, HEIGHT = 720, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 190, 40, 52  # margins; the right one has the names of the lines
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
STYLE = ("text{font:13px sans-serif;fill:#24292f}.axis{stroke:#8c959f}.grid{stroke:#d0d7de}"
         ".line{fill:none;stroke-width:2}.limit{stroke-dasharray:5 4}"
         "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.grid{stroke:#30363d}}")


def steps(greatest):
    """Round values from 0 to a little above `greatest`, about five of them."""
    rough = greatest / 5
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= rough)
    return [step * i for i in range(math.ceil(greatest / step) + 1)]


def decades(least, greatest):
    """Powers of ten around the values."""
    return [10 ** e for e in range(math.floor(math.log10(least)), math.ceil(math.log10(greatest)) + 1)]


def plot_svg(plot, series, limits):
    """`series`: (label, values), a value or None for each of plot["ticks"]. Lines whose label is in `limits` are dashed, in
    the colour of the line before them."""
    values = [v for _, line in series for v in line if v is not None]
    logarithmic = plot.get("logarithmic", False)
    marks = decades(min(values), max(values)) if logarithmic else steps(max(values))
    scale = math.log10 if logarithmic else float
    low, high = scale(marks[0]), scale(marks[-1])
    ticks = plot["ticks"]

    def x(i):
        return LEFT + (WIDTH - LEFT - RIGHT) * (i + 0.5) / len(ticks)

    def y(value):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (scale(value) - low) / (high - low)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
           f"<title>{html.escape(plot['title'])}</title><style>{STYLE}</style>",
           f'<text x="{LEFT}" y="20" font-weight="bold">{html.escape(plot["title"])}</text>']
    for mark in marks:
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(mark):.1f}" y2="{y(mark):.1f}"/>'
                   f'<text x="{LEFT - 8}" y="{y(mark) + 4:.1f}" text-anchor="end">{mark:g}</text>')
    for i, tick in enumerate(ticks):
        out.append(f'<text x="{x(i):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{html.escape(tick)}</text>')
    out.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM}"/>'
               f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{html.escape(plot["x"])}</text>'
               f'<text x="{LEFT + 4}" y="{TOP - 4}">{html.escape(plot["y"])}</text>')
    colour = -1
    for row, (label, line) in enumerate(series):
        dashed = label in limits
        colour += 0 if dashed else 1
        stroke = COLOURS[colour % len(COLOURS)]
        points = [(x(i), y(v)) for i, v in enumerate(line) if v is not None]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        out.append(f'<polyline class="line{" limit" if dashed else ""}" stroke="{stroke}" points="{path}"/>')
        out += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3.5" fill="{stroke}"/>' for px, py in points if not dashed]
        ly = TOP + 20 * row + 10
        out.append(f'<line class="line{" limit" if dashed else ""}" stroke="{stroke}" x1="{WIDTH - RIGHT + 12}" '
                   f'x2="{WIDTH - RIGHT + 36}" y1="{ly}" y2="{ly}"/>'
                   f'<text x="{WIDTH - RIGHT + 42}" y="{ly + 4}">{html.escape(label)}</text>')
    return "\n".join(out) + "\n</svg>\n"
