"""MinIO's own events: rules that are set and kept beside the user's, a canary that times them, and its loss."""

from collections.abc import Iterator

import pytest
from minio import Minio
from minio.notificationconfig import NotificationConfig, PrefixFilterRule, QueueConfig, SuffixFilterRule

from tests.support import S3, MinioServer, run_minio, wait_until
from tests.support.gateway import HOOK_SECRET, Lab, free_socket, run_gateway
from tests.support.minio import ARN
from tidemill.errors import InvalidSpec, ServiceUnavailable
from tidemill.local.seaweed import Webhook
from tidemill.store import open_store
from tidemill_gateway.catalogue import table_of
from tidemill_gateway.intake.canary import Canary
from tidemill_gateway.intake.events import Events, Notifications

_NAMES = [
    "a b.txt",
    "a+b.txt",
    "a%2Fb.txt",
    "100%.txt",
    "日本 ä.txt",
    "q?x=1&y;#.txt",
    "emoji😀.bin",
    "<&>.xml",
    "+",
    "%",
]


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MinioServer, int]]:
    """A MinIO with a webhook to this port, at which nobody listens yet."""
    with free_socket() as sock:
        port = sock.getsockname()[1]
    hook = Webhook(f"http://127.0.0.1:{port}/hooks/s3/local", HOOK_SECRET)
    with run_minio(tmp_path_factory.mktemp("hooked"), webhook=hook) as server:
        yield server, port


