"""Faults: what a kill costs, and what the fault lab counts, for Tidemill and for the peer with the same seeds.

Set `BENCH_KILLS` for another number of kills of each kind, `BENCH_SEEDS`, `BENCH_JOBS` and `BENCH_MINUTES` for other
runs of the lab, `BENCH_PEER_SEEDS` for other runs of the peer; 0 leaves that part out.
"""

from __future__ import annotations

import os

from bench import kills
from bench.peers import broken
from bench.table import Row, Table
from tests.faults import lab, report, toxiproxy
from tests.faults.lab import ALL, Choice

SEEDS = int(os.environ.get("BENCH_SEEDS", "20"))
PEER_SEEDS = int(os.environ.get("BENCH_PEER_SEEDS", "3"))
JOBS = int(os.environ.get("BENCH_JOBS", "200"))
MINUTES = float(os.environ.get("BENCH_MINUTES", "2"))
GAP_S = 1.5
PEER_SETTLE_S = 150.0
KINDS = ("lost", "doubled", "torn", "stuck")


def run() -> Table:
    table = Table(f"Faults: kills one at a time, then the fault lab, {JOBS} jobs a seed")
    if kills.KILLS:
        kills.measure(table)
    if SEEDS:
        _ours(table)
    if PEER_SEEDS:
        _peers(table)
    return table


def _ours(table: Table) -> None:
    faults = ALL
    try:
        toxiproxy.binary()
    except toxiproxy.ToolMissing as error:
        faults = tuple(kind for kind in ALL if kind != "connection")
        table.notes.append(f"Without faults of connections: {error}.")
    results = []
    for seed in range(1, SEEDS + 1):
        result = lab.run(Choice(seed, jobs=JOBS, minutes=MINUTES, gap_s=GAP_S, faults=faults), lambda sentence: None)
        results.append(result)
        print(
            f"  Tidemill, seed {seed}: {len(result.strikes)} faults; {report.sentences(result) or 'clean'}", flush=True
        )
    facts = [result.verdict.facts for result in results]
    seeds = f"{len(results)} seeds"
    _count(table, f"Tidemill, {seeds}: faults", sum(len(result.strikes) for result in results))
    _count(table, f"Tidemill, {seeds}: inputs accepted", sum(found["accepted"] for found in facts))
    for kind in KINDS:
        table.add(f"Tidemill: {kind}", sum(len(result.verdict.found[kind]) for result in results), "", most=0)
    others = [kind for kind in results[0].verdict.found if kind not in KINDS]
    table.add(
        f"Tidemill: {', '.join(others)}",
        sum(len(r.verdict.found[kind]) for r in results for kind in others),
        "",
        most=0,
    )
    _count(table, "Tidemill: attempts beyond the first", sum(found["attempts"] - found["jobs"] for found in facts))


def _peers(table: Table) -> None:
    outcomes = []
    for seed in range(1, PEER_SEEDS + 1):
        choice = Choice(seed, jobs=JOBS, minutes=MINUTES, gap_s=GAP_S, settle_s=PEER_SETTLE_S)
        outcomes.append(broken.run(choice, lambda sentence: None))
        print(f"  peer, seed {seed}: {outcomes[-1]}", flush=True)
    _count(table, f"peer, {PEER_SEEDS} seeds: faults", sum(outcome.faults for outcome in outcomes))
    _count(table, f"peer, {PEER_SEEDS} seeds: inputs accepted", sum(outcome.files for outcome in outcomes))
    for kind in KINDS[:3]:
        _count(table, f"peer: {kind}", sum(getattr(outcome, kind) for outcome in outcomes))
    _count(table, "peer: runs beyond the first", sum(outcome.again for outcome in outcomes))
    table.notes += [
        "Peer: late acknowledgement, messages of lost processes rejected, ten more tries when store or network fail, "
        f"visibility timeout {broken.VISIBILITY_S:.0f} s, events sent again for a minute when no receiver answers, "
        "Redis with AOF. It meets those faults of a seed's plan that mean something to it: no cut connections, "
        "failpoints or clocks, no kills of placement and Flower.",
        f"Peer, lost: an input of which no result is there {PEER_SETTLE_S:.0f} s after the last fault.",
        "Doubled, for both: an output was seen with two contents. A function may run twice in both, as long as one "
        "result shows; such runs are the last line of each (Tidemill: attempts counted in manifests, fewer than all "
        "after a loss of Redis; peer: each run leaves a mark in a file).",
        "Torn, for both: a result that lies beside files of another run, or without them.",
    ]


def _count(table: Table, what: str, number: int) -> None:
    table.rows.append(Row(what, f"{number:,}"))
