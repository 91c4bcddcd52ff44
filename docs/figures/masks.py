"""Draws masks.svg: what a mask and resets make of three rows.

python docs/figures/masks.py            writes docs/figures/masks.svg
"""

import pathlib

ROWS = (
    # label, samples (a letter names the sequence that a sample belongs to, a dot is a masked step)
    ("padded on the right", "aaaaa..."),
    ("gaps anywhere", ".bb.bbb."),
    ("packed, with resets", "cccddddd"),
)
RESETS = {2: (0, 3)}
COLOURS = {"a": "#5c6bc0", "b": "#26a69a", "c": "#ef6c00", "d": "#8e24aa"}
CELL, LEFT, TOP = 44, 170, 34


def draw() -> str:
    """The picture as SVG text."""
    width, height = LEFT + 8 * CELL + 90, TOP + 3 * (CELL + 30) - 14
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="14">',
        "<title>Three rows of eight steps: padded, with gaps, and packed with resets</title>",
        *(f'<text x="{LEFT + (t + 0.5) * CELL}" y="20" text-anchor="middle" fill="#666">{t}</text>' for t in range(8)),
        f'<text x="{LEFT + 8 * CELL + 14}" y="20" fill="#666">final state</text>',
    ]
    for i, (label, samples) in enumerate(ROWS):
        y = TOP + i * (CELL + 30)
        parts.append(f'<text x="{LEFT - 12}" y="{y + CELL / 2 + 5}" text-anchor="end">{label}</text>')
        counts: dict[str, int] = {}
        for t, sample in enumerate(samples):
            x = LEFT + t * CELL
            if sample == ".":
                parts.append(
                    f'<rect x="{x + 2}" y="{y}" width="{CELL - 4}" height="{CELL}" rx="4" fill="none" stroke="#aaa" '
                    'stroke-dasharray="4 3"/>'
                )
                continue
            counts[sample] = counts.get(sample, 0) + 1
            parts.append(
                f'<rect x="{x + 2}" y="{y}" width="{CELL - 4}" height="{CELL}" rx="4" fill="{COLOURS[sample]}"/>'
                f'<text x="{x + CELL / 2}" y="{y + CELL / 2 + 5}" text-anchor="middle" fill="white">'
                f'{sample}<tspan font-size="10" dy="4">{counts[sample]}</tspan></text>'
            )
        for t in RESETS.get(i, ()):
            x = LEFT + t * CELL
            parts.append(f'<path d="M{x} {y - 6} V{y + CELL + 6}" stroke="#c62828" stroke-width="3"/>')
            parts.append(f'<text x="{x}" y="{y - 9}" text-anchor="middle" fill="#c62828" font-size="11">reset</text>')
        last = next(s for s in reversed(samples) if s != ".")
        parts.append(
            f'<text x="{LEFT + 8 * CELL + 14}" y="{y + CELL / 2 + 5}" fill="{COLOURS[last]}">'
            f'after {last}<tspan font-size="10" dy="4">{counts[last]}</tspan></text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    pathlib.Path(__file__).with_suffix(".svg").write_text(draw())
