"""One instance per process: a second one waits until it is known whether the first is still alive (E2)."""

import asyncio
from pathlib import Path

from tests.runtime.fake_coordinator import application_of
from tests.runtime.fake_nodes import Running, running, system_of
from tests.runtime.link_ends import run

from strobe.protocol.coordinator.messages import RestoreState
from strobe.runtime.addresses import parse_address
from strobe.runtime.coordinator.node_registry import CLAIMS_REMEMBERED, Member
from strobe.runtime.messages.control import HeartbeatHeard, Register
from strobe.runtime.node.host import Host
from strobe.runtime.settings import NodeSettings


def host_of(running: Running, process: str) -> Host:
    system = running.coordinator.system
    return Host(process, system, application_of(system, process), parse_address(running.service.listen, "listen"))


def test_a_second_instance_takes_over_only_when_the_first_is_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            first = await coordinator.start_node("a")
            for claims in (0, 0, 1):
                second = await coordinator.node("a", instance="second")
                refusal = await second.refused()
                assert "running already as pid 42 on host here" in refusal.reason
                assert not refusal.final  # the first may have sent all its messages before it was killed
                first.beat(claims=claims)
                assert (await first.handle(HeartbeatHeard)).claims == 1
            assert (await (await coordinator.node("a", instance="second")).refused()).final
            assert not (await (await coordinator.node("a", instance="another")).refused()).final
            await first.close()
            third = await coordinator.node("a", instance="third")
            await third.handle(RestoreState)
            late = await coordinator.node("a", instance=f"a-{id(first)}", epoch=1)
            assert "replaced by a newer instance" in (await late.refused()).reason

    asyncio.run(scenario())


def test_E2_a_node_started_twice_ends_with_the_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", system_of("a"), node=NodeSettings(heartbeat_s=0.02)) as coordinator:
            first = host_of(coordinator, "a")
            first_run = asyncio.create_task(first.run())
            await coordinator.until(lambda: coordinator.coordinator.lifecycle.settled)
            second = host_of(coordinator, "a")
            assert await second.run() == 1
            assert "process a is running already" in (second.problem or "")
            assert coordinator.coordinator.lifecycle.epoch == 1
            first.end(0)
            assert await first_run == 0

    run(scenario())


def test_E2_a_node_restarted_before_its_loss_is_known_waits_then_registers(tmp_path: Path) -> None:
    """E2: it was killed and restarted at once; earlier messages and the end of its connection are still on the way."""

    async def scenario() -> None:
        async with running(tmp_path / "store", system_of("a"), node=NodeSettings(heartbeat_s=0.02)) as coordinator:
            killed = await coordinator.start_node("a")
            again = host_of(coordinator, "a")
            ending = asyncio.create_task(again.run())
            await coordinator.until(lambda: len(coordinator.logged("registration refused")) > 2)
            killed.beat()
            await killed.handle(HeartbeatHeard)
            turned_away = len(coordinator.logged("registration refused"))
            await coordinator.until(lambda: len(coordinator.logged("registration refused")) > turned_away)
            await killed.close()
            await coordinator.until(lambda: again.timeline is not None)
            again.end(0)
            assert await ending == 0

    run(scenario())


def test_the_number_of_remembered_claims_is_bounded() -> None:
    member = Member(Register(1, "a", "first", 1, ("here", 1), (), "chandy-lamport", 1, ""))
    for number in range(CLAIMS_REMEMBERED + 5):
        assert not member.outlives(f"claim {number}")
    assert len(member._claims_by) == CLAIMS_REMEMBERED
