"""Every promise of the contract, on every entry of the table: gated and plain units in all their options."""

import pytest
from entry import Entry
from promises import cases, check
from table_gated import GATED

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize(("entry", "promise"), cases(GATED))
def test_promise(entry: Entry, promise: str):
    check(entry, promise)
