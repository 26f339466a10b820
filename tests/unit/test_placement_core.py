"""What the planner decides in small worlds, told as sentences."""

from typing import Any

import pytest

from tidemill.models import FunctionRecord, FunctionSpec, PoolSpec
from tidemill_placement.core import Agent, Estimates, Plan, Pool, Queue, Rules, Runner, Task, Waiting, World, plan

NOW = 1000.0


def function(name: str = "ocr", revision: str = "r1", **spec: Any) -> FunctionRecord:
    return FunctionRecord(
        spec=FunctionSpec(name=name, handler="m:f", **spec), revision=revision, deployed_at=0, triggers_since=0
    )


def pool(
    name: str,
    usd: float = 1.0,
    slots: int = 1,
    agents: int = 2,
    start: float = 3.0,
    draining: bool = False,
    trouble: str | None = None,
    can_start: bool = True,
    least: int = 0,
    **spec: Any,
) -> Pool:
    return Pool(
        PoolSpec(
            name=name,
            slots=slots,
            price={"usd_per_hour": usd},
            agents={"min": least, "max": agents, "start": start},
            **spec,
        ),
        draining,
        can_start,
        trouble,
    )


def jobs(count: int, function: str = "ocr", owner: str = "a", size: int = 0, created_at: float = NOW) -> Queue:
    waiting = tuple(
        Waiting(f"{function}-{owner}-{i}", function, owner, created_at + i / 1e3, size) for i in range(count)
    )
    return Queue(function, count, waiting)


def learned(**pools: float) -> Estimates:
    """Estimates of `ocr` after many equal runs."""
    estimates = Estimates()
    for name, seconds in pools.items():
        for _ in range(60):
            estimates.observe_run("ocr", name.replace("_", "-"), seconds)
    return estimates


def decide(
    *queues: Queue, functions: tuple[FunctionRecord, ...] = (), pools: tuple[Pool, ...] = (), **world: Any
) -> Plan:
    records = functions or (function(),)
    return plan(
        World(
            now=world.pop("now", NOW),
            functions={record.name: record for record in records},
            pools={p.name: p for p in pools},
            backlog=queues,
            **world,
        )
    )


def warm(name: str, of: str, slots: int = 1, **agent: Any) -> Agent:
    agent.setdefault("levels", {"ocr": (NOW,) * slots})
    return Agent(name, of, slots, runners=(Runner("ocr", "r1", slots),), quiet_since=NOW, **agent)


def test_a_job_goes_to_a_free_warm_slot_with_the_reason() -> None:
    result = decide(jobs(1), pools=(pool("p"),), agents=(warm("p-1", "p"),), estimates=learned(p=1.2))
    assert [(r.job_id, r.agent) for r in result.releases] == [("ocr-a-0", "p-1")]
    assert result.releases[0].placement.pool == "p"
    assert result.releases[0].placement.reason.startswith("p: 1.2 s at $0.00034")
    assert result.starts == {}


def test_the_reason_names_the_beaten_and_the_excluded_pools() -> None:
    gpu = pool("azure-a100", gpu={"kind": "A100", "memory": "40Gi"})
    result = decide(
        jobs(1),
        functions=(function(placement={"allow": {"pools": ["cpu-*"]}}),),
        pools=(pool("cpu-fast"), pool("cpu-cheap", usd=0.1), gpu),
        agents=(warm("cpu-fast-1", "cpu-fast"), warm("cpu-cheap-1", "cpu-cheap")),
        estimates=learned(cpu_fast=1.2, cpu_cheap=3.9),
    )
    assert result.releases[0].placement.reason == (
        "cpu-fast: 1.2 s at $0.00033 beats cpu-cheap (3.9 s, $0.00011) at $3/h of waiting; "
        "azure-a100 excluded: the function allows only the pools cpu-*"
    )
    assert [c.pool for c in result.releases[0].placement.candidates] == ["cpu-fast", "cpu-cheap", "azure-a100"]
    assert result.releases[0].placement.candidates[2].excluded_because


def test_the_objective_turns_the_choice() -> None:
    def chosen(objective: str, **rules: Any) -> str:
        result = decide(
            jobs(1),
            functions=(function(placement={"objective": objective, **rules}),),
            pools=(pool("fast", usd=9.0), pool("cheap", usd=0.1)),
            agents=(warm("fast-1", "fast"), warm("cheap-1", "cheap")),
            estimates=learned(fast=2.0, cheap=5.0),
        )
        return result.releases[0].agent

    assert chosen("latency") == "fast-1"
    assert chosen("cost") == "cheap-1"
    assert chosen("deadline", deadline=60) == "cheap-1"
    assert chosen("deadline", deadline=4) == "fast-1"


