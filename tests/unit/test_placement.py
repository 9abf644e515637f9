from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.factories import CLIQUE, state

from kimi_k3_operator.inventory.model import DomainPlacement
from kimi_k3_operator.plan.placement import no_room, place


def assigned(*replicas: str, domains: tuple) -> dict[str, str]:
    return {name: found.value for name, found in place(replicas, domains).assigned.items()}


def test_a_replica_goes_to_the_fullest_domain_that_still_holds_it():
    assert assigned("r", domains=(state("a", 6), state("b", 2), state("c", 1))) == {"r": "b"}


def test_ties_go_to_the_lowest_name():
    assert assigned("r", domains=(state("b", 4), state("a", 4))) == {"r": "a"}


def test_a_domain_that_another_compute_domain_uses_is_taken_last():
    domains = (state("a", 2, shared=True), state("b", 16))
    assert assigned("r", domains=domains) == {"r": "b"}
    assert assigned("r", domains=domains[:1]) == {"r": "a"}


def test_an_odd_node_is_left_over():
    placed = place(["r-0", "r-1", "r-2"], (state("a", 3), state("b", 3)))
    assert {name: found.value for name, found in placed.assigned.items()} == {"r-0": "a", "r-1": "b"}
    assert placed.unplaced == {"r-2": "no NVLink domain has 2 free nodes (a: 1, b: 1)"}
    assert [left.free for left in placed.domains] == [1, 1]


def test_a_replica_is_never_split_over_domains():
    placed = place(["r"], (state("a", 1), state("b", 1), state("c", 1)))
    assert placed.assigned == {}
    assert placed.unplaced == {"r": "no NVLink domain has 2 free nodes (a: 1, b: 1, c: 1)"}


def test_a_rack_of_18_nodes_with_2_cordoned_holds_8_replicas_and_the_ninth_says_why():
    placed = place([f"r-{i}" for i in range(9)], (state("rack", 16),))
    assert set(placed.assigned) == {f"r-{i}" for i in range(8)}
    assert placed.unplaced == {"r-8": "no NVLink domain has 2 free nodes (rack: 0)"}


def test_the_sentence_names_eight_domains_with_the_most_free_nodes_and_counts_the_rest():
    sentence = no_room([state(f"d{i:02}", int(i == 11)) for i in range(12)])
    assert sentence.startswith("no NVLink domain has 2 free nodes (d11: 1, d00: 0, d01: 0")
    assert sentence.endswith("d06: 0, and 4 more)")


def test_without_any_domain_the_sentence_says_so():
    assert place(["r"], ()).unplaced == {"r": "no node of this hardware is in an NVLink domain"}


def test_no_replica_needs_no_room():
    assert place([], ()).assigned == place([], ()).unplaced == {}


@given(
    free=st.dictionaries(st.sampled_from("abcdefgh"), st.tuples(st.integers(0, 18), st.booleans()), max_size=8),
    count=st.integers(0, 40),
    seed=st.randoms(use_true_random=False),
)
def test_no_node_is_booked_twice_and_every_other_replica_has_a_reason(free, count, seed):
    domains = [state(name, nodes, shared=shared) for name, (nodes, shared) in free.items()]
    names = [f"r-{i}" for i in range(count)]
    placed = place(names, tuple(domains))
    for name, (nodes, _) in free.items():
        booked = sum(found == DomainPlacement(CLIQUE, name) for found in placed.assigned.values()) * 2
        left = next(d.free for d in placed.domains if d.placement.value == name)
        assert booked + left == nodes
        assert left >= 0
    assert set(placed.assigned) | set(placed.unplaced) == set(names)
    assert not set(placed.assigned) & set(placed.unplaced)
    assert all(placed.unplaced.values())
    if placed.unplaced:
        assert all(d.free < 2 for d in placed.domains)
    seed.shuffle(domains)
    again = place(names, tuple(domains))
    assert (again.assigned, again.unplaced) == (placed.assigned, placed.unplaced)
