"""Draws receptive_field.svg: what one output of three dilated convolutions depends on.

python docs/figures/receptive_field.py            writes docs/figures/receptive_field.svg
"""

import pathlib

DILATIONS = (1, 2, 4)
N_TIME, COLUMN, ROW, LEFT, TOP = 11, 48, 62, 150, 24


def draw() -> str:
    """The picture as SVG text."""
    width, height = LEFT + N_TIME * COLUMN, TOP + len(DILATIONS) * ROW + 44
    x = lambda t: LEFT + (t + 0.5) * COLUMN
    y = lambda level: TOP + (len(DILATIONS) - level) * ROW
    reached = [{N_TIME - 1}]  # from the last output downwards
    for dilation in reversed(DILATIONS):
        reached.append({t - lag for t in reached[-1] for lag in (0, dilation)})
    reached.reverse()
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="14">',
        "<title>Three layers of two taps with dilations 1, 2 and 4: an output sees the last eight samples</title>",
    ]
    for level, dilation in enumerate(DILATIONS, 1):
        for t in range(N_TIME):
            for lag in (0, dilation):
                if t < lag:
                    continue
                seen = t in reached[level]
                parts.append(
                    f'<path d="M{x(t - lag)} {y(level - 1)} L{x(t)} {y(level)}" '
                    f'stroke="{"#ef6c00" if seen else "#ddd"}" stroke-width="{2.5 if seen else 1}"/>'
                )
    for level in range(len(DILATIONS) + 1):
        label = f"dilation {DILATIONS[level - 1]}" if level else "samples"
        parts.append(f'<text x="{LEFT - 6}" y="{y(level) + 5}" text-anchor="end">{label}</text>')
        for t in range(N_TIME):
            colour = "#ef6c00" if t in reached[level] else "#fff"
            line = "#ef6c00" if t in reached[level] else "#aaa"
            parts.append(f'<circle cx="{x(t)}" cy="{y(level)}" r="8" fill="{colour}" stroke="{line}"/>')
    for t in range(N_TIME):
        parts.append(f'<text x="{x(t)}" y="{height - 14}" text-anchor="middle" fill="#666">{t}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    pathlib.Path(__file__).with_suffix(".svg").write_text(draw())