def test_a_job_waits_for_a_fast_slot_though_a_slow_one_is_free() -> None:
    result = decide(
        jobs(1),
        pools=(pool("fast", agents=1), pool("slow", agents=1)),
        agents=(warm("fast-1", "fast", running=1), warm("slow-1", "slow")),
        tasks=(Task("t", "ocr", "fast-1", True, NOW - 1.0),),
        estimates=learned(fast=2.0, slow=20.0),
    )
    assert result.releases == ()
    job, placement = result.notes[0]
    assert job == "ocr-a-0"
    assert placement.reason.startswith("waits for a slot of fast (about 1.0 s), then 2.0 s at")


def test_a_job_takes_the_slow_free_slot_when_the_fast_one_is_busy_for_long() -> None:
    result = decide(
        jobs(1),
        pools=(pool("fast", agents=1), pool("slow", agents=1)),
        agents=(warm("fast-1", "fast", running=1), warm("slow-1", "slow")),
        tasks=(Task("t", "ocr", "fast-1", True, NOW),),
        estimates=learned(fast=15.0, slow=20.0),
    )
    assert [r.agent for r in result.releases] == ["slow-1"]


def test_an_empty_system_starts_one_agent_for_one_job_and_not_again_while_it_boots() -> None:
    pools = (pool("p", agents=5),)
    first = decide(jobs(1), pools=pools)
    assert first.starts == {"p": 1}
    assert first.notes[0][1].reason.startswith("waits for an agent of p to start")
    booting = Agent("p-1", "p", 1, "booting", since=NOW)
    again = decide(jobs(1), pools=pools, agents=(booting,), now=NOW + 1)
    assert again.starts == {}
    assert again.wanted == {"p-1": {"ocr@r1": 1}}


def test_a_long_backlog_starts_many_agents_but_no_more_than_the_pool_allows() -> None:
    result = decide(jobs(100), pools=(pool("p", agents=3),), estimates=learned(p=10.0))
    assert result.starts == {"p": 3}


def test_a_start_that_costs_more_than_the_waiting_is_left_out() -> None:
    dear = pool("dear", usd=90.0, start=60.0)
    result = decide(
        jobs(2),
        pools=(pool("cheap", usd=0.1, agents=1), dear),
        agents=(warm("cheap-1", "cheap"),),
        estimates=learned(cheap=5.0, dear=1.0),
    )
    assert result.starts == {}


def test_scaling_max_limits_the_slots_over_all_pools() -> None:
    result = decide(
        jobs(10),
        functions=(function(scaling={"max": 2}),),
        pools=(pool("p", slots=4), pool("q", slots=4)),
        agents=(warm("p-1", "p", 4), warm("q-1", "q", 4)),
        estimates=learned(p=10.0, q=10.0),
    )
    assert len(result.releases) == 2
    assert result.starts == {}
    assert sum(n for wanted in result.wanted.values() for n in wanted.values()) <= 2


def test_short_jobs_are_released_in_groups() -> None:
    result = decide(
        jobs(100), pools=(pool("p", slots=2, agents=1),), agents=(warm("p-1", "p", 2),), estimates=learned(p=0.01)
    )
    assert 10 <= len(result.releases) <= 16


@pytest.mark.parametrize(
    "limit", [{"scaling": {"max": 1}}, {"resources": {"gpu": {"memory": "10Gi"}}}], ids=["slots", "memory"]
)
@pytest.mark.parametrize(("slots", "released"), [(1, range(5, 10)), (2, range(1, 2))])
def test_no_group_is_sent_to_an_agent_that_would_run_it_side_by_side_beyond_a_limit(
    limit: dict[str, Any], slots: int, released: range
) -> None:
    result = decide(
        jobs(100),
        functions=(function(**limit),),
        pools=(pool("p", slots=slots, agents=1, gpu={"kind": "T4", "memory": "16Gi"}),),
        agents=(warm("p-1", "p", slots),),
        estimates=learned(p=0.01),
    )
    assert len(result.releases) in released


def test_a_retried_job_is_released_alone() -> None:
    retried = Waiting("again", "ocr", "a", NOW, attempt=1)
    result = decide(
        Queue("ocr", 1, (retried,)),
        pools=(pool("p", agents=1),),
        agents=(warm("p-1", "p", running=1),),
        tasks=(Task("t", "ocr", "p-1", True, NOW),),
        estimates=learned(p=0.001),
    )
    assert result.releases == ()


def test_one_job_is_sent_ahead_when_the_slot_will_be_free_before_its_input_is_there() -> None:
    result = decide(
        jobs(5, size=200_000_000),
        pools=(pool("p", agents=1),),
        agents=(warm("p-1", "p", running=1),),
        tasks=(Task("t", "ocr", "p-1", True, NOW - 9.0),),
        estimates=learned(p=10.0),
    )
    assert len(result.releases) == 1


