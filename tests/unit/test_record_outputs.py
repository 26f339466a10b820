"""Where outputs go, and what of other people's names ends in a key."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.models import CommitOutput, FunctionSpec, Job, JobInput, JobState
from tidemill.record import keys
from tidemill.record.outputs import numbered, output_key, safe_name, safe_path, without_doubles

JOB = "ab" * 16


def spec_of(**output: str) -> FunctionSpec:
    return FunctionSpec.model_validate(
        {
            "name": "caption",
            "handler": "captions:caption",
            "trigger": [{"bucket": "inbox", "prefix": "caption/", "suffix": [".jpg"]}],
            "output": {"bucket": "outbox", **output} if output else None,
        }
    )


def job_of(key: str, *, bucket: str = "inbox", name: str | None = None, generation: int = 1) -> Job:
    return Job(
        id=JOB,
        function="caption",
        revision="r",
        generation=generation,
        state=JobState.running,
        input=JobInput(bucket=bucket, key=key, etag="e", size=1, name=name),
        created_at=0.0,
    )


@pytest.mark.parametrize(
    ("key", "name", "wanted"),
    [
        ("caption/cat.jpg", "result.json", "out/cat.jpg/result.json"),
        ("caption/a/b/cat.jpg", "result.json", "out/a/b/cat.jpg/result.json"),
        ("other/cat.jpg", "result.json", "out/other/cat.jpg/result.json"),
        ("caption/cat.jpg", "sub/page 1.txt", "out/cat.jpg/sub/page 1.txt"),
        ("caption/../../etc/x.jpg", "../../passwd", "out/__/__/etc/x.jpg/__/__/passwd"),
        ("caption//./x.jpg", "/a//b/", "out/_/x.jpg/a/b"),
        ("caption/ü+%2F\n.jpg", "é.txt", "out/ü+%2F\n.jpg/é.txt"),
        ("caption/x.jpg", "..\\..\\win\r\n.ini", "out/x.jpg/.._.._win__.ini"),
        ("caption/x.jpg", " .. / . ", "out/x.jpg/__/_"),
        ("caption/x.jpg", "///", "out/x.jpg/result"),
        ("caption/{name}.jpg", "{key}.txt", "out/{name}.jpg/{key}.txt"),
    ],
)
def test_the_template_is_filled_and_never_left(key: str, name: str, wanted: str) -> None:
    assert output_key(spec_of(prefix="out/"), job_of(key), name) == ("outbox", wanted)


def test_the_template_is_the_owners() -> None:
    assert output_key(spec_of(key="{name}/of/{key}.json"), job_of("caption/c.jpg"), "r") == (
        "outbox",
        "r/of/c.jpg.json",
    )
    assert output_key(spec_of(prefix="p-", key="{key}"), job_of("caption/c.jpg"), "r") == ("outbox", "p-c.jpg")


def test_a_payload_is_named_by_its_job_and_file() -> None:
    job = job_of(f"payloads/{JOB}/0/x", bucket="tidemill", name="C:\\pictures\\cat.jpg")
    assert output_key(spec_of(prefix="out/"), job, "result.json") == ("outbox", f"out/{JOB}/cat.jpg/result.json")


def test_without_an_output_results_lie_in_the_platform_bucket() -> None:
    job = job_of("caption/cat.jpg", generation=2)
    assert output_key(spec_of(), job, "a/../b") == ("tidemill", f"results/caption/{JOB}.2/a/__/b")
    assert output_key(spec_of(), job, "x", platform_bucket="mine")[0] == "mine"


@given(st.text(), st.text())
def test_no_name_leads_out_of_the_prefix(key: str, name: str) -> None:
    _, found = output_key(spec_of(prefix="out/"), job_of(f"caption/{key}"), name)
    assert found.startswith("out/")
    assert all(part and part.strip() not in (".", "..") for part in found.split("/"))


@given(st.text())
def test_a_safe_name_is_one_short_segment(name: str) -> None:
    found = safe_name(name)
    assert found
    assert "/" not in found
    assert "\\" not in found
    assert found.strip() not in (".", "..", "")
    assert len(found.encode()) <= 200
    assert not any(ord(character) < 32 for character in found)


def test_a_long_name_keeps_its_suffix() -> None:
    assert safe_name("é" * 300 + ".gz") == "é" * 98 + ".gz"
    assert safe_name("cat.jpg") == "cat.jpg"
    assert safe_name("") == "file"
    assert safe_path("") == ""


def test_numbers_stand_before_the_suffix() -> None:
    assert [numbered("a/b.txt", n) for n in (0, 1, 12)] == ["a/b.txt", "a/b-1.txt", "a/b-12.txt"]
    assert numbered("a.b/c", 1) == "a.b/c-1"
    assert numbered("a/.hidden", 1) == "a/.hidden-1"


def test_outputs_of_one_job_never_share_a_key() -> None:
    def output(key: str) -> CommitOutput:
        return CommitOutput(name="n", bucket="b", key=key, size=0, sha256="")

    found = without_doubles([output("x.txt"), output("x.txt"), output("x-1.txt"), output("x.txt")])
    assert [item.key for item in found] == ["x.txt", "x-1.txt", "x-1-1.txt", "x-2.txt"]


def test_only_keys_of_records_have_names() -> None:
    assert keys.names(keys.manifest("caption", JOB, 12)) == ("caption", JOB, 12)
    assert keys.names(keys.request("caption", JOB, 1)) == ("caption", JOB, 1)
    for other in (
        "epoch",
        f"logs/caption/{JOB}.1.txt",
        f"manifests/caption/{JOB}.0.json",
        "manifests/caption/x.1.json",
    ):
        assert keys.names(other) is None
