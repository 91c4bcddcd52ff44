"""Draws lms_steps.svg: how far the taps of LMS end from those that they look for, by step size.

python docs/figures/lms_steps.py            writes docs/figures/lms_steps.svg
"""

import itertools
import math
import pathlib

import numpy as np

TAPS = np.array([0.5, -0.25, 1.0])
NOISE, ROWS, TIME = 0.1, 1000, 400  # deviation of what is added to the response; rows, and samples of each
INPUTS = (("white input", 0.0), ("coloured input (pole 0.8)", 0.8))
SHARES = np.geomspace(0.01, 1.0, 25)  # step sizes, as shares of the bound for the mean
WIDTH, HEIGHT, LEFT, TOP, LOW, HIGH = 330, 250, 64, 62, -4, 3  # LOW and HIGH: powers of ten
ORANGE, BLUE, GREY = "#ef6c00", "#5c6bc0", "#888"


def correlation(pole: float) -> np.ndarray:
    """The autocorrelation matrix of three samples of power 1."""
    return pole ** np.abs(np.subtract.outer(np.arange(3), np.arange(3))).astype(float)


def share_lost(mu: float, values: np.ndarray) -> float:
    """The sum that must be less than 1: above, the mean square deviation grows without end."""
    return float(np.sum(mu * values / (2 - 2 * mu * values))) if mu * values.max() < 1 else math.inf


def mean_square_bound(values: np.ndarray) -> float:
    """The step size at which that sum is 1."""
    low, high = 0.0, 1 / values.max()
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if share_lost(middle, values) < 1 else (low, middle)
    return low


def expected(mu: float, R: np.ndarray) -> float:
    """The mean square deviation after the last sample, for Gaussian windows that are independent of each other."""
    values, vectors = np.linalg.eigh(R)
    squares = (vectors.T @ TAPS) ** 2  # mean squares along the eigenvectors
    for _ in range(TIME):
        error = NOISE**2 + np.sum(values * squares)
        squares = (1 - 2 * mu * values + mu**2 * values**2) * squares + mu**2 * values * (error + values * squares)
    return float(np.sum(squares))


def windows(pole: float, overlap: bool, rows: int, time: int) -> np.ndarray:
    """What three taps see, `(time, rows, 3)`: of one signal, or of a new signal at every sample."""
    random = np.random.default_rng(0)
    longer = time + 2 if overlap else 3
    x = random.normal(size=(longer, rows if overlap else rows * time))
    for t in range(1, longer):
        x[t] = pole * x[t - 1] + math.sqrt(1 - pole**2) * x[t]
    if overlap:
        return np.stack([x[2:], x[1:-1], x[:-2]], -1)
    return x[::-1].T.reshape(time, rows, 3)


def deviation(mu: float, seen: np.ndarray) -> float:
    """The mean over rows of the squared distance from `TAPS`, after the last sample."""
    noise = NOISE * np.random.default_rng(1).normal(size=seen.shape[:2])
    far = np.broadcast_to(-TAPS, seen.shape[1:])
    for u, extra in zip(seen, noise, strict=True):
        e = extra - np.sum(far * u, -1)
        far = far + mu * e[:, None] * u
    return float(np.mean(np.sum(far**2, -1)))


def draw() -> str:
    """The picture as SVG text."""
    width, height = 2 * (LEFT + WIDTH) + 16, TOP + HEIGHT + 92
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        "<title>Mean square deviation of LMS, by step size: it grows far below the bound of the mean</title>",
    ]
    for i, (label, pole) in enumerate(INPUTS):
        parts += panel(LEFT + i * (LEFT + WIDTH), label, pole)
    y = TOP + HEIGHT + 74
    for at, colour, label in ((6, BLUE, "windows of a delay line"), (206, ORANGE, "independent windows")):
        parts.append(f'<circle cx="{LEFT + at}" cy="{y - 4}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + at + 12}" y="{y}">{label}</text>')
    parts.append(f'<path d="M{LEFT + 386} {y - 4} h24" stroke="{ORANGE}" stroke-width="2"/>')
    parts.append(f'<text x="{LEFT + 418}" y="{y}">the same, by theory</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def panel(left: float, label: str, pole: float) -> list[str]:
    """The axes, bounds, line and points of one input."""
    R = correlation(pole)
    values = np.linalg.eigvalsh(R)
    mean, bottom = 2 / values.max(), TOP + HEIGHT
    x = lambda mu: round(left + WIDTH * (1 + math.log10(mu / mean) / 2))
    y = lambda far: round(bottom - HEIGHT * (min(math.log10(far), HIGH) - LOW) / (HIGH - LOW))
    parts = [f'<text x="{left + WIDTH / 2}" y="18" text-anchor="middle">{label}</text>']
    for power in range(LOW, HIGH + 1):
        at = y(10.0**power)
        parts.append(f'<path d="M{left} {at} h{WIDTH}" stroke="#eee"/>')
        name = f'10<tspan font-size="9" dy="-5">{power}</tspan>'
        parts.append(f'<text x="{left - 8}" y="{at + 4}" text-anchor="end" fill="#666">{name}</text>')
    for share, name in ((0.01, "0.01"), (0.1, "0.1"), (1.0, "1")):
        at = x(share * mean)
        parts.append(f'<path d="M{at} {bottom} v5" stroke="#aaa"/>')
        parts.append(f'<text x="{at}" y="{bottom + 20}" text-anchor="middle" fill="#666">{name}</text>')
    axis = "step size, as a share of 2 / λ_max"
    parts.append(f'<text x="{left + WIDTH / 2}" y="{bottom + 42}" text-anchor="middle" fill="#666">{axis}</text>')
    bounds = (
        (2 / (3 * values.sum()), "2 / (3 tr R)", -1),
        (mean_square_bound(values), "mean square", 1),
        (mean, "mean", -1),
    )
    for mu, name, side in bounds:
        high = TOP - 26 if name == "mean" else TOP - 12
        parts.append(f'<path d="M{x(mu)} {high - 8} V{bottom}" stroke="{GREY}" stroke-dasharray="4 3"/>')
        anchor = "end" if side < 0 else "start"
        parts.append(
            f'<text x="{x(mu) + 4 * side}" y="{high}" text-anchor="{anchor}" font-size="11" fill="{GREY}">{name}</text>'
        )
    fine = ((mu, expected(mu, R)) for mu in np.geomspace(0.01 * mean, mean, 200))
    below = itertools.takewhile(lambda point: point[1] < 10.0**HIGH, fine)
    line = " ".join(f"{'ML'[k > 0]}{x(mu)} {y(far)}" for k, (mu, far) in enumerate(below))
    parts.append(f'<path d="{line}" fill="none" stroke="{ORANGE}" stroke-width="2"/>')
    for overlap, colour in ((False, ORANGE), (True, BLUE)):
        seen = windows(pole, overlap, ROWS, TIME)
        for share in SHARES:
            far = deviation(share * mean, seen)
            inside = math.isfinite(far) and far < 10.0**HIGH
            at = (x(share * mean), y(far) if inside else y(10.0**HIGH))
            look = f'fill="{colour}"' if inside else f'fill="white" stroke="{colour}" stroke-width="1.5"'
            parts.append(f'<circle cx="{at[0]}" cy="{at[1]}" r="4" {look}/>')
    return parts


if __name__ == "__main__":
    pathlib.Path(__file__).with_suffix(".svg").write_text(draw())