def test_a_job_that_no_pool_can_ever_run_is_impossible_with_every_reason() -> None:
    result = decide(
        jobs(1),
        functions=(function(resources={"gpu": {"memory": "4Gi"}}),),
        pools=(pool("cpu"), pool("small", gpu={"kind": "T4", "memory": "2Gi"})),
    )
    assert result.starts == {}
    assert [i.job_id for i in result.impossible] == ["ocr-a-0"]
    assert "cpu: function needs a GPU with 4 GiB; pool has none" in result.impossible[0].reason
    assert "small: function needs a GPU with 4 GiB; pool's have 2 GiB" in result.impossible[0].reason


def test_a_job_waits_for_a_pool_that_only_drains_and_while_there_are_no_pools() -> None:
    drained = decide(jobs(1), pools=(pool("p", draining=True),), agents=(warm("p-1", "p"),))
    assert drained.impossible == ()
    assert drained.releases == ()
    assert "p excluded: the pool is draining" in drained.notes[0][1].reason
    assert decide(jobs(1)).impossible == ()


def test_the_cost_limit_is_hard() -> None:
    result = decide(
        jobs(1),
        functions=(function(placement={"max_cost_usd": 0.001, "objective": "latency"}),),
        pools=(pool("dear", usd=36.0), pool("cheap", usd=0.36)),
        agents=(warm("dear-1", "dear"), warm("cheap-1", "cheap")),
        estimates=learned(dear=1.0, cheap=5.0),
    )
    assert [r.agent for r in result.releases] == ["cheap-1"]
    assert "dear excluded: costs $0.01, above max_cost_usd $0.001" in result.releases[0].placement.reason


def test_a_pool_in_trouble_gets_no_start_and_the_note_says_why() -> None:
    result = decide(jobs(1), pools=(pool("p", trouble="its agents end at once: exit code 1"),))
    assert result.starts == {}
    assert "its agents end at once: exit code 1" in result.notes[0][1].reason


def test_owners_take_turns() -> None:
    flood = jobs(50, owner="flood")
    light = Waiting("light", "ocr", "light", NOW + 1)
    result = decide(
        Queue("ocr", 51, (*flood.jobs, light)),
        pools=(pool("p", slots=2, agents=1),),
        agents=(warm("p-1", "p", 2),),
        estimates=learned(p=10.0),
    )
    assert {r.job_id for r in result.releases} == {"ocr-flood-0", "light"}


def test_a_runner_stays_for_its_idle_time_then_goes_and_its_agent_stops() -> None:
    pools = (pool("p", idle_timeout=5),)
    agent = warm("p-1", "p", 2)
    soon = decide(pools=pools, agents=(agent,), now=NOW + 4)
    assert soon.wanted == {"p-1": {"ocr@r1": 2}}
    assert soon.stops == ()
    late = decide(pools=pools, agents=(agent,), now=NOW + 6)
    assert late.wanted == {"p-1": {}}
    assert late.stops == ("p-1",)


def test_only_as_many_runners_stay_as_were_used_at_once() -> None:
    agent = warm("p-1", "p", 3, levels={"ocr": (NOW, NOW - 1, NOW - 100)})
    assert decide(pools=(pool("p", slots=3),), agents=(agent,)).wanted == {"p-1": {"ocr@r1": 2}}


def test_a_pool_keeps_its_least_number_of_agents() -> None:
    agents = tuple(warm(f"p-{i}", "p", levels={}) for i in range(3))
    result = decide(pools=(pool("p", agents=3, least=2),), agents=agents, now=NOW + 1000)
    assert len(result.stops) == 1
    assert decide(pools=(pool("p", least=2),)).starts == {"p": 2}


def test_a_new_revision_replaces_the_runners_of_the_old_one() -> None:
    result = decide(functions=(function(revision="r2"),), pools=(pool("p"),), agents=(warm("p-1", "p"),))
    assert result.wanted == {"p-1": {"ocr@r2": 1}}


def test_scaling_min_starts_an_agent_in_the_cheapest_pool_and_keeps_its_runner() -> None:
    records = (function(scaling={"min": 2}),)
    pools = (pool("dear", usd=5.0, slots=2), pool("cheap", usd=0.1, slots=2))
    assert decide(functions=records, pools=pools).starts == {"cheap": 1}
    agent = Agent("cheap-1", "cheap", 2)
    kept = decide(functions=records, pools=pools, agents=(agent,), now=NOW + 1e6)
    assert kept.wanted == {"cheap-1": {"ocr@r1": 2}}
    assert kept.stops == ()
    assert kept.starts == {}


