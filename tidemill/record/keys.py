"""The keys of the platform bucket, once.

    requests/<function>/<job>.<generation>.json       accepted API calls and retries
    cancels/<function>/<job>.<generation>.json        accepted cancels of running jobs
    payloads/<job>/<number>/<name>                    what came with them
    attempts/<job>.<generation>/<epoch>-<attempt>-<nonce>/<name>   large outputs before their commit
    commits/<function>/<job>.<generation>.json        which attempt counts
    manifests/<function>/<job>.<generation>.json      the end of every job
    failures/<function>/<job>.<generation>.json       empty: that manifest tells of a failure
    results/<function>/<job>.<generation>/<name>      outputs of functions without `output`
    logs/<function>/<job>.<generation>.txt
    functions/<name>/<revision>.json, functions/<name>/current.json, functions/code/<sha256>.tar.gz
    pools/<name>.json
    epoch
    canary/<gateway>/<random>                         test objects that show whether bucket events come (the gateway's)

Job ids and function names are of our own making, so all but the last parts of payloads and results are plain text.
"""

from __future__ import annotations

import re

from tidemill.ledger.api import Token

REQUESTS = "requests/"
CANCELS = "cancels/"
PAYLOADS = "payloads/"
ATTEMPTS = "attempts/"
LOGS = "logs/"
MANIFESTS = "manifests/"
COMMITS = "commits/"
FAILURES = "failures/"
RESULTS = "results/"
FUNCTIONS = "functions/"
CODE = "functions/code/"
POOLS = "pools/"
EPOCH = "epoch"
CURRENT = "/current.json"
_RECORD = re.compile(r"^[a-z]+/([a-z][a-z0-9-]{0,38})/([0-9a-f]{32})\.([1-9][0-9]*)\.json$")


def request(function: str, job_id: str, generation: int) -> str:
    return f"{REQUESTS}{function}/{job_id}.{generation}.json"


def cancel(function: str, job_id: str, generation: int) -> str:
    return f"{CANCELS}{function}/{job_id}.{generation}.json"


def commit(function: str, job_id: str, generation: int) -> str:
    return f"{COMMITS}{function}/{job_id}.{generation}.json"


def manifest(function: str, job_id: str, generation: int) -> str:
    return f"{MANIFESTS}{function}/{job_id}.{generation}.json"


def failure(function: str, job_id: str, generation: int) -> str:
    return f"{FAILURES}{function}/{job_id}.{generation}.json"


def log(function: str, job_id: str, generation: int) -> str:
    return f"{LOGS}{function}/{job_id}.{generation}.txt"


def results(function: str, job_id: str, generation: int) -> str:
    return f"{RESULTS}{function}/{job_id}.{generation}/"


def payload(job_id: str, number: int, name: str) -> str:
    return f"{PAYLOADS}{job_id}/{number}/{name}"


def attempt(token: Token) -> str:
    return f"{ATTEMPTS}{token.job_id}.{token.generation}/{token.epoch}-{token.attempt}-{token.nonce}/"


def function(name: str, revision: str | None = None) -> str:
    return f"{FUNCTIONS}{name}/{revision}.json" if revision else f"{FUNCTIONS}{name}{CURRENT}"


def code(sha256: str) -> str:
    return f"{CODE}{sha256}.tar.gz"


def pool(name: str) -> str:
    return f"{POOLS}{name}.json"


def names(key: str) -> tuple[str, str, int] | None:
    """Function, job and generation of a request, commit or manifest key; None for anything else."""
    match = _RECORD.match(key)
    return (match[1], match[2], int(match[3])) if match else None
