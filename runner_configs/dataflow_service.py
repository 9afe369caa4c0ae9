"""The service of Dataflow: its jobs, their cancellation, and its errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from slicebeam.metrics.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

Answer = TypeVar("Answer")

_ACTIVE = frozenset(
    {
        "JOB_STATE_PENDING", "JOB_STATE_QUEUED", "JOB_STATE_RUNNING", "JOB_STATE_PAUSED",
        "JOB_STATE_PAUSING", "JOB_STATE_CANCELLING", "JOB_STATE_DRAINING",
        "JOB_STATE_RESOURCE_CLEANING_UP",
        # Said of a job that was made a moment ago.
        "JOB_STATE_UNKNOWN", "JOB_STATE_STOPPED",
    }
)  # fmt: skip
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_LONGEST_REASON = 300
# Seconds for which a request is repeated that the service cannot answer now.
SERVICE_TIMEOUT = 300.0
# Seconds that one request may take.
_TIMEOUT = 60.0


@dataclass(frozen=True)
class Job:
    """A job as the service reports it."""

    id: str
    name: str
    state: str
    created: float

    @property
    def is_active(self) -> bool:
        """Whether it may still change something."""
        return self.state in _ACTIVE

    @property
    def is_done(self) -> bool:
        """Whether it ended well."""
        return self.state == "JOB_STATE_DONE"


@dataclass(frozen=True)
class JobCounts:
    """What a finished job counted."""

    user: dict[str, int]
    vcpu_seconds: float


class DataflowService:
    """Calls the service of a project and region.

    A request that the overloaded or unreachable service cannot answer is repeated for a while.
    """

    def __init__(self, project: str, region: str, endpoint: str, *, is_anonymous: bool) -> None:
        self.place = {"project_id": project, "location": region}
        self.endpoint, self.is_anonymous = endpoint, is_anonymous
        self._clients: dict[str, Any] = {}

    def jobs_named(self, name: str) -> list[Job]:
        """Return the jobs of a name, the latest last."""
        jobs = [job for job in self._jobs(filter="ALL", name=name) if job.name == name]
        return sorted(jobs, key=lambda job: (job.created, job.id))

    def active_jobs(self) -> list[Job]:
        """Return all jobs of the project and region that are not over."""
        return [job for job in self._jobs(filter="ACTIVE") if job.is_active]

    def _jobs(self, **request: Any) -> list[Job]:
        return self._call(
            "Jobs.list_jobs", "list its jobs", lambda jobs: list(map(_job, jobs)), **request
        )

    def job(self, job_id: str) -> Job:
        """Return the state of a job."""
        return self._call("Jobs.get_job", f"report the state of job {job_id}", _job, job_id=job_id)

    def cancel(self, job_id: str) -> None:
        """Ask for the end of a job."""
        wanted = {"requested_state": "JOB_STATE_CANCELLED"}
        self._call("Jobs.update_job", f"cancel job {job_id}", job_id=job_id, job=wanted)

    def errors(self, job_id: str) -> list[str]:
        """Return the error messages of a job."""
        return self._call(
            "Messages.list_job_messages",
            f"report the messages of job {job_id}",
            lambda messages: [message.message_text for message in messages],
            job_id=job_id,
            minimum_importance="JOB_MESSAGE_ERROR",
        )

    def counts(self, job_id: str) -> JobCounts:
        """Return the counts of a job."""
        what = f"report the metrics of job {job_id}"
        answer = self._call("Metrics.get_job_metrics", what, job_id=job_id)
        user: dict[str, int] = {}
        seconds = 0.0
        for metric in answer.metrics:
            # Skip tentative counters; the service repeats them as committed.
            if metric.scalar is None or metric.name.context.get("tentative") == "true":
                continue
            if metric.name.origin == "user":
                user[metric.name.name] = user.get(metric.name.name, 0) + int(metric.scalar)
            elif metric.name.name == "TotalVcpuTime":
                seconds = float(metric.scalar)
        return JobCounts(user, seconds)

    def console(self, job_id: str) -> str:
        """Return the address of the page about a job."""
        return (
            f"https://console.cloud.google.com/dataflow/jobs/{self.place['location']}/{job_id}"
            f"?project={self.place['project_id']}"
        )

    def _call(
        self,
        call: str,
        what: str,
        read: Callable[[Any], Any] = lambda answer: answer,
        **request: Any,
    ) -> Any:
        """Return what is read of an answer; its further pages are asked for on the way."""
        kind, _, method = call.partition(".")
        request |= self.place

        def answer() -> Any:
            return read(getattr(client, method)(request=request, timeout=_TIMEOUT))

        client = self._client(kind)
        return self._retry(answer, what)

    def _client(self, kind: str) -> Any:
        if kind not in self._clients:
            from google.api_core.client_options import ClientOptions
            from google.auth.credentials import AnonymousCredentials
            from google.cloud import dataflow_v1beta3 as api

            options: dict[str, Any] = {}
            if self.is_anonymous:
                options["credentials"] = AnonymousCredentials()  # type: ignore[no-untyped-call]
            if self.endpoint:
                options["client_options"] = ClientOptions(api_endpoint=self.endpoint)
                # As Beam has it: what stands in for the service speaks JSON.
                if "localhost" in self.endpoint:
                    options["transport"] = "rest"
            client = getattr(api, f"{kind}V1Beta3Client")
            self._clients[kind] = self._retry(lambda: client(**options), "be reached")
        return self._clients[kind]

    def _retry(self, call: Callable[[], Answer], what: str) -> Answer:
        """Return the result of a call, repeated while the service is overloaded or away."""
        from google.api_core.retry import Retry

        retry = Retry(
            predicate=is_transient,
            initial=_FIRST_PAUSE,
            maximum=_LONGEST_PAUSE,
            timeout=SERVICE_TIMEOUT,
        )
        try:
            answer: Answer = retry(call)()
        except Exception as error:
            failure = to_engine_error(error, what)
            if failure is None:
                raise
            raise failure from error
        return answer


def _job(answer: Any) -> Job:
    created = answer.create_time.timestamp() if answer.create_time else 0.0
    return Job(answer.id, answer.name, answer.current_state.name, created)


def is_transient(error: BaseException) -> bool:
    """Return whether a request may succeed when it is sent again."""
    import requests
    from google.api_core import exceptions
    from google.auth.exceptions import TransportError

    return isinstance(
        error,
        (
            exceptions.TooManyRequests,
            exceptions.ServerError,
            requests.ConnectionError,
            requests.Timeout,
            TransportError,
        ),
    )


def to_engine_error(error: BaseException, what: str) -> EngineError | None:
    """Return the error to report for an error of the service, None if it is not one."""
    import requests
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError

    if isinstance(error, exceptions.RetryError):
        cause = error.cause or error
        return EngineError(
            f"dataflow did not answer a request to {what} ({_reason(cause)}); running jobs "
            "continue: try again later with --resume"
        )
    if isinstance(error, GoogleAuthError):
        return EngineError(
            f"no credentials for dataflow ({_reason(error)}); run gcloud auth application-default "
            "login, or name a service account's file in GOOGLE_APPLICATION_CREDENTIALS"
        )
    if isinstance(error, (exceptions.Forbidden, exceptions.Unauthorized)):
        remedy = "; check the credentials, and that they have the role Dataflow Developer"
    elif isinstance(error, exceptions.NotFound):
        remedy = "; check the options project and region"
    elif isinstance(error, (exceptions.GoogleAPIError, requests.RequestException)):
        remedy = ""
    else:
        return None
    return EngineError(f"dataflow refused to {what}: {_reason(error)}{remedy}")


def _reason(error: BaseException) -> str:
    """Return the first line of the service's message."""
    text = str(getattr(error, "message", "") or error)
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    # The REST client puts the address first: 403 GET http://…: the reason
    if "://" in line.split(": ")[0]:
        line = line.partition(": ")[2] or line
    return (line or type(error).__name__)[:_LONGEST_REASON].rstrip(".")
