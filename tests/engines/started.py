"""The engines that tests and benchmarks run on, each started when it is first asked for."""

from contextlib import ExitStack
from functools import cached_property

from tests.engines import programs
from tests.engines.clusters import JAVA, FlinkCluster, SparkCluster

# Everything really runs on the engine, small as it is.
_ALL = "smallest_job_seconds=0"


class Engines:
    def __init__(self, folder):
        self.folder = folder
        self._stack = ExitStack()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()

    def options(self, name, *more, beam=()):
        engine, _, rest = name.partition("-")
        if engine in ("direct", "direct_multi"):
            return {"runner_config": name, "runner_option": more, "beam": beam}
        kind, _, environment = rest.partition("-")
        options = [f"environment_type={environment.upper() or 'LOOPBACK'}", *beam]
        if engine == "prism":
            options.append(f"prism_location={programs.prism()}")
        else:
            jar = getattr(programs, f"{engine}_job_server")()
            options += [f"{engine}_job_server_jar={jar}"]
            options += [f"job_server_jvm_properties={java}" for java in JAVA]
        if kind == "cluster":
            master = "flink_master" if engine == "flink" else "spark_master_url"
            options.append(f"{master}={getattr(self, engine).address}")
        if kind == "cluster" and engine == "spark":
            java = f"-Dspark.executor.extraJavaOptions={' '.join(JAVA)}"
            options += [f"job_server_jvm_properties={java}", "sdk_worker_parallelism=1"]
        return {"runner_config": engine, "runner_option": (_ALL, *more), "beam": tuple(options)}

    def arguments(self, name, *more):
        options = self.options(name, *more)
        flags = [f"--runner-option={option}" for option in options["runner_option"]]
        flags += [f"--beam={option}" for option in options["beam"]]
        return [f"--runner-config={options['runner_config']}", *flags]

    @cached_property
    def flink(self):
        return self._started(FlinkCluster(self.folder / "flink"))

    @cached_property
    def spark(self):
        return self._started(SparkCluster(self.folder / "spark"))

    def _started(self, cluster):
        self._stack.callback(cluster.stop)
        return cluster
