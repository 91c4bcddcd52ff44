"""Every promise of the contract, on every entry of the table."""

import pytest
from entry import Entry
from promises import cases, check
from table import TABLE

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize(("entry", "promise"), cases(TABLE))
def test_promise(entry: Entry, promise: str):
    check(entry, promise)
