"""Continuing sequences of tokens, and reading some of them from a model's own predictions."""

from .._room import close_room as _close_room
from ._forced import unroll_forced as unroll_forced
from ._generate import generate as generate
from ._generated import Generated as Generated

_close_room(__name__)
