"""Which tests one worker runs together, where several run the suite (`pytest -n 2`)."""

from xdist.scheduler import LoadScopeScheduling


def group(nodeid: str) -> str:
    """The group of a test: its file; what is checked of one entry of the table; a page, a docstring.

    An entry's promises stay together, since what is compiled for one of them serves others. Small groups come last, so
    that workers end at about the same time.
    """
    path, _, test = nodeid.partition("::")
    function, _, case = test.partition("[")
    if function == "test_promise":
        return case.rpartition("-")[0]
    return nodeid if function in ("test_page", "test_docstring") else path


class ByGroup(LoadScopeScheduling):
    """Hands a group at a time to the worker that is free."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)
