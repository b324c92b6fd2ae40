"""Which tests are enough to catch every mutant that is caught, and which add nothing to these."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from .run import CAUGHT, IMPORT, Result

PROMISES = [f"S{number}" for number in range(1, 11)]


def function(test: str) -> str:
    """Return the node id of the function of which *test* is one case."""
    return test.partition("[")[0]


def killers(results: Iterable[Result]) -> dict[str, set[str]]:
    """Return the test functions that catch each mutant; without those that none can miss."""
    return {
        result.digest: {function(test) for test in result.killers}
        for result in results
        if result.status in CAUGHT and IMPORT not in result.killers
    }


def cover(catch: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """
    Return test functions that together catch every mutant, and what each of them is needed for.

    The one that catches the most of what is left is taken first (greedy). That is a small
    cover, not always the smallest.
    """
    chosen: list[str] = []
    left = dict(catch)
    while left:
        votes = Counter(test for tests in left.values() for test in tests)
        chosen.append(min(votes, key=lambda test: (-votes[test], test)))
        left = {mutant: tests for mutant, tests in left.items() if chosen[-1] not in tests}
    for test in chosen[::-1]:  # later choices may catch all that an earlier one was taken for
        if all(set(chosen) & set(tests) - {test} for tests in catch.values()):
            chosen.remove(test)
    return {
        test: [mutant for mutant, tests in catch.items() if set(chosen) & set(tests) == {test}]
        for test in chosen
    }


def lines(
    results: Collection[Result], tests: Iterable[str], promises: Mapping[str, str]
) -> Iterator[str]:
    """
    Yield the cover of *results* in words.

    Args:
        tests: All tests that were there.

        promises: The promise that a mutant breaks, by its digest.
    """
    catch = killers(results)
    needed = cover(catch)
    every = {function(test) for test in tests}
    catching = set[str]().union(*catch.values())
    yield f"{len(needed)} of {len(every)} test functions catch all {len(catch)} mutants:"
    for test, alone in needed.items():
        kept = {promises.get(mutant, "") for mutant, found in catch.items() if test in found}
        yield f"+ {test}  {len(alone)} alone  {' '.join(sorted(kept - {''}))}".rstrip()
    names = {digest: result.id for result in results if (digest := result.digest)}
    single = [f"{names[mutant]} by {next(iter(t))}" for mutant, t in catch.items() if len(t) == 1]
    yield f"{len(single)} mutants are caught by one function only:"
    yield from (f"! {line}" for line in single)
    yield f"{len(catching - set(needed))} catch only what those catch, too:"
    yield from (f"- {test}" for test in sorted(catching - set(needed)))
    yield f"{len(every - catching)} catch none of these mutants:"
    yield from (f"0 {test}" for test in sorted(every - catching))
    broken = {promises.get(mutant, "") for mutant in catch}
    if missing := [name for name in PROMISES if name not in broken]:
        yield f"No mutant breaks {', '.join(missing)}: keep the tests of these by hand."
    if untried := sum(result.untried for result in results):
        yield f"For lack of time {untried} trials of one test with one mutant were left out."
