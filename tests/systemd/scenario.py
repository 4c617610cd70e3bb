#!/usr/bin/env python3
"""What an operator does with the packages, in a systemd that boot.sh started. Says what held and what did not."""
import argparse
import glob
import json
import os
import pathlib
import pwd
import stat
import subprocess
import sys
import time

SERVICE, SOCKET_UNIT = "kvtierd.service", "kvtierd.socket"
SOCKET = "/run/kvtier/kvtierd.sock"
CONFIG = pathlib.Path("/etc/kvtier/kvtierd.toml")
WORK = pathlib.Path("/mnt/work")
MODEL = "/usr/share/kvtier/models/docs-4m"
DOCUMENT = "/usr/share/doc/kvtier/examples/demo-document.txt"
EXPOSURE_MAX = 2.0
FIRST_HIT_S = 1.0
BLOCKS = 16  # of each of the example's prompts, of 1 MiB each

failed = []


def check(what, held, seen=""):
    print(("held: " if held else "NOT HELD: ") + what + (f" ({seen})" if seen != "" else ""), flush=True)
    if not held:
        failed.append(what)


def run(*command, ok=True, user=None):
    """Its standard output; both outputs are shown where it fails and should not."""
    if user:
        command = ("runuser", "-u", user, "--", *command)
    done = subprocess.run(command, capture_output=True, text=True)
    if ok and done.returncode:
        log = subprocess.run(["journalctl", "-u", "kvtierd*", "-n", "30", "--no-pager"], capture_output=True, text=True)
        sys.exit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stdout}{done.stderr}{log.stdout}")
    return done.stdout if ok else done


def show(prop, unit=SERVICE):
    return run("systemctl", "show", "-P", prop, unit).strip()


def eventually(what, condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            check(what, False, f"not within {seconds} s")
            return False
        time.sleep(0.01)
    return True


def serving_with_another_pid(before):
    return show("MainPID") not in ("0", before) and show("ActiveState") == "active"


def status():
    return json.loads(run("kvtierctl", "status", "--json"))


def tier(name):
    return next(t for t in status()["tiers"] if t["tier"] == name)


def quota_of(name):
    """In bytes, of the host tier."""
    return next(t for t in status()["tenants"] if t["tenant"] == name)["quota_bytes"]["host"]


def configure(**host):
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in host.items())
    CONFIG.write_text(f'[host]\n{lines}\n[disk]\ndirectory = "/var/lib/kvtier/disk"\ncapacity = "16GiB"\n'
                      "scrub_mib_per_s = 0\n")


def install(number):
    run("dpkg", "-i", *glob.glob(str(WORK / f"packages{number}" / "*.deb")))


def hit(prompt=1):
    return json.loads(run(str(WORK / "build" / "kvtier-example"), SOCKET, "hit", str(prompt), user="engine"))


def hits_in_memory(after, blocks_before):
    """The next request after something happened to the daemon: from memory, without the disk, at once."""
    asked = time.monotonic()
    answer = hit()
    started = int(show("ExecMainStartTimestampMonotonic")) / 1e6
    seconds = answer["monotonic_us"] / 1e6 - max(started, asked)
    check(f"after {after}, the next request hits in memory",
          answer["host"] == BLOCKS and answer["blocks"] == BLOCKS, answer)
    check(f"after {after}, the disk was not touched", tier("disk")["hits"] == 0, tier("disk")["hits"])
    check(f"after {after}, the first hit came within {FIRST_HIT_S} s of the daemon's start, or of asking", seconds <= FIRST_HIT_S,
          f"{seconds:.3f} s")
    check(f"after {after}, all blocks are in memory", tier("host")["blocks"] >= blocks_before,
          f'{tier("host")["blocks"]} of {blocks_before}')


def locked_limit(process):
    limits = (process / "limits").read_text().splitlines()
    return next(line for line in limits if line.startswith("Max locked memory")).split()[4]


def may_raise_limits():
    """Whether process 1 has CAP_SYS_RESOURCE, which containers often withhold."""
    status = pathlib.Path("/proc/1/status").read_text()
    effective = int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), 16)
    return bool(effective >> 24 & 1)


