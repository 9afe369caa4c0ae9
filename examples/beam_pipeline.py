"""Finds slices in a Beam pipeline: of the census data, where the model is worse than over all examples.

    python examples/beam_pipeline.py out/pipeline
    python examples/beam_pipeline.py out/pipeline --runner=FlinkRunner --flink_master=localhost:8081

Options after the folder are Beam's; all workers have to see the folder.
"""

import sys

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from slicebeam import FindSlices

DATA = "pipelines/demo_data/adult_scored.parquet"
COLUMNS = ["age", "education", "sex", "hours-per-week", "income", "prediction"]
OPTIONS = {"label": "income", "prediction": "prediction"}


def main(output: str, flags: list[str]) -> None:
    """Read examples, find slices, and print the three worst."""
    with beam.Pipeline(options=PipelineOptions(flags)) as pipeline:
        (
            pipeline
            # From BigQuery, Avro or any other source likewise: dicts, schema rows or Arrow tables.
            | "Read" >> beam.io.ReadFromParquetBatched(DATA, columns=COLUMNS)
            | FindSlices(output=output, **OPTIONS)
            | "Significant" >> beam.Filter(lambda row: row["significant"])
            | "Worst" >> beam.combiners.Top.Of(3, key=lambda row: -row["delta"])
            | "Print" >> beam.FlatMap(print_slices)
        )


def print_slices(rows: list[dict]) -> list:
    """Print slices, the worst first."""
    for row in rows:
        print(f"{row['slice']}: {row['value']:.3f} of {row['n']:,} ({row['delta']:+.3f})")
    return []


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
