"""What tests share: waiting, and the real servers of a run."""

from tests.support.minio import MinioServer, run_minio
from tests.support.servers import S3, run_seaweed, run_valkey
from tests.support.waiting import wait_until

__all__ = ["S3", "MinioServer", "run_minio", "run_seaweed", "run_valkey", "wait_until"]
