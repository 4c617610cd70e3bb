#!/usr/bin/env python3
"""Hosts that share a Redis cluster over a network: each is a network namespace, on links of 1 GB/s.

    remote_hosts_test.py --build build/release [--times 3] [--json FILE]

Two hosts, each with a kvtierd and an engine, and a cluster of three Redis nodes. What host A computed and wrote there,
host B takes from there: its first token is to come at least five times sooner than computed, in FP8 and as the model
computes (f32), with the same answer. Exits with 77 where namespaces cannot be made, or there is no redis-server.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "engine_adapter" / "models" / "docs-4m"
SKIPPED = 77
SOONER_WANTED = 5
FORMATS = ("fp8_e4m3", "f32")
RATE = ["rate", "8gbit", "burst", "1mb", "latency", "20ms"]  # 1 GB/s


def run(*command, **more):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True, **more)


class Network:
    """Namespaces around a bridge, which is in one of its own: nothing of this host's network is touched."""

    def __init__(self, hosts):
        self.prefix = f"kvt{time.time_ns() % 100_000}"
        self.address = {}
        self.made = []
        self.switch = self.make("sw")
        run("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "bridge", "up")
        for number, host in enumerate(hosts, 1):
            self.connect(host, number)

    def make(self, name):
        namespace = f"{self.prefix}-{name}"
        run("ip", "netns", "add", namespace)
        self.made.append(namespace)
        return namespace

    def connect(self, host, number):
        namespace = self.make(host)
        near, far = "net", f"p{number}"
        run("ip", "-n", namespace, "link", "add", near, "type", "veth", "peer", "name", far, "netns", self.switch)
        run("ip", "-n", self.switch, "link", "set", far, "master", "bridge", "up")
        run("ip", "-n", namespace, "addr", "add", f"10.99.0.{number}/24", "dev", near)
        run("ip", "-n", namespace, "link", "set", near, "up")
        run("ip", "-n", namespace, "link", "set", "lo", "up")
        for where, link in ((namespace, near), (self.switch, far)):
            run("tc", "-n", where, "qdisc", "add", "dev", link, "root", "tbf", *RATE)
        self.address[host] = f"10.99.0.{number}"

    def inside(self, host, *command):
        return ["ip", "netns", "exec", f"{self.prefix}-{host}", *map(str, command)]

    def close(self):
        for namespace in reversed(self.made):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)


class Hosts:
    def __init__(self, build, work):
        self.build, self.work, self.processes = build, work, []
        self.nodes, self.hosts = ["r1", "r2", "r3"], ["a", "b"]
        self.network = Network(self.nodes + self.hosts)

    def start(self, host, *command, log):
        with open(self.work / log, "ab") as out:
            process = subprocess.Popen(self.network.inside(host, *command), stdout=out, stderr=out)
        self.processes.append(process)
        return process

    def start_cluster(self):
        for node in self.nodes:
            folder = self.work / node
            folder.mkdir()
            self.start(node, "redis-server", "--port", 6379, "--bind", self.network.address[node], "--protected-mode", "no",
                       "--save", "", "--appendonly", "no", "--dir", folder, "--cluster-enabled", "yes",
                       "--cluster-node-timeout", 2000, log=f"{node}.log")
        places = [f"{self.network.address[node]}:6379" for node in self.nodes]
        for place in places:
            self.until(lambda: self.redis(place, "ping") == "PONG", f"{place} answers")
        run(*self.network.inside("a", "redis-cli", "--cluster", "create", *places, "--cluster-yes"))
        for place in places:
            self.until(lambda: "cluster_state:ok" in self.redis(place, "cluster", "info"), "the cluster is whole")
        return "redis://" + ",".join(places)

    def redis(self, place, *command):
        host, port = place.split(":")
        asked = subprocess.run(self.network.inside("a", "redis-cli", "-h", host, "-p", port, *command),
                               capture_output=True, text=True)
        return asked.stdout.strip()

    def start_daemon(self, host, url):
        config = self.work / f"{host}.toml"
        config.write_text(f'socket = "{self.socket(host)}"\n[host]\ncapacity = "512MiB"\n[http]\nlisten = ""\n'
                          f'[remote]\nurl = "{url}"\nadmission = "all"\nlookup_timeout_ms = 50\n')
        self.start(host, self.build / "bin" / "kvtierd", "--config", config, log=f"{host}.log")
        self.until(lambda: (self.status(host).get("remote") or {}).get("state") == "online",
                   f"kvtierd on host {host} reaches the store")

    def socket(self, host):
        return self.work / f"{host}.sock"

    def status(self, host):
        asked = subprocess.run([self.build / "bin" / "kvtierctl", "--socket", self.socket(host), "status", "--json"],
                               capture_output=True, text=True)
        return json.loads(asked.stdout) if asked.returncode == 0 else {}

    def ctl(self, host, *command):
        run(self.build / "bin" / "kvtierctl", "--socket", self.socket(host), *command)

    def generate(self, host, storage, prompt, *flags):
        done = run(*self.network.inside(
            host, self.build / "bin" / "kvtier-engine", "generate", "--model", MODEL, "--socket", self.socket(host),
            "--storage-format", storage, "--prompt-file", prompt, "--max-tokens", 32, "--json", *flags))
        return json.loads(done.stdout)["runs"][0]

    def until(self, holds, what):
        deadline = time.monotonic() + 60
        while not holds():
            if time.monotonic() > deadline:
                raise RuntimeError(f"it never came to be that {what}; the logs are in {self.work}")
            time.sleep(0.05)

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()
        self.network.close()