def installed():
    install(1)
    check("installing starts the service", show("ActiveState") == "active" and show("SubState") == "running")
    check("what it does is said", show("StatusText") == f"Serving on {SOCKET}", show("StatusText"))
    daemon = pathlib.Path(f"/proc/{show('MainPID')}")
    check("it is not root", pwd.getpwuid(daemon.stat().st_uid).pw_name == "kvtier")
    check("it may lock any amount of memory", locked_limit(daemon) == "unlimited" or not may_raise_limits(),
          locked_limit(daemon) + ("" if may_raise_limits() else ": this machine lets nobody raise it"))
    nice = (daemon / "stat").read_text().rpartition(")")[2].split()[16]
    check("its control thread has the share that it asks for", nice == "-5" or not may_raise_limits(), f"nice {nice}")
    mode = os.stat(SOCKET)
    check("the socket is the group's", stat.S_IMODE(mode.st_mode) == 0o660 and
          mode.st_gid == pwd.getpwnam("kvtier").pw_gid, oct(mode.st_mode))
    total = int(next(line.split()[1] for line in open("/proc/meminfo") if line.startswith("MemTotal"))) * 1024
    cap = tier("host")["cap_bytes"]
    check("the host tier is a share of memory", 256 << 20 <= cap <= total // 4, f"{cap >> 20} MiB of {total >> 20}")
    check("there is no disk tier unless configured", not tier("disk")["online"])
    run("useradd", "-M", "-G", "kvtier", "engine")
    run("useradd", "-M", "stranger")
    check("a user of the group may use it", run("kvtierctl", "status", ok=False, user="engine").returncode == 0)
    refused = run("kvtierctl", "status", ok=False, user="stranger")
    check("any other user is refused, and told of the group", refused.returncode == 3 and "group" in refused.stderr,
          refused.stderr.strip())
    for page in ("kvtierd.8", "kvtierd.toml.5", "kvtierctl.1", "kvtier-engine.1", "kvtier-warm.1"):
        check(f"{page} is there", glob.glob(f"/usr/share/man/man?/{page}.gz") != [])
    completion = run("bash", "-c", "source /usr/share/bash-completion/completions/kvtierctl; COMP_WORDS=(kvtierctl st); "
                     "COMP_CWORD=1; _kvtier; echo ${COMPREPLY[*]}")
    check("bash completes a command", completion.split() == ["status"], completion.strip())


def hardened():
    verify = run("systemd-analyze", "verify", SERVICE, SOCKET_UNIT, ok=False)
    check("systemd-analyze verify is silent", verify.returncode == 0 and not verify.stdout + verify.stderr,
          (verify.stdout + verify.stderr).strip())
    table = run("systemd-analyze", "security", "--no-pager", SERVICE)
    (WORK / "security.txt").write_text(table)
    exposure = float(table.strip().splitlines()[-1].split(": ")[1].split()[0])
    check(f"the exposure is at most {EXPOSURE_MAX}", exposure <= EXPOSURE_MAX, exposure)


def engine_runs():
    command = ("kvtier-engine", "generate", "--model", MODEL, "--prompt-file", DOCUMENT, "--max-tokens", "4", "--json",
               "--flush")
    first = json.loads(run(*command, user="engine"))["runs"][0]
    again = json.loads(run(*command, user="engine"))["runs"][0]
    check("an engine of the group fills the cache", first["source"] == "none" and first["reused_tokens"] == 0)
    check("and a new engine process hits", again["source"] == "host" and again["reused_tokens"] >= 4000 and
          again["answer_sha256"] == first["answer_sha256"], again["reused_tokens"])


def restarts(cached_mib):
    run("cmake", "-S", str(WORK), "-B", str(WORK / "build"))
    run("cmake", "--build", str(WORK / "build"))
    run(str(WORK / "build" / "kvtier-example"), SOCKET, "fill", str(cached_mib // BLOCKS), user="engine")
    blocks = tier("host")["blocks"]
    check("the cache is filled", blocks >= cached_mib, f"{blocks} blocks")

    run("systemctl", "restart", SERVICE)
    hits_in_memory("systemctl restart", blocks)

    pid = show("MainPID")
    os.kill(int(pid), 9)
    if eventually("a killed daemon is started again", lambda: serving_with_another_pid(pid)):
        hits_in_memory("kill -9", blocks)

    pid = show("MainPID")
    install(2)
    check("the upgrade is installed", run("dpkg-query", "-W", "-f", "${Version}", "kvtier").endswith("+test2"))
    check("the upgrade restarted the daemon", serving_with_another_pid(pid))
    hits_in_memory("a package upgrade", blocks)


def watched(blocks):
    drop_in = pathlib.Path("/run/systemd/system/kvtierd.service.d/watchdog.conf")
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text("[Service]\nWatchdogSec=3\n")
    run("systemctl", "daemon-reload")
    run("systemctl", "restart", SERVICE)
    pid = show("MainPID")
    first_fed = int(show("WatchdogTimestampMonotonic"))
    eventually("the watchdog is fed for longer than its time",
               lambda: int(show("WatchdogTimestampMonotonic")) - first_fed > 4e6)
    check("a daemon that works is left alone", show("MainPID") == pid)
    os.kill(int(pid), 19)
    if eventually("a daemon whose control loop stands is started again", lambda: serving_with_another_pid(pid)):
        check("by the watchdog", "Watchdog timeout" in run("journalctl", "-u", SERVICE, "--no-pager"))
        hits_in_memory("the watchdog's restart", blocks)
    drop_in.unlink()
    run("systemctl", "daemon-reload")


def reloads():
    pid, cap = show("MainPID"), tier("host")["cap_bytes"]
    good = CONFIG.read_text()
    CONFIG.write_text(good + "admission = \"none\"\nadmision = \"none\"\n")
    refused = run("systemctl", "reload", SERVICE, ok=False)
    check("a reload of a file with a mistake fails", refused.returncode != 0)
    check("and says where", "kvtierd.toml:" in run("journalctl", "-u", SERVICE, "-n", "5", "--no-pager"))
    check("and changes nothing", show("MainPID") == pid and tier("host")["cap_bytes"] == cap)
    more = (cap >> 20) + 1024
    configure(capacity=f"{more}MiB", extent_size="256MiB")
    run("systemctl", "reload", SERVICE)
    eventually("a reload changes a capacity", lambda: tier("host")["cap_bytes"] == more << 20)
    check("without a restart", show("MainPID") == pid)
    for quota in ("50%", "25%"):
        CONFIG.write_text(good + f'[[tenant]]\nname = "default"\nquota = {{ host = "{quota}" }}\n')
        run("systemctl", "reload", SERVICE)
        eventually(f"a reload gives a tenant a quota of {quota}", lambda: quota_of("default") == cap * int(quota[:-1]) // 100)
        check(f"a reload gives a tenant a quota of {quota}, without a restart", show("MainPID") == pid)
    configure(capacity="512MiB", extent_size="256MiB")
    run("systemctl", "reload", SERVICE)
    if eventually("a smaller tier gives memory back", lambda: tier("host")["taken_bytes"] <= 512 << 20):
        check("down to its new size, without a restart", show("MainPID") == pid, tier("host")["taken_bytes"])


def activated():
    run("systemctl", "stop", SERVICE)
    check("it can be stopped", show("ActiveState") == "inactive")
    check("its first client starts it", run("kvtierctl", "status", ok=False, user="engine").returncode == 0)
    check("for good", show("ActiveState") == "active")


def removed():
    files = run("dpkg-query", "-L", "kvtier", "libkvtier0", "libkvtier-dev").split()
    pid = show("MainPID")
    run("dpkg", "--remove", "kvtier", "libkvtier-dev", "libkvtier0")
    check("removing stops it", not os.path.exists(f"/proc/{pid}") and not os.path.exists(SOCKET))
    check("and keeps configuration and data", CONFIG.exists() and os.path.exists("/var/lib/kvtier/disk"))
    run("dpkg", "--purge", "kvtier", "libkvtier-dev", "libkvtier0")
    left = [file for file in files if os.path.exists(file) and not os.path.isdir(file)]
    left += [path for path in ("/etc/kvtier", "/var/lib/kvtier", "/run/kvtier") if os.path.exists(path)]
    left += run("find", "/etc", "/usr", "/var/lib/systemd", "-xdev", "-name", "*kvtier*", "-not", "-path",
                "/usr/src/*").split()
    check("purging leaves nothing", not left, " ".join(left))
    check("systemd knows of no unit", show("LoadState") == "not-found" and show("LoadState", SOCKET_UNIT) == "not-found")


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--cached-mib", type=int, required=True)
    cached_mib = arguments.parse_args().cached_mib
    installed()
    hardened()
    configure(capacity=f"{cached_mib + 1024}MiB", extent_size="256MiB")
    run("systemctl", "restart", SERVICE)
    engine_runs()
    restarts(cached_mib)
    watched(cached_mib)
    reloads()
    activated()
    removed()
    print(f"{len(failed)} checks did not hold" if failed else "everything held")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
