"""Draws ragged.svg: five sequences padded, in buckets, packed, and in windows.

python docs/figures/ragged.py            writes docs/figures/ragged.svg
"""

import pathlib

# Blocks of rows beside each other; a letter names a sample's sequence, a dot is filler.
LAYOUTS = (
    ("padded", "35 places", (("aaa....", "bbbbbbb", "cc.....", "dddd...", "ee....."),)),
    ("buckets", "23 places", (("aaa", "cc.", "ee."), ("bbbbbbb", "dddd..."))),
    ("packed", "18 places", (("bbbbbbbcc", "ddddaaaee"),)),
    ("windows", "18 places", (("bbb", "ddd"), ("bbb", "daa"), ("bcc", "aee"))),
)
COLOURS = {"a": "#5c6bc0", "b": "#26a69a", "c": "#ef6c00", "d": "#8e24aa", "e": "#78909c"}
CELL, LEFT, TOP, GAP = 30, 110, 12, 26


def draw() -> str:
    """The picture as SVG text."""
    parts, y, width = [], TOP, LEFT + 10 * CELL + 2 * GAP + 110
    for name, places, blocks in LAYOUTS:
        height = max(map(len, blocks)) * CELL
        parts.append(f'<text x="{LEFT - 14}" y="{y + height / 2 + 5}" text-anchor="end">{name}</text>')
        x, seen, counts = LEFT, set(), dict.fromkeys(COLOURS, 0)
        for rows in blocks:
            for i, row in enumerate(rows):
                for t, letter in enumerate(row):
                    left, top = x + t * CELL, y + i * CELL
                    if letter == ".":
                        parts.append(
                            f'<rect x="{left + 2}" y="{top + 2}" width="{CELL - 4}" height="{CELL - 4}" rx="3" '
                            'fill="none" stroke="#aaa" stroke-dasharray="3 3"/>'
                        )
                        continue
                    counts[letter] += 1
                    parts.append(
                        f'<rect x="{left + 1}" y="{top + 2}" width="{CELL - 2}" height="{CELL - 4}" rx="3" '
                        f'fill="{COLOURS[letter]}"/>'
                        f'<text x="{left + CELL / 2}" y="{top + CELL / 2 + 4}" text-anchor="middle" fill="white" '
                        f'font-size="12">{letter}<tspan font-size="9" dy="3">{counts[letter]}</tspan></text>'
                    )
                    if letter not in seen and name in ("packed", "windows"):
                        parts.append(f'<path d="M{left} {top} V{top + CELL}" stroke="#c62828" stroke-width="3"/>')
                    seen.add(letter)
            x += len(rows[0]) * CELL + GAP
        parts.append(f'<text x="{x - GAP + 14}" y="{y + height / 2 + 5}" fill="#666">{places}</text>')
        y += height + GAP
    parts.append(f'<path d="M{LEFT} {y - 6} v16" stroke="#c62828" stroke-width="3"/>')
    parts.append(f'<text x="{LEFT + 10}" y="{y + 7}" fill="#c62828" font-size="12">reset</text>')
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y + 18}" width="{width}" height="{y + 18}" '
        'font-family="sans-serif" font-size="14">',
        "<title>Five sequences of 3, 7, 2, 4 and 2 samples: padded, in buckets, packed, in windows</title>",
    )
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    pathlib.Path(__file__).with_suffix(".svg").write_text(draw())
