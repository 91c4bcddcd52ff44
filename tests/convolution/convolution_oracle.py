"""A causal convolution as a loop in NumPy, and its gradients by hand: sample by sample, with a list of what came."""

from typing import Any

import numpy as np


def dense_kernel(W: np.ndarray, groups: int) -> np.ndarray:
    """The kernel `(k, n_out, n_in / groups)` as `(k, n_out, n_in)`, with zeros between parts."""
    k, n_out, width = W.shape
    full = np.zeros((k, n_out, groups * width))
    for o in range(n_out):
        part = o // (n_out // groups)
        full[:, o, part * width : (part + 1) * width] = W[:, o]
    return full


def unroll(
    kernel: np.ndarray, b: Any, dilation: int, xs: Any, state: Any, mask: Any, resets: Any, d_ys: Any, d_final: Any
) -> dict[str, np.ndarray]:
    """Outputs, final states and gradients, rows one by one. `kernel` is `(k, n_out, n_in)`, the newest tap first."""
    k, n_out, n_in = kernel.shape
    rows, n_time, depth = len(xs), xs.shape[1], (k - 1) * dilation
    ys, final = np.zeros((rows, n_time, n_out)), np.zeros((rows, depth, n_in))
    d_kernel, d_b = np.zeros_like(kernel), np.zeros(n_out)
    d_xs, d_state = np.zeros((rows, n_time, n_in)), np.zeros((rows, depth, n_in))
    for row in range(rows):
        # What the row has read: each sample with the place that its gradient goes to.
        seen = [(state[row, i], d_state[row, i]) for i in range(depth)]
        for t in range(n_time):
            if not mask[row, t]:
                continue
            if resets[row, t]:
                seen = []
            seen.append((xs[row, t], d_xs[row, t]))
            ys[row, t] = b
            d_b += d_ys[row, t]
            for j in range(k):
                if len(seen) > j * dilation:
                    x, d_x = seen[-1 - j * dilation]
                    ys[row, t] += kernel[j] @ x
                    d_kernel[j] += np.outer(d_ys[row, t], x)
                    d_x += kernel[j].T @ d_ys[row, t]
        for i, (x, d_x) in enumerate(reversed(seen[len(seen) - depth :] if len(seen) > depth else seen)):
            final[row, depth - 1 - i] = x
            d_x += d_final[row, depth - 1 - i]
    return {"ys": ys, "final": final, "kernel": d_kernel, "b": d_b, "d_xs": d_xs, "d_state": d_state}