def test_an_idle_system_grants_free_warm_slots_of_the_best_pool() -> None:
    result = decide(
        pools=(pool("fast", slots=2), pool("slow")),
        agents=(warm("fast-1", "fast", 2), warm("slow-1", "slow")),
        estimates=learned(fast=1.0, slow=9.0),
    )
    assert dict(result.grants["ocr"].agents) == {"fast-1": 2}
    assert result.grants["ocr"].placement.pool == "fast"


def test_slots_that_are_left_over_when_all_waiting_jobs_are_released_are_granted() -> None:
    """Else jobs that come quickly, one after the other, would each wait for a plan: none finds nothing waiting."""
    agents = (warm("p-1", "p", 2),)
    result = decide(jobs(1), pools=(pool("p", slots=2),), agents=agents)
    assert len(result.releases) == 1
    assert dict(result.grants["ocr"].agents) == {"p-1": 1}
    assert decide(jobs(2), pools=(pool("p", slots=2),), agents=agents).grants == {}


def test_no_grant_while_jobs_wait_or_where_the_runner_is_to_go() -> None:
    assert decide(jobs(1), pools=(pool("p"),), agents=(warm("p-1", "p"),)).grants == {}
    stale = warm("p-1", "p", levels={})
    assert decide(pools=(pool("p", idle_timeout=5),), agents=(stale,), now=NOW + 6).grants == {}


def test_gpu_memory_limits_the_runners_of_one_agent() -> None:
    gpu = pool("g", slots=4, agents=1, gpu={"kind": "T4", "memory": "16Gi"})
    result = decide(
        jobs(4),
        functions=(function(resources={"gpu": {"memory": "6Gi"}}),),
        pools=(gpu,),
        agents=(Agent("g-1", "g", 4),),
        estimates=learned(g=10.0),
    )
    assert len(result.releases) == 2
    assert result.wanted == {"g-1": {"ocr@r1": 2}}


def test_an_exclusive_function_waits_until_it_is_alone() -> None:
    gpu = pool("g", slots=4, agents=1, gpu={"kind": "T4", "memory": "16Gi"})
    alone = function("alone", resources={"gpu": {"memory": "1Gi", "sharing": "exclusive"}})
    other = function(resources={"gpu": {"memory": "1Gi"}})
    busy = decide(
        jobs(1, "alone"),
        functions=(alone, other),
        pools=(gpu,),
        agents=(Agent("g-1", "g", 4, running=1),),
        tasks=(Task("t", "ocr", "g-1", True, NOW),),
    )
    assert busy.releases == ()
    free = decide(jobs(2, "alone"), functions=(alone, other), pools=(gpu,), agents=(Agent("g-1", "g", 4),))
    assert len(free.releases) == 1


def test_a_new_pool_borrows_from_how_it_compares_over_other_functions() -> None:
    estimates = Estimates()
    for _ in range(40):
        estimates.observe_run("known", "slow", 4.0)
        estimates.observe_run("known", "fast", 1.0)
        estimates.observe_run("ocr", "slow", 8.0)
    guess = estimates.run("ocr", pool("fast").spec)
    assert 1.8 < guess.p50 < 2.2
    assert guess.samples == 0


def test_estimates_follow_a_drift_and_bound_nine_in_ten() -> None:
    estimates = Estimates()
    spec = pool("p").spec
    for _ in range(200):
        estimates.observe_run("ocr", "p", 1.0)
    for i in range(300):
        estimates.observe_run("ocr", "p", 4.0 * (1.5 if i % 5 == 0 else 1.0))
    forecast = estimates.run("ocr", spec)
    assert 3.8 < forecast.p50 < 4.8
    assert forecast.p50 < forecast.p90 < 8.0


def test_the_scaling_numbers_count_agents_and_slots_that_should_be() -> None:
    result = decide(jobs(100), pools=(pool("p", agents=3),), agents=(warm("p-1", "p"),), estimates=learned(p=10.0))
    assert result.scaling["p"] == 3
    assert result.scaling["p/ocr"] == 1


def test_the_value_of_time_is_the_operators() -> None:
    pools = (pool("fast", usd=9.0), pool("cheap", usd=0.1))
    agents = (warm("fast-1", "fast"), warm("cheap-1", "cheap"))
    for value, agent in ((1000.0, "fast-1"), (0.01, "cheap-1")):
        result = decide(
            jobs(1),
            pools=pools,
            agents=agents,
            estimates=learned(fast=2.0, cheap=5.0),
            rules=Rules(value_of_time_usd_per_hour=value),
        )
        assert result.releases[0].agent == agent
