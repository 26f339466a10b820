"""The embedded servers, as the fixtures of every other test start them."""

import http.client
import io

import minio
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support import S3


def client(s3: S3) -> minio.Minio:
    return minio.Minio(
        s3.endpoint.removeprefix("http://"), s3.access_key, s3.secret_key, secure=False, region=s3.region
    )


def test_a_database_is_empty_and_writable(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as connection:
        assert connection.dbsize() == 0
        connection.set("a", 1)
        assert connection.get("a") == b"1"


def test_valkey_refuses_a_stranger_and_never_evicts(redis_url: str) -> None:
    address, port = redis_url.rsplit("@", 1)[1].split("/")[0].split(":")
    with (
        redis.Redis(address, int(port), retry=Retry(NoBackoff(), 0)) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()
    with redis.Redis.from_url(redis_url) as connection:
        assert connection.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert int(connection.config_get("maxmemory")["maxmemory"]) > 0


def test_a_bucket_takes_an_object_of_several_volumes_worth(s3: S3, bucket: str) -> None:
    store = client(s3)
    store.put_object(bucket, "a b/ü+%2F.bin", io.BytesIO(b"x" * (20 * 2**20)), 20 * 2**20)
    answer = store.get_object(bucket, "a b/ü+%2F.bin")
    try:
        assert len(answer.read()) == 20 * 2**20
    finally:
        answer.close()
        answer.release_conn()


def test_a_put_into_a_bucket_that_nobody_made_is_refused(s3: S3) -> None:
    with pytest.raises(minio.error.S3Error) as refused:
        client(s3).put_object("nobody-made-this", "a", io.BytesIO(b"x"), 1)
    assert refused.value.code == "NoSuchBucket"


def test_the_store_refuses_a_stranger(s3: S3, bucket: str) -> None:
    stranger = S3(s3.endpoint, s3.access_key, "not the secret", s3.region)
    with pytest.raises(minio.error.S3Error):
        list(client(stranger).list_objects(bucket))
    connection = http.client.HTTPConnection(s3.endpoint.removeprefix("http://"), timeout=5)
    connection.request("GET", f"/{bucket}/")
    assert connection.getresponse().status == 403
    connection.close()
