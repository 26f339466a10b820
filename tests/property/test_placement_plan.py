"""What every plan keeps, in any world: slots, limits, filters, and the same answer to the same question."""

from collections import Counter

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidemill.models import FunctionRecord, FunctionSpec, PoolSpec
from tidemill_placement.core import Agent, Estimates, Pool, Queue, Runner, Task, Waiting, World, plan
from tidemill_placement.core.rates import capacity_of, memory_of

NOW = 10_000.0
_FUNCTIONS = ("f", "g", "h")
_POOLS = ("cpu-a", "cpu-b", "gpu-c")


@st.composite
def functions(draw: st.DrawFn, name: str) -> FunctionRecord:
    gpu = draw(st.none() | st.fixed_dictionaries({"memory": st.sampled_from([2**30, 6 * 2**30, 20 * 2**30])}))
    spec = FunctionSpec.model_validate(
        {
            "name": name,
            "handler": "m:f",
            "resources": {"gpu": gpu},
            "placement": {
                "objective": draw(st.sampled_from(["latency", "balanced", "cost", "deadline"])),
                "deadline": 30,
                "max_cost_usd": draw(st.none() | st.sampled_from([1e-6, 1e-3, 1.0])),
                "allow": {"pools": draw(st.sampled_from([(), ("cpu-*",), ("gpu-c",)]))},
                "spot": draw(st.sampled_from(["allowed", "never"])),
            },
            "scaling": {"min": draw(st.integers(0, 1)), "max": draw(st.integers(1, 6))},
        }
    )
    return FunctionRecord(spec=spec, revision="r", deployed_at=0, triggers_since=0)


@st.composite
def pools(draw: st.DrawFn, name: str) -> Pool:
    most = draw(st.integers(0, 4))
    spec = PoolSpec.model_validate(
        {
            "name": name,
            "gpu": {"kind": "T4", "memory": 16 * 2**30} if name == "gpu-c" else None,
            "slots": draw(st.integers(1, 4)),
            "price": {"usd_per_hour": draw(st.sampled_from([0.0, 0.1, 3.0]))},
            "agents": {"min": draw(st.integers(0, 1)), "max": most, "start": draw(st.sampled_from([0.5, 30]))},
            "spot": draw(st.booleans()),
            "idle_timeout": 10,
        }
    )
    trouble = draw(st.sampled_from([None, None, "its agents end at once"]))
    return Pool(spec, draw(st.booleans()) and draw(st.booleans()), draw(st.booleans()) or True, trouble)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    records = {name: draw(functions(name)) for name in _FUNCTIONS}
    all_pools = {name: draw(pools(name)) for name in _POOLS}
    agents, tasks = [], []
    for pool in all_pools.values():
        for number in range(draw(st.integers(0, pool.spec.agents.max))):
            name, slots = f"{pool.name}-{number}", pool.spec.slots
            state = draw(st.sampled_from(["ready", "ready", "booting", "draining"]))
            busy = draw(st.lists(st.sampled_from(_FUNCTIONS), max_size=slots)) if state != "booting" else []
            since = NOW - draw(st.floats(0, 60))
            tasks += [Task(f"{name}.{i}", f, name, draw(st.booleans()), since) for i, f in enumerate(busy)]
            running = sum(task.running for task in tasks if task.agent == name)
            runners = tuple(Runner(f, draw(st.sampled_from(["r", "old"])), 1) for f in sorted(set(busy)))
            levels = {f: (NOW - draw(st.floats(0, 20)),) for f in draw(st.sets(st.sampled_from(_FUNCTIONS)))}
            agents.append(
                Agent(name, pool.name, slots, state, since, since, len(busy) - running, running, runners, levels)
            )
    estimates = Estimates()
    for function in _FUNCTIONS:
        for name in draw(st.sets(st.sampled_from(_POOLS))):
            seconds = draw(st.sampled_from([0.002, 0.5, 5.0, 60.0]))
            for _ in range(8):
                estimates.observe_run(function, name, seconds)
    backlog = []
    for function in draw(st.sets(st.sampled_from(_FUNCTIONS))):
        count = draw(st.integers(1, 30))
        waiting = tuple(
            Waiting(f"{function}{i}", function, f"o{i % 2}", NOW - i, draw(st.sampled_from([0, 10**8])), i % 5 == 4)
            for i in range(count)
        )
        backlog.append(Queue(function, count + draw(st.integers(0, 200)), waiting))
    return World(NOW, records, all_pools, tuple(agents), tuple(backlog), tuple(tasks), estimates)


