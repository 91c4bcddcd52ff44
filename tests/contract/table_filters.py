"""The part of the table of layers for fixed and adaptive filters, running statistics, pooling baselines."""

import jax
import jax.numpy as jnp
from entry import KEYS, Entry

import sequinox as sqx

FILTERS = [
    Entry("FIR", sqx.FIR, lambda: sqx.FIR(3, 3, KEYS[0])),
    Entry(
        "FIR-of-many-taps",
        sqx.FIR,
        lambda: sqx.FIR(3, 18, KEYS[0]),
        variant_of="FIR",
    ),
    Entry("RunningMean", sqx.RunningMean, lambda: sqx.RunningMean(3)),
    Entry("RunningMax", sqx.RunningMax, lambda: sqx.RunningMax(3)),
    Entry("RunningCount", sqx.RunningCount, lambda: sqx.RunningCount(3)),
    Entry("LMS", sqx.LMS, lambda: sqx.LMS(3, 0.25, n_signals=2)),
    Entry("NLMS", sqx.NLMS, lambda: sqx.NLMS(3, 0.5, 0.1, n_signals=2)),
    Entry("AdaptiveOnePole", sqx.AdaptiveOnePole, lambda: sqx.AdaptiveOnePole(0.25)),
    Entry("MaxOverTime", sqx.MaxOverTime, lambda: sqx.MaxOverTime(3)),
    Entry("Flatten", sqx.Flatten, lambda: sqx.Flatten(2, 3)),
    Entry(
        "flat_net",
        sqx.flat_net,
        lambda: sqx.flat_net(3, 4, 5, 2, KEYS[0], activation=jnp.tanh),
        composed=True,
    ),
    Entry(
        "pooling_net-mean",
        sqx.pooling_net,
        lambda: sqx.pooling_net(3, 5, 2, KEYS[0], activation=jax.nn.gelu),
        composed=True,
    ),
    Entry(
        "pooling_net-max",
        sqx.pooling_net,
        lambda: sqx.pooling_net(3, 5, 2, KEYS[0], pool="max"),
        variant_of="pooling_net-mean",
        composed=True,
    ),
]
