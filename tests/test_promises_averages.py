"""Every promise of the contract, on every entry of the table: recurrent weighted averages."""

import pytest
from entry import Entry
from promises import cases, check
from table_averages import AVERAGES

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize(("entry", "promise"), cases(AVERAGES))
def test_promise(entry: Entry, promise: str):
    check(entry, promise)
