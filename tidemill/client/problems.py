"""Errors from what the service said: a problem document (RFC 9457), or the error of a job."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tidemill.client.values import Snapshot
from tidemill.client.wire import Response
from tidemill.errors import JOB_HINTS, FunctionFailed, JobCancelled, NoCapacity, TidemillError, error_for

_GATEWAY_TROUBLE = frozenset({502, 503, 504})


def problem(response: Response) -> TidemillError:
    """Give the error that an answer with a status of 400 or more stands for."""
    document = _document(response)
    if document is None:
        return _foreign(response)
    message = str(document.get("detail") or document.get("title") or f"HTTP {response.status}")
    details = {k: v for k, v in document.items() if k not in {"code", "detail", "hint", "status", "title", "type"}}
    details.pop("message", None)
    code = str(document.get("code") or "")
    return error_for(code, message, hint=document.get("hint"), status=response.status, **details)


def job_error(job: Snapshot) -> TidemillError | None:
    """Give the error of a job that failed or was cancelled, None for any other."""
    if job.state not in {"failed", "cancelled"}:
        return None
    found: Mapping[str, Any] = job.data.get("error") or {}
    code = str(found.get("code") or "")
    message = str(found.get("message") or f"Job {job.id} {job.state}.")
    kind = JobCancelled if job.state == "cancelled" else NoCapacity if code == NoCapacity.code else FunctionFailed
    hint = re.sub(r"\bID\b", job.id, str(found.get("hint") or JOB_HINTS.get(code) or kind.default_hint))
    if kind is JobCancelled:
        return JobCancelled(message, hint=hint, code=code or None, job_id=job.id)
    if kind is NoCapacity:
        return NoCapacity(message, hint=hint, job_id=job.id)
    texts = {"traceback": str(found.get("traceback") or ""), "log_tail": str(found.get("log_tail") or "")}
    return FunctionFailed(message, hint=hint, code=code or None, job_id=job.id, **texts)


def _document(response: Response) -> Mapping[str, Any] | None:
    try:
        found = json.loads(response.content)
    except ValueError:
        return None
    return found if isinstance(found, dict) and ("code" in found or "detail" in found) else None


def _foreign(response: Response) -> TidemillError:
    text = response.content[:200].decode("utf-8", "replace").strip()
    message = f"The answer was HTTP {response.status}" + (f": {text}" if text else ".")
    status = 503 if response.status in _GATEWAY_TROUBLE else response.status
    hint = None if status == 503 else "Something else than Tidemill seems to listen there; check TIDEMILL_URL."
    return error_for("", message, hint=hint, status=status)