def rows(hosts, prompt, times):
    """Per format: the first token on B, computed, and with what A computed."""
    for storage in FORMATS:
        before = hosts.status("a")["remote"]["blocks_written"]
        first = hosts.generate("a", storage, prompt, "--flush")
        blocks = first["prompt_tokens"] // 16
        hosts.until(lambda: hosts.status("a")["remote"]["blocks_written"] >= before + blocks, "what A computed is there")
        computed = [hosts.generate("b", storage, prompt, "--no-cache") for _ in range(times)]
        remote = []
        for _ in range(times):
            # What is in B's own tiers goes: it is to come from the others.
            hosts.ctl("b", "drop", "--tier", "host")
            remote.append(hosts.generate("b", storage, prompt))
        yield {
            "format": storage,
            "prompt_tokens": first["prompt_tokens"],
            "reused": [one["reused"] for one in remote],
            "computed_ms": statistics.median(one["first_token_ms"] for one in computed),
            "remote_ms": statistics.median(one["first_token_ms"] for one in remote),
            "answers": sorted({one["answer_sha256"] for one in [first, *computed, *remote]}),
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="CMake's binary directory")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--least", type=float, default=SOONER_WANTED, help="how many times sooner it is to come")
    arguments = parser.parse_args()
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True)
    if tried.returncode != 0 or not all(map(shutil.which, ("redis-server", "redis-cli", "tc", "ip"))):
        print("skipped: network namespaces cannot be made here, or redis-server, redis-cli, tc or ip is missing")
        return SKIPPED
    work = pathlib.Path(tempfile.mkdtemp(prefix="kvtier-hosts-"))
    hosts = Hosts(arguments.build.resolve(), work)
    try:
        url = hosts.start_cluster()
        for host in hosts.hosts:
            hosts.start_daemon(host, url)
        prompt = work / "prompt.txt"
        question = (ROOT / "scripts" / "demo-questions.txt").read_text().splitlines()[0]
        prompt.write_text(f"{(ROOT / 'scripts' / 'demo-document.txt').read_text()}\n\nQuestion: {question}\nAnswer:")
        found = list(rows(hosts, prompt, arguments.times))
    finally:
        hosts.close()
    wrong = []
    for row in found:
        row["sooner"] = row["computed_ms"] / row["remote_ms"]
        print(f"{row['format']:<10} {row['prompt_tokens']} tokens: computed {row['computed_ms']:.1f} ms, from the cluster "
              f"{row['remote_ms']:.1f} ms, {row['sooner']:.1f} times sooner; reused {row['reused'][-1]}")
        if row["sooner"] < arguments.least:
            wrong.append(f"{row['format']}: only {row['sooner']:.1f} times sooner")
        if len(row["answers"]) != 1:
            wrong.append(f"{row['format']}: the answers differ")
        if any(one["remote"] < row["prompt_tokens"] // 16 * 16 - 16 for one in row["reused"]):
            wrong.append(f"{row['format']}: not all of it came from the cluster")
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": found, "rate_bytes_per_s": 1_000_000_000}, indent=2) + "\n")
    for what in wrong:
        print(f"NOT HELD: {what}", file=sys.stderr)
    shutil.rmtree(work)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
