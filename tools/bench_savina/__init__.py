"""Savina's actor benchmarks, on remotely and on other systems with actors."""

ON = "SAVINA_ON"  # the variable that names the module of the system

PROGRAMS = {
    "ping_pong": "ping-pong",
    "counting": "counting",
    "fork_join_throughput": "fork-join, throughput",
    "fork_join_creation": "fork-join, creation of actors",
    "thread_ring": "thread ring",
    "big": "big: each calls each",
    "concurrent_dictionary": "concurrent dictionary",
    "dining_philosophers": "dining philosophers",
    "sleeping_barber": "sleeping barber",
    "bank_transactions": "bank transactions",
    "radix_sort": "radix sort",
    "n_queens": "N-queens",
    "fibonacci": "fibonacci, an actor a number",
}