@pytest.fixture
def lab(hooked: tuple[MinioServer, int], redis_url: str, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A gateway where the webhook points to."""
    server, port = hooked
    name = f"platform-{abs(hash(request.node.name)) % 10**9}"
    with free_socket(port) as sock, run_gateway(server.s3, redis_url, name, sock, notify_arn=ARN) as found:
        yield found


@pytest.fixture
def client(hooked: tuple[MinioServer, int]) -> Minio:
    """Another client than our own."""
    server = hooked[0]
    return Minio(f"127.0.0.1:{server.port}", server.access_key, server.secret_key, secure=False, region=server.region)


def _deploy(lab: Lab, inbox: str, **more: object) -> None:
    spec = {"name": "echo", "handler": "work:run", "trigger": {"bucket": inbox, "prefix": "in/"}, **more}
    lab.deploy(spec).raise_for_status()


def _keys(lab: Lab) -> list[str]:
    return sorted(str(job["input"]["key"]) for job in lab.jobs())  # type: ignore[index]


def _rules(client: Minio, bucket: str) -> list[tuple[str, str]]:
    found = client.get_bucket_notification(bucket).queue_config_list
    return sorted(
        (rule.config_id or "", rule.prefix_filter_rule.value if rule.prefix_filter_rule else "") for rule in found
    )


def test_a_deploy_makes_minio_send_the_bucket_s_events_and_each_name_is_one_job(lab: Lab) -> None:
    _deploy(
        lab, "inbox-a", trigger=[{"bucket": "inbox-a", "prefix": "in/"}, {"bucket": "inbox-a", "prefix": "späť&<x>/"}]
    )
    lab.services.events.turn()
    lab.services.receiver.start()
    for name in _NAMES:
        lab.store.put("inbox-a", f"in/{name}", name.encode())
    lab.store.put("inbox-a", "späť&<x>/one", b"1")
    lab.store.put("inbox-a", "in/big.bin", b"x" * (12 * 2**20))
    lab.store.copy("inbox-a", "in/+", "inbox-a", "in/copied")
    lab.store.put("inbox-a", "beside/x", b"x")

    wanted = sorted([*(f"in/{name}" for name in _NAMES), "späť&<x>/one", "in/big.bin", "in/copied"])
    wait_until(lambda: _keys(lab) == wanted)
    lab.services.reconciler.round()
    assert _keys(lab) == wanted


def test_the_user_s_own_rules_stay_and_a_lost_one_of_ours_comes_back(lab: Lab, client: Minio) -> None:
    client.make_bucket("inbox-b")
    theirs = NotificationConfig(
        queue_config_list=[
            QueueConfig(
                queue=ARN,
                events=["s3:ObjectRemoved:Delete"],
                config_id="mine",
                prefix_filter_rule=PrefixFilterRule("photos/"),
                suffix_filter_rule=SuffixFilterRule(".jpg"),
            )
        ]
    )
    client.set_bucket_notification("inbox-b", theirs)
    _deploy(lab, "inbox-b")
    watch = Notifications(lab.store, lab.services.record.bucket, ARN)
    table = lab.services.catalogue.current()
    assert set(watch.keep(table)) == {"inbox-b", lab.services.record.bucket}
    first = _rules(client, "inbox-b")
    assert [(name, prefix) for name, prefix in first if name == "mine"] == [("mine", "photos/")]
    assert [prefix for _, prefix in first] == ["photos/", "in/"]
    assert watch.keep(table) == []
    client.set_bucket_notification("inbox-b", theirs)
    assert watch.keep(table) == ["inbox-b"]
    assert _rules(client, "inbox-b") == first
    kept = client.get_bucket_notification("inbox-b").queue_config_list
    [mine] = [rule for rule in kept if rule.config_id == "mine"]
    assert (mine.events, mine.suffix_filter_rule and mine.suffix_filter_rule.value) == (
        ["s3:ObjectRemoved:Delete"],
        ".jpg",
    )
    assert watch.keep(table_of({})) == ["inbox-b"]
    assert _rules(client, "inbox-b") == [("mine", "photos/")]


def test_a_rule_of_the_user_s_that_sends_the_same_is_enough(lab: Lab, client: Minio) -> None:
    client.make_bucket("inbox-c")
    everything = NotificationConfig(
        queue_config_list=[QueueConfig(queue=ARN, events=["s3:ObjectCreated:*"], config_id="all")]
    )
    client.set_bucket_notification("inbox-c", everything)
    assert not lab.store.watch("inbox-c", ARN, ["in/", "other/"])
    assert _rules(client, "inbox-c") == [("all", "")]


@pytest.mark.parametrize(("prefix", "kept"), [("a\\b/", "a"), ("a\tb", "a"), ("x/../y", "x/"), ("", "")])
def test_a_prefix_that_no_rule_can_say_is_shortened(lab: Lab, client: Minio, prefix: str, kept: str) -> None:
    bucket = f"inbox-d{len(prefix)}{ord(prefix[0]) if prefix else 0}"
    client.make_bucket(bucket)
    assert lab.store.watch(bucket, ARN, [prefix])
    assert [value for _, value in _rules(client, bucket)] == [kept]
    assert not lab.store.watch(bucket, ARN, [prefix])


def test_a_target_that_minio_does_not_know_is_said_and_the_listing_goes_on(lab: Lab) -> None:
    lab.store.ensure_bucket("inbox-e")
    with pytest.raises(InvalidSpec):
        lab.store.watch("inbox-e", "arn:minio:sqs::nobody:webhook", ["in/"])
    watch = Notifications(lab.store, lab.services.record.bucket, "arn:minio:sqs::nobody:webhook")
    events = Events(lab.services.catalogue, watch, None)
    events.turn()
    assert events.health.ok is False
    assert "notification rules" in events.health.detail


def test_seaweedfs_is_never_asked_for_rules(s3: S3, bucket: str) -> None:
    store = open_store(s3.settings)
    with pytest.raises(ServiceUnavailable, match="SeaweedFS"):
        store.watch(bucket, ARN, ["in/"])


def test_the_canary_times_the_events_and_readyz_tells(lab: Lab) -> None:
    assert lab.http.get("/readyz").json()["events"] == {"ok": None, "detail": "not measured yet", "last_s": None}
    lab.services.receiver.start()
    lab.services.events.turn()

    wait_until(lambda: lab.services.events.health.ok)
    said = lab.http.get("/readyz").json()["events"]
    assert said["ok"] is True
    assert 0 <= said["last_s"] < 5
    metrics = lab.http.get("/metrics").text
    assert "tidemill_events_ok 1.0" in metrics
    assert lab.jobs() == []


def test_a_canary_of_another_gateway_is_seen_by_both(lab: Lab) -> None:
    platform = lab.services.record.bucket
    lab.services.receiver.start()
    lab.store.watch(platform, ARN, ["canary/"])
    other = Canary(lab.store, platform, "gateway-other", 60.0)
    other.turn()  # its event goes to the gateway of the lab, which deletes it

    wait_until(lambda: other.turn() or other.health.ok)
    assert lab.services.events.health.ok is None
