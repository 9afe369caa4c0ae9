"""A DAG of Airflow 2.4 or newer that runs the nightly search on the day's data.

Needs slicebeam on the workers (or a `KubernetesPodOperator` with the same command), and the variables
DATA and RESULTS, folders that they share or buckets.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from airflow import DAG
from airflow.operators.bash import BashOperator

# {{ ds }} is the day whose data the run is about, also where it is run again later.
COMMAND = "slicebeam run /srv/slicebeam/nightly.yaml --date {{ ds }} --log-format json"

with DAG(
    dag_id="slicebeam_nightly",
    schedule="15 5 * * *",
    start_date=datetime(2026, 11, 18, tzinfo=timezone.utc),
    catchup=True,
    # A day is compared with the one before.
    max_active_runs=1,
) as dag:
    BashOperator(
        task_id="search",
        bash_command=COMMAND,
        env={"DATA": "gs://example-evaluation/eval", "RESULTS": "gs://example-evaluation/results"},
        append_env=True,
        # Exit code 3, a failure of engine or storage, is worth another attempt; so are 1 and 2 to
        # Airflow, which can't tell them apart, hence only one.
        retries=1,
        retry_delay=timedelta(minutes=10),
    )
