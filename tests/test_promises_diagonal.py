"""Every promise of the contract, on every entry of the table: diagonal recurrences and linear filters."""

import pytest
from promises import check
from table_diagonal import DIAGONAL, Entry

from sequinox.testing._check import PROMISES

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("entry", DIAGONAL, ids=str)
def test_promise(entry: Entry, promise: str):
    check(entry, promise)
