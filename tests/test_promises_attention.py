"""Every promise of the contract, on every entry of the table: attention, caches, positions."""

import pytest
from entry import Entry
from promises import cases, check
from table import ATTENTION

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize(("entry", "promise"), cases(ATTENTION))
def test_promise(entry: Entry, promise: str):
    check(entry, promise)
