"""Every promise of the contract, on every entry of the table: composition."""

import pytest
from entry import Entry
from promises import cases, check
from table_composition import COMPOSITION

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize(("entry", "promise"), cases(COMPOSITION))
def test_promise(entry: Entry, promise: str):
    check(entry, promise)
