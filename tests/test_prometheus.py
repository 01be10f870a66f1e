"""Our /metrics text, the dashboard's queries and the alert rules, against a real Prometheus."""

import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request

import pytest

from sim.engine import simulate
from sim.vllm import export
from ui.incidents import INCIDENTS, instance

if not (shutil.which("prometheus") and shutil.which("promtool")):
    print("test_prometheus: skipped, no `prometheus` and `promtool` on this machine (apt install prometheus)")
    pytest.skip("no prometheus binary (apt install prometheus)", allow_module_level=True)

CASES = ("cap", "both_full", "thrash", "fine", "ranks")
START = 1_760_000_000
STEP = 5
LENGTH = 900  # s: five minutes and more, as the alerts look back


def story(key):
    """A run stretched to fifteen minutes: one scrape in five s, at equal parts of the time in which requests arrive."""
    incident = next(i for i in INCIDENTS if i.key == key)
    run = simulate(instance(incident, 1))
    lines = []
    for k in range(LENGTH // STEP + 1):
        until = run.scenario.duration_s * (0.4 + 0.6 * k * STEP / LENGTH)
        for line in export.metrics_text(run, until, key).splitlines():
            if line and not line.startswith("#"):
                lines.append(f"{line} {START + k * STEP}")
    return lines


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """A Prometheus that holds the stories, as a function from PromQL (at the end of them) to its result."""
    home = tmp_path_factory.mktemp("prometheus")
    series = sorted(
        (line for key in CASES for line in story(key)), key=lambda x: (x.rsplit(" ", 2)[0], int(x.rsplit(" ", 1)[1]))
    )
    (home / "all.om").write_text("\n".join(series) + "\n# EOF\n")
    made = subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", "all.om", "data"], cwd=home, capture_output=True
    )
    assert made.returncode == 0, made.stderr.decode()[-500:] + made.stdout.decode()[-500:]
    (home / "prometheus.yml").write_text("global: {scrape_interval: 5s}\n")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    server = subprocess.Popen(
        [
            "prometheus",
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            "--storage.tsdb.retention.time=100y",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        cwd=home,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    pause, deadline = threading.Event(), time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=2) as answer:
                if answer.status == 200:
                    break
        except OSError:
            assert server.poll() is None, "prometheus did not start"
        assert time.monotonic() < deadline, "prometheus is not ready"
        pause.wait(0.1)

    def query(expression):
        form = urllib.parse.urlencode({"query": expression, "time": START + LENGTH})
        with urllib.request.urlopen(f"{url}/api/v1/query?{form}", timeout=20) as answer:
            body = json.load(answer)
        assert body["status"] == "success"
        return body["data"]["result"]

    yield query
    server.terminate()
    server.wait(20)


def test_promtool_finds_nothing_wrong_with_the_format():
    run = simulate(instance(INCIDENTS[0], 1))
    found = subprocess.run(
        ["promtool", "check", "metrics"], input=export.metrics_text(run).encode(), capture_output=True
    )
    complaints = found.stderr.decode() + found.stdout.decode()
    # vLLM's own names are not to promtool's taste (colons, a histogram called _total); the syntax must be
    assert "error while linting" not in complaints and "parsing" not in complaints, complaints


def test_promtool_accepts_the_alert_rules(tmp_path):
    (tmp_path / "rules.yaml").write_text(export.alert_rules())
    found = subprocess.run(["promtool", "check", "rules", "rules.yaml"], cwd=tmp_path, capture_output=True)
    assert found.returncode == 0, found.stderr.decode() + found.stdout.decode()


@pytest.mark.parametrize("panel", export.grafana()["panels"], ids=lambda p: p["title"])
def test_every_query_of_the_dashboard_has_an_answer(ask, panel):
    for target in panel["targets"]:
        expression = (
            target["expr"].replace("$__rate_interval", "1m").replace("$model_name", "cap|both_full|thrash|fine")
        )
        values = [float(r["value"][1]) for r in ask(expression)]
        assert values and all(v == v for v in values), expression


@pytest.mark.parametrize(
    ("alert", "fires"),
    [
        ("VllmQueueWithFreeCache", {"cap"}),
        ("VllmQueueAndCacheFull", {"both_full", "thrash"}),
        ("VllmPreempting", {"thrash"}),
    ],
)
def test_an_alert_fires_on_its_disease_and_not_on_a_healthy_server(ask, alert, fires):
    expression = next(a.expr for a in export.ALERTS if a.name == alert)
    found = {r["metric"].get("model_name") for r in ask(expression)}
    assert fires <= found and "fine" not in found and (alert != "VllmQueueWithFreeCache" or "both_full" not in found)
