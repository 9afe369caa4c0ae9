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

    def options(self, name, *more):
        engine, _, rest = name.partition("-")
        if engine in ("direct", "direct_multi"):
            return {"runner_config": name, "runner_option": more}
        kind, _, environment = rest.partition("-")
        options = [_ALL, *more, f"environment={environment or 'loopback'}"]
        if engine == "prism":
            options.append(f"binary={programs.prism()}")
        else:
            jar = getattr(programs, f"{engine}_job_server")()
            options += [f"job_server_jar={jar}", f"java_options={['-Xmx1g', *JAVA]}"]
        if kind == "cluster":
            options.append(f"master={getattr(self, engine).address}")
        if kind == "cluster" and engine == "spark":
            options += [f"version={programs.SPARK}", f"web_ui={self.spark.pages}"]
            conf = {"spark.executor.extraJavaOptions": " ".join(JAVA)}
            options.append(f"spark_conf={conf}")
        return {"runner_config": engine, "runner_option": tuple(options)}

    def arguments(self, name, *more):
        options = self.options(name, *more)
        flags = [f"--runner-option={option}" for option in options["runner_option"]]
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
