"""The service of Dataflow: its jobs, their cancellation, and its errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from slicebeam.metrics.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicebeam.runner_configs.options import DataflowOptions

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

    A request that the service can't answer now, because it is overloaded or unreachable, is repeated for ``service_timeout`` seconds.
    """

    def __init__(self, options: DataflowOptions) -> None:
        self.options = options
        self._clients: tuple[Any, Any, Any] | None = None

    def jobs_named(self, name: str) -> list[Job]:
        """Return the jobs of a name, the latest last."""
        from google.cloud import dataflow_v1beta3 as api

        request = api.ListJobsRequest(
            project_id=self.options.project,
            location=self.options.region,
            filter=api.ListJobsRequest.Filter.ALL,
            name=name,
        )
        return sorted(
            (job for job in self._listed(request) if job.name == name),
            key=lambda job: (job.created, job.id),
        )

    def active_jobs(self) -> list[Job]:
        """Return all jobs of the project and region that are not over."""
        from google.cloud import dataflow_v1beta3 as api

        request = api.ListJobsRequest(
            project_id=self.options.project,
            location=self.options.region,
            filter=api.ListJobsRequest.Filter.ACTIVE,
        )
        return [job for job in self._listed(request) if job.is_active]

    def _listed(self, request: Any) -> list[Job]:
        jobs, _, _ = self._service()
        # Further pages are asked for on the way: where one fails, all are asked for again.
        return self._told(
            lambda: [_job(one) for one in jobs.list_jobs(request=request, timeout=_TIMEOUT)],
            "list its jobs",
        )

    def job(self, job_id: str) -> Job:
        """Return the state of a job."""
        from google.cloud import dataflow_v1beta3 as api

        jobs, _, _ = self._service()
        request = api.GetJobRequest(job_id=job_id, **self._place())
        return _job(self._ask(jobs.get_job, request, f"report the state of job {job_id}"))

    def cancel(self, job_id: str) -> None:
        """Ask for the end of a job."""
        from google.cloud import dataflow_v1beta3 as api

        jobs, _, _ = self._service()
        wanted = api.Job(requested_state=api.JobState.JOB_STATE_CANCELLED)
        request = api.UpdateJobRequest(job_id=job_id, job=wanted, **self._place())
        self._ask(jobs.update_job, request, f"cancel job {job_id}")

    def errors(self, job_id: str) -> list[str]:
        """Return the error messages of a job."""
        from google.cloud import dataflow_v1beta3 as api

        _, messages, _ = self._service()
        request = api.ListJobMessagesRequest(
            job_id=job_id,
            minimum_importance=api.JobMessageImportance.JOB_MESSAGE_ERROR,
            **self._place(),
        )

        def texts() -> list[str]:
            found = messages.list_job_messages(request=request, timeout=_TIMEOUT)
            return [one.message_text for one in found]

        return self._told(texts, f"report the messages of job {job_id}")

    def counts(self, job_id: str) -> JobCounts:
        """Return the counts of a job."""
        from google.cloud import dataflow_v1beta3 as api

        _, _, metrics = self._service()
        request = api.GetJobMetricsRequest(job_id=job_id, **self._place())
        found = self._ask(metrics.get_job_metrics, request, f"report the metrics of job {job_id}")
        user: dict[str, int] = {}
        seconds = 0.0
        for one in found.metrics:
            # What is tentative is told again, committed.
            if one.scalar is None or one.name.context.get("tentative") == "true":
                continue
            if one.name.origin == "user":
                user[one.name.name] = user.get(one.name.name, 0) + int(one.scalar)
            elif one.name.name == "TotalVcpuTime":
                seconds = float(one.scalar)
        return JobCounts(user, seconds)

    def console(self, job_id: str) -> str:
        """Return the address of the page about a job."""
        return (
            f"https://console.cloud.google.com/dataflow/jobs/{self.options.region}/{job_id}"
            f"?project={self.options.project}"
        )

    def _place(self) -> dict[str, str]:
        return {"project_id": self.options.project, "location": self.options.region}

    def _service(self) -> tuple[Any, Any, Any]:
        """Return the clients of jobs, messages and metrics."""
        if self._clients is None:
            from google.api_core.client_options import ClientOptions
            from google.auth.credentials import AnonymousCredentials
            from google.cloud import dataflow_v1beta3 as api

            given: dict[str, Any] = {}
            if self.options.no_auth:
                given["credentials"] = AnonymousCredentials()  # type: ignore[no-untyped-call]
            if self.options.endpoint:
                given["client_options"] = ClientOptions(api_endpoint=self.options.endpoint)
                # As Beam has it: what stands in for the service speaks JSON.
                if "localhost" in self.options.endpoint:
                    given["transport"] = "rest"
            self._clients = self._told(
                lambda: (
                    api.JobsV1Beta3Client(**given),
                    api.MessagesV1Beta3Client(**given),
                    api.MetricsV1Beta3Client(**given),
                ),
                "be reached",
            )
        return self._clients

    def _ask(self, call: Callable[..., Any], request: Any, what: str) -> Any:
        return self._told(lambda: call(request=request, timeout=_TIMEOUT), what)

    def _told(self, call: Callable[[], Answer], what: str) -> Answer:
        """Return the result of a call, repeated while the service is overloaded or away."""
        from google.api_core.retry import Retry

        retry = Retry(
            predicate=is_passing,
            initial=_FIRST_PAUSE,
            maximum=_LONGEST_PAUSE,
            timeout=self.options.service_timeout,
        )
        try:
            answer: Answer = retry(call)()
        except Exception as error:
            failure = refusal(error, what)
            if failure is None:
                raise
            raise failure from error
        return answer


def _job(told: Any) -> Job:
    created = told.create_time.timestamp() if told.create_time else 0.0
    return Job(told.id, told.name, told.current_state.name, created)


def is_passing(error: BaseException) -> bool:
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


def refusal(error: BaseException, what: str) -> EngineError | None:
    """Return the error to report for an error of the service, None if it is not one."""
    import requests
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError

    if isinstance(error, exceptions.RetryError):
        cause = error.cause or error
        return EngineError(
            f"dataflow did not answer a request to {what} ({_reason(cause)}); running jobs "
            "continue: try again later with --resume (a longer time limit: --runner-option "
            "service_timeout=SECONDS)"
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
