"""Clusters of Flink and Spark on this machine, which nobody else can reach and which end with the tests."""

import os
import shutil
import signal
import time

import yaml

from slicebeam.metrics.errors import EngineError
from slicebeam.runner_configs.flink import ask
from slicebeam.runner_configs.guarded_process import GuardedProcess
from slicebeam.runner_configs.job_service import free_port
from tests.engines.programs import flink_home, spark_home
from tests.object_stores import ROOT

HOST = "127.0.0.1"
START_SECONDS = 120.0
# Programs that live for minutes: what the second compiler saves later, they do not live to see.
JAVA = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class Cluster:
    """A master, and nodes that can be replaced."""

    nodes = 2

    def __init__(self, folder):
        self.folder, self.programs = folder, {}
        for part in ("conf", "log", "tmp"):
            (folder / part).mkdir(parents=True)
        self.begin()
        for number in range(self.nodes):
            self.start_node(f"node-{number + 1}")
        self.await_nodes()

    def start(self, name, command, variables):
        temporary = self.folder / "tmp" / name
        temporary.mkdir(exist_ok=True)
        log = self.folder / "log" / f"{name}.out"
        # Workers of Python that it starts know the functions of tests, and outlive the first test.
        path = os.pathsep.join([str(ROOT / ".typing"), str(ROOT)])
        variables = {**variables, "TMPDIR": str(self.folder / "tmp"), "PYTHONPATH": path}
        self.programs[name] = GuardedProcess(command, log, temporary, variables)

    def await_nodes(self):
        end = time.monotonic() + START_SECONDS
        while self.ready_nodes() != self.nodes:
            for program in self.programs.values():
                program.check()
            assert time.monotonic() < end, f"no cluster; see {self.folder / 'log'}"
            time.sleep(0.1)

    def replace_node(self):
        """Kill one, and start another, as whoever looks after a cluster does."""
        name = f"node-{self.nodes}"
        os.killpg(self.programs[name].pid, signal.SIGKILL)
        self.start_node(name)

    def pids(self):
        return [program.pid for program in self.programs.values()]

    def stop(self):
        for program in reversed(self.programs.values()):
            program.stop()


class FlinkCluster(Cluster):
    def begin(self):
        port = free_port()
        self.address = self.pages = f"{HOST}:{port}"
        for path in flink_home().glob("conf/log*"):
            shutil.copy(path, self.folder / "conf")
        shipped = yaml.safe_load((flink_home() / "conf" / "config.yaml").read_text("utf-8"))
        manager = {"bind-host": HOST, "memory": {"process": {"size": "1024m"}}}
        node = {"bind-host": HOST, "host": HOST, "memory": {"process": {"size": "1500m"}}}
        # What newer Javas keep closed to Flink, as Flink ships it.
        opened = shipped["env"]["java"]["opts"]["all"]
        settings = {
            "env": {"java": {"opts": {"all": " ".join([opened, *JAVA])}}},
            "jobmanager": manager | {"rpc": {"address": HOST, "port": free_port()}},
            # Else all of a small job goes to one of the task managers.
            "taskmanager": node | {"numberOfTaskSlots": 1, "load-balance": {"mode": "SLOTS"}},
            # A task manager that is gone is noticed after two heartbeats. A job that begins again
            # before would be sent to it once more, and have one attempt less.
            "heartbeat": {"interval": 2000, "timeout": 10000},
            "restart-strategy": {
                "type": "fixed-delay",
                "fixed-delay": {"attempts": 2, "delay": "8 s"},
            },
            "rest": {"address": HOST, "bind-address": HOST, "port": port, "bind-port": str(port)},
            # Every job brings the job server's jar, 150 MB a node: it goes soon after the job.
            "blob": {
                "server": {"port": str(free_port())},
                "service": {"cleanup": {"interval": 20}},
            },
            "io": {"tmp": {"dirs": str(self.folder / "tmp")}},
        }
        (self.folder / "conf" / "config.yaml").write_text(yaml.safe_dump(settings), "utf-8")
        self._script("jobmanager", "jobmanager")

    def start_node(self, name):
        self._script(name, "taskmanager")

    def _script(self, name, kind):
        variables = {"FLINK_HOME": str(flink_home())}
        for key, part in {"CONF": "conf", "LOG": "log", "PID": "tmp"}.items():
            variables[f"FLINK_{key}_DIR"] = str(self.folder / part)
        self.start(name, [str(flink_home() / "bin" / f"{kind}.sh"), "start-foreground"], variables)

    def ready_nodes(self):
        try:
            return int(ask(f"http://{self.pages}/overview")["slots-total"])
        except EngineError:
            return 0


class SparkCluster(Cluster):
    def begin(self):
        port, pages = free_port(), free_port()
        self.address, self.pages = f"spark://{HOST}:{port}", f"{HOST}:{pages}"
        self._class("Master", "master", "--port", str(port), "--webui-port", str(pages))

    def start_node(self, name):
        limits = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / name)]
        self._class("Worker", name, "--port", "0", "--webui-port", "0", *limits, self.address)

    def _class(self, kind, name, *arguments):
        variables = {
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_PUBLIC_DNS": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": " ".join(JAVA),
            "SPARK_CONF_DIR": str(self.folder / "conf"),
            "SPARK_LOCAL_DIRS": str(self.folder / "tmp"),
            # Every executor gets a copy of the job server's jar, a quarter of a gigabyte: those of
            # applications that have ended go after a minute.
            "SPARK_WORKER_OPTS": "-Dspark.worker.cleanup.enabled=true "
            "-Dspark.worker.cleanup.interval=20 -Dspark.worker.cleanup.appDataTtl=30",
        }
        program = [str(spark_home() / "bin" / "spark-class")]
        program += [f"org.apache.spark.deploy.{kind.lower()}.{kind}", "--host", HOST]
        self.start(name, [*program, *arguments], variables)

    def ready_nodes(self):
        try:
            workers = ask(f"http://{self.pages}/json/")["workers"]
        except EngineError:
            return 0
        return len([worker for worker in workers if worker["state"] == "ALIVE"])