@settings(max_examples=300, deadline=None)
@given(worlds())
def test_no_plan_breaks_a_limit(world: World) -> None:
    result = plan(world)
    agents = {agent.name: agent for agent in world.agents}
    waiting = {job.id: job for queue in world.backlog for job in queue.jobs}

    assert len({r.job_id for r in result.releases}) == len(result.releases)
    for release in result.releases:
        agent, job = agents[release.agent], waiting[release.job_id]
        pool, spec = world.pools[agent.pool], world.functions[job.function].spec
        assert agent.state == "ready"
        assert not pool.draining
        _may_run(spec, pool)
        chosen = next(c for c in release.placement.candidates if c.pool == pool.name)
        assert chosen.excluded_because is None
        assert spec.placement.max_cost_usd is None or (chosen.usd or 0) <= spec.placement.max_cost_usd + 1e-9

    sent = Counter(release.agent for release in result.releases)
    for name, count in sent.items():
        agent = agents[name]
        mine = [waiting[r.job_id].function for r in result.releases if r.agent == name]
        mine += [task.function for task in world.tasks if task.agent == name]
        spec = world.pools[agent.pool].spec
        if all(world.estimates.run(f, spec).p50 > world.rules.group_s for f in mine):
            assert agent.released + agent.running + count <= agent.slots + 1

    for name in sent:
        pool_spec = world.pools[agents[name].pool].spec
        before = [task.function for task in world.tasks if task.agent == name]
        after = before + [waiting[r.job_id].function for r in result.releases if r.agent == name]
        if len(after) <= agents[name].slots:  # the agent runs all of them at once
            room = max(capacity_of(pool_spec), _memory(world, before, pool_spec))
            assert _memory(world, after, pool_spec) <= room
    busy_slots = Counter(task.function for task in world.tasks)
    for function, count in Counter(waiting[r.job_id].function for r in result.releases).items():
        here = {r.agent for r in result.releases if waiting[r.job_id].function == function}
        if all(agents[name].released + agents[name].running + sent[name] <= agents[name].slots for name in here):
            most = world.functions[function].spec.scaling.max
            assert busy_slots[function] + count <= max(most, busy_slots[function])

    for name, wanted in result.wanted.items():
        assert sum(wanted.values()) <= agents[name].slots
        assert all(slots > 0 for slots in wanted.values())

    for name, count in result.starts.items():
        pool = world.pools[name]
        assert count >= 1
        assert not pool.draining
        assert pool.trouble is None
        assert sum(agent.pool == name for agent in world.agents) + count <= pool.spec.agents.max

    busy = {task.agent for task in world.tasks} | set(sent)
    assert not busy & set(result.stops)
    for name, grant in ((n, g) for function in result.grants.values() for n, g in function.agents.items()):
        assert agents[name].state == "ready"
        assert name not in result.stops
        assert 0 < grant <= agents[name].slots - agents[name].released - agents[name].running
    if world.backlog:
        assert result.grants == {}
    assert not {i.job_id for i in result.impossible} & {r.job_id for r in result.releases}


def _memory(world: World, functions: list[str], pool: PoolSpec) -> int:
    return sum(memory_of(world.functions[function], pool) for function in functions)


def _may_run(spec: FunctionSpec, pool: Pool) -> None:
    gpu = spec.resources.gpu
    assert gpu is None or (pool.spec.gpu is not None and gpu.memory <= pool.spec.gpu.memory)
    assert not (pool.spec.spot and spec.placement.spot == "never")
    allowed = spec.placement.allow.pools
    assert not allowed or any(pool.name == a or (a == "cpu-*" and pool.name.startswith("cpu-")) for a in allowed)


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_new_slots_of_a_function_stay_within_its_maximum(world: World) -> None:
    result = plan(world)
    for function, record in world.functions.items():
        before = {task.agent for task in world.tasks if task.function == function}
        bound = sum(task.function == function for task in world.tasks)
        new = sum(r.function == function and r.agent not in before for r in result.releases)
        long = all(world.estimates.run(function, pool.spec).p50 > 0.3 for pool in world.pools.values())
        if long and new:
            assert bound + new <= max(record.spec.scaling.max, bound + 1)
        total = sum(wanted.get(f"{function}@r", 0) for wanted in result.wanted.values())
        assert total <= max(record.spec.scaling.max, bound)


def two_alike() -> World:
    """One job, and two agents that differ by their names alone: chance seldom makes such a world."""
    record = FunctionRecord(spec=FunctionSpec(name="f", handler="m:f"), revision="r", deployed_at=0, triggers_since=0)
    agents = tuple(Agent(name, "cpu-a", 1, "ready", NOW, NOW, 0, 0, (), {}) for name in ("cpu-a-0", "cpu-a-1"))
    queue = Queue("f", 1, (Waiting("f0", "f", "o", NOW, 0, False),))
    return World(NOW, {"f": record}, {"cpu-a": Pool(PoolSpec(name="cpu-a"), False, True, None)}, agents, (queue,))


@settings(max_examples=100, deadline=None)
@example(two_alike())
@given(worlds())
def test_the_same_world_gives_the_same_plan_in_any_order_of_its_parts(world: World) -> None:
    turned = World(
        world.now,
        dict(reversed(list(world.functions.items()))),
        dict(reversed(list(world.pools.items()))),
        world.agents[::-1],
        world.backlog[::-1],
        world.tasks[::-1],
        world.estimates,
    )
    assert plan(world) == plan(turned)


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_work_that_can_run_is_never_left_without_an_agent(world: World) -> None:
    result = plan(world)
    if any(agent.state != "draining" for agent in world.agents) or result.starts:
        return
    impossible = {i.job_id for i in result.impossible}
    for queue in world.backlog:
        for job in queue.jobs:
            spec = world.functions[job.function].spec
            for pool in world.pools.values():
                startable = not pool.draining and not pool.trouble and pool.spec.agents.max > 0
                open_now = startable and sum(a.pool == pool.name for a in world.agents) < pool.spec.agents.max
                needs = spec.resources.gpu
                if open_now and job.id not in impossible and not spec.placement.allow.pools and needs is None:
                    assert pool.spec.spot or spec.placement.max_cost_usd is not None
