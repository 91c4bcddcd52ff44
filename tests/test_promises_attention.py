"""Every promise of the contract, on every entry of the table: attention, caches, positions."""

import pytest
from promises import check
from table import ATTENTION, Entry

from sequinox.testing._check import PROMISES

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("entry", ATTENTION, ids=str)
def test_promise(entry: Entry, promise: str):
    check(entry, promise)
