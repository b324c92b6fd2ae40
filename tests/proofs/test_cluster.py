"""
All interleavings around the owner of a slot of a Redis Cluster; see `cluster_model`.

    S1  one master does not vote for two programs at once, whoever was promoted meanwhile
    S6  nodes that join and leave do not cost the confirmation of who reaches all others

Each defect that is planted in the rules, and each change that the guide forbids, breaks S1.
"""

import math
from dataclasses import replace

import pytest

from redlock_aio._protocol.cluster_nodes import Owner
from redlock_aio._protocol.confirmation import Configuration, Confirmation

from .cluster_model import Answer, ClusterModel, ClusterRules, all_members
from .search import Searched, search

MOST = 100_000
"""The limit of searched states."""

pytestmark = [pytest.mark.promise("S1"), pytest.mark.timeout(600)]

SETTINGS: dict[str, tuple[ClusterModel, int]] = {
    "a failover, a side for each": (ClusterModel(reaches=("AB", "RB")), 900),
    "a failover of four, a side for each": (ClusterModel("ARBC", reaches=("AB", "RC")), 1_000),
    "a failover of four, two nodes in common": (
        ClusterModel("ARBC", reaches=("ABC", "RBC")),
        2_500,
    ),
    "there and back": (ClusterModel(promotions=2, reaches=("AR", "AB")), 9_000),
    "there and back, unseen": (ClusterModel(promotions=2, reaches=("AR", "AR")), 9_000),
    "a node leaves": (ClusterModel("ARBC", leaves="C", reaches=("AC", "RB")), 30_000),
    "a node has joined, and a side does not know": (
        ClusterModel("ARBD", unaware="AB", newest="D", reaches=("AB", "RD")),
        1_000,
    ),
    "a node is to be forgotten, and a side does not know": (
        ClusterModel("ARBC", unaware="AB", forgotten="B", reaches=("AB", "RC")),
        1_000,
    ),
    "any answers": (ClusterModel(), 90_000),
    "there and back, any answers": (ClusterModel(promotions=2), MOST),
    "a node joins": (ClusterModel(joins="D", reaches=("AB", "RD")), 98_000),
    "a node joins, any answers": (ClusterModel(joins="D"), MOST),
    "two join, one after the other": (
        ClusterModel(joins="DE", takers="R", reaches=("AB", "RDE")),
        MOST,
    ),
    "two leave, one after the other": (
        ClusterModel("ARBCD", leaves="CD", takers="R", reaches=("ACD", "RB")),
        MOST,
    ),
}
"""The cluster and what the programs reach of it, and the least number of states."""

LONG = 3_000
"""Settings with more states belong to the full run."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.full] if least > LONG else [])
        for name, (_, least) in SETTINGS.items()
    ],
)
def test_no_vote_counts_twice(searched: Searched, name: str) -> None:
    model, least = SETTINGS[name]
    found = searched(model, MOST)
    assert not found.broken, str(found)
    assert found.states >= least
    assert found.complete or found.states >= MOST


@pytest.mark.parametrize(
    "model",
    [
        ClusterModel(promotions=0, joins="D", reaches=("ARBD", "ARBD"), progress=True),
        ClusterModel("ARBC", promotions=0, leaves="C", reaches=("ARB", "ARB"), progress=True),
    ],
    ids=["join", "leave"],
)
def test_a_change_of_the_nodes_costs_nothing(model: ClusterModel) -> None:
    found = search(model, MOST)
    assert not found.broken, str(found)
    assert found.states > 100


def _primaries(answers: tuple[Answer, ...]) -> set[str]:
    """Return the nodes with slots: B and C, and whoever is named as the owner of this one."""
    return {
        name
        for answer in answers
        for name in answer.listed
        if name in "BC" or name == answer.view.owner
    }


class Timeless(Confirmation):
    """A confirmation that does not run out."""

    def until(self, configuration: Configuration | Owner) -> float:
        return math.inf if super().until(configuration) > -math.inf else -math.inf


class OneIsEnough(Confirmation):
    """A confirmation by any of the nodes."""

    @property
    def _needed(self) -> int:
        return 1


RULES = ClusterRules()

DEFECTS: dict[str, ClusterModel] = {
    "the voters are the primaries only": ClusterModel(
        "ARBC", reaches=("AB", "RC"), rules=replace(RULES, voters=_primaries)
    ),
    "no epoch in the identity": ClusterModel(
        promotions=2, reaches=("AR", "AB"), rules=replace(RULES, epochs=False)
    ),
    "no life in the marker": ClusterModel(
        promotions=2, reaches=("AR", "AB"), rules=replace(RULES, lives=False)
    ),
    "lost keys are not noticed": ClusterModel(
        promotions=2, reaches=("AR", "AB"), rules=replace(RULES, notices=False)
    ),
    "a confirmation lasts for ever": ClusterModel(
        reaches=("AB", "RB"), rules=replace(RULES, confirmation=Timeless, forgets=False)
    ),
    "the quarantine is that of a restart": ClusterModel(
        reaches=("AB", "RB"), rules=replace(RULES, quarantine=1)
    ),
    "one node confirms": ClusterModel(
        reaches=("AB", "RB"), rules=replace(RULES, confirmation=OneIsEnough)
    ),
    "two nodes join at once": ClusterModel(
        "ARBDE", takers="R", unaware="AB", newest="DE", reaches=("AB", "RDE")
    ),
    "a node is replaced at once": ClusterModel(
        "ARBD", takers="R", unaware="AB", newest="D", forgotten="B", reaches=("AB", "RD")
    ),
}
"""Defects in the rules, and changes of the nodes that are not allowed."""


@pytest.mark.spread(0)
@pytest.mark.parametrize("name", DEFECTS)
def test_each_defect_is_found(name: str) -> None:
    found = search(DEFECTS[name], MOST)
    assert found.broken.startswith("S1"), f"{name}: {found}"


def test_the_voters_are_all_nodes_on_any_list() -> None:
    view = ClusterModel().first().nodes[0].view
    assert all_members((Answer("A", view, "ARB"), Answer("D", view, "AD"))) == {*"ARB"}
    assert all_members((Answer("A", view, "ABDR"), Answer("D", view, "AD"))) == {*"ABDR"}
