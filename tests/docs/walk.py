"""Which functions of the library a call passes: prints the walks of docs/design.md.

python tests/docs/walk.py
"""

import pathlib
import sys
import tempfile
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

import sequinox as sqx
from sequinox import train

SRC = str(pathlib.Path(sqx.__file__).parent) + "/"
Call = tuple[int, str]


def passed(run: Callable) -> list[Call]:
    """Every call of a function of the library with its depth, small functions without a name left out."""
    calls: list[Call] = []

    def note(frame, event, argument):
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(SRC) or code.co_name.startswith("<"):
            return
        depth, outer = 0, frame.f_back
        while outer is not None:
            depth += outer.f_code.co_filename.startswith(SRC) and not outer.f_code.co_name.startswith("<")
            outer = outer.f_back
        name = code.co_qualname.replace(".<locals>", "")
        calls.append((depth, f"{code.co_filename.removeprefix(SRC)}: {name}"))

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def unroll() -> list[Call]:
    """The first `gru.unroll(xs)`."""
    gru, xs = sqx.GRU(3, 5, jax.random.key(0)), jnp.ones((2, 7, 3))
    return passed(lambda: gru.unroll(xs))


def fit_step() -> list[Call]:
    """A step of `fit` that is compiled already, and after which nothing is due."""
    xs, labels = np.ones((12, 7, 3), np.float32), np.arange(12, dtype=np.int32) % 2
    net = sqx.recurrent_net(3, 5, 2, jax.random.key(0))

    def objective(model, batch, key):
        xs, labels = batch[0]
        return train.cross_entropy(model(xs, key=key), labels)

    def run():
        with tempfile.TemporaryDirectory() as out_dir:
            train.fit(
                net,
                optax.adam(1e-3),
                objective,
                train.Batches((xs, labels), 4, seed=0),
                steps=9,
                key=jax.random.key(1),
                out_dir=out_dir,
                log_every=9,
                progress=False,
            )

    calls = passed(run)
    starts = [i for i, (_, name) in enumerate(calls) if name.endswith("Run.next_batch")]
    return calls[starts[5] : starts[6]]


def lines(calls: list[Call]) -> list[str]:
    """Each function once, where it is first called, indented by who calls it."""
    least = min(depth for depth, _ in calls)
    first = {name: depth - least for depth, name in reversed(calls)}
    seen = dict.fromkeys(name for _, name in calls)
    return ["  " * first[name] + name for name in seen]


if __name__ == "__main__":
    for walk in (unroll, fit_step):
        print(f"# {walk.__doc__}", *lines(walk()), sep="\n")
