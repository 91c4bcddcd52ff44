"""Every promise of the contract, on every entry of the table: diagonal recurrences and linear filters."""

import pytest
from entry import Entry
from promises import cases, check
from table_diagonal import DIAGONAL

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize(("entry", "promise"), cases(DIAGONAL))
def test_promise(entry: Entry, promise: str):
    check(entry, promise)
